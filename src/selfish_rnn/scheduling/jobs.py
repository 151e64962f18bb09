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
    """The last epoch a run has finished, of how many, with what perplexity, and how long it will still take."""

    epoch: int = 0
    epochs: int | None = None
    perplexity: float | None = None
    seconds_left: float | None = None


def read_progress(folder: Path) -> RunProgress:
    """The progress of a run; a folder that is not there yet, or a line half-written, is no progress."""
    files = RunFolder(folder)
    record, epochs = files.metrics.last(), _epochs(files.config)
    if record is None:
        return RunProgress(epochs=epochs)
    left = record.seconds / record.epoch * (epochs - record.epoch) if epochs is not None and record.epoch else None
    return RunProgress(record.epoch, epochs, record.valid_perplexity, left)


def _epochs(path: Path) -> int | None:
    try:
        found = re.search(r"^epochs: (\d+)$", path.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found.group(1)) if found else None


def run_command(path: Path, words: Sequence[str], trained: Callable[[int], Experiment]) -> list[str]:
    """What begins the run of ``selfish-rnn train WORDS`` in a folder, or continues it if it was begun.

    ``trained`` gives the experiment for a number of words, as the folder has to tell it.
    """
    if not RunFolder(path).config.is_file():
        return [*SELFISH_RNN, "train", *words, "--run", str(path)]
    check_begun(path, trained)
    return [*SELFISH_RNN, "resume", str(path)]


def check_begun(path: Path, trained: Callable[[int], Experiment]) -> None:
    """Refuse to go on with a run that was begun with other settings."""
    folder = RunFolder(path)
    if not folder.vocabulary.is_file():  # not begun, or killed right after its start
        return
    found = build_experiment(read_config(folder.config), str(folder.config))
    different = differences(found, trained(len(folder.read_vocabulary())))
    if different:
        raise UserError(f"{path} was begun with {'; '.join(different)}; delete it, or give another --runs")


def is_finished(path: Path) -> bool:
    """Whether a run folder holds an outcome."""
    return RunFolder(path).summary.is_file()
