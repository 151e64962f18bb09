"""Runs as jobs: begun, or continued if they were begun before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from selfish_rnn.errors import UserError
from selfish_rnn.experiment.comparison import differences
from selfish_rnn.experiment.presets import build_experiment, read_config
from selfish_rnn.experiment.settings import Experiment
from selfish_rnn.runs.folder import RunFolder
from selfish_rnn.scheduling.scheduler import SELFISH_RNN


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
