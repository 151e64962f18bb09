"""Runs as jobs of the scheduler, and their progress."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from selfish_rnn.errors import UserError
from selfish_rnn.experiment.comparison import differences
from selfish_rnn.experiment.presets import build_experiment, read_config
from selfish_rnn.experiment.settings import Experiment
from selfish_rnn.runs.folder import RunFolder
from selfish_rnn.scheduling.scheduler import SELFISH_RNN


@dataclass(frozen=True)
class RunProgress:
    """Last finished epoch of a run, total epochs, validation perplexity and estimated remaining seconds."""

    epoch: int = 0
    epochs: int | None = None
    perplexity: float | None = None
    seconds_left: float | None = None


def read_progress(folder: Path) -> RunProgress:
    """Return the progress of a run; a missing folder or a half-written line counts as no progress."""
    files = RunFolder(folder)
    record, epochs = files.metrics.last(), _epochs(files.config)
    if record is None:
        return RunProgress(epochs=epochs)
    left = record.seconds / record.epoch * (epochs - record.epoch) if epochs is not None and record.epoch else None
    return RunProgress(record.epoch, epochs, record.valid_perplexity, left)


def _epochs(path: Path) -> int | None:
    try:
        match = re.search(r"^epochs: (\d+)$", path.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(match.group(1)) if match else None


def run_command(path: Path, words: Sequence[str], trained: Callable[[int], Experiment]) -> list[str]:
    """Return the command that starts the run of ``selfish-rnn train WORDS`` in a folder, or resumes it.

    Args:
        path: folder of the run.
        words: arguments of ``selfish-rnn train``.
        trained: function that returns the experiment that the folder must contain, for a vocabulary size.
    """
    if not RunFolder(path).config.is_file():
        return [*SELFISH_RNN, "train", *words, "--run", str(path)]
    check_begun(path, trained)
    return [*SELFISH_RNN, "resume", str(path)]


def check_begun(path: Path, trained: Callable[[int], Experiment]) -> None:
    """Raise an error if the run in a folder was started with other settings."""
    folder = RunFolder(path)
    if not folder.vocabulary.is_file():  # not started, or killed right after the start
        return
    started = build_experiment(read_config(folder.config), str(folder.config))
    different = differences(started, trained(len(folder.read_vocabulary())))
    if different:
        raise UserError(f"{path} was started with {'; '.join(different)}; delete it, or give another --runs")


def is_finished(path: Path) -> bool:
    """Return whether a run folder contains a summary."""
    return RunFolder(path).summary.is_file()
