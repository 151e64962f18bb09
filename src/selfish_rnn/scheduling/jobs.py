"""Runs as jobs of the scheduler, and their progress."""

from __future__ import annotations

import json
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

TAIL_BYTES = 65536
"""More than the record of an epoch takes."""


@dataclass(frozen=True)
class RunProgress:
    """The last epoch a run has finished, of how many, with what perplexity, and how long it will still take."""

    epoch: int = 0
    epochs: int | None = None
    perplexity: float | None = None
    seconds_left: float | None = None


def read_progress(folder: Path) -> RunProgress:
    """The progress of a run; a folder that is not there yet, or a line half-written, is no progress."""
    record = _last_record(folder / "metrics.jsonl")
    epochs = _epochs(folder / "config.yaml")
    if record is None:
        return RunProgress(epochs=epochs)
    epoch, seconds = int(record["epoch"]), float(record["seconds"])
    left = seconds / epoch * (epochs - epoch) if epochs is not None and epoch else None
    return RunProgress(epoch, epochs, float(record["valid_perplexity"]), left)


def _last_record(path: Path) -> dict[str, float] | None:
    try:
        with open(path, "rb") as file:
            file.seek(0, 2)
            file.seek(max(file.tell() - TAIL_BYTES, 0))
            lines = file.read().split(b"\n")
    except OSError:
        return None
    # What follows the last line break is still being written.
    for line in reversed(lines[:-1]):
        try:
            record: dict[str, float] = json.loads(line)
        except ValueError:
            continue
        return record
    return None


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
