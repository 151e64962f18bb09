"""Taking finished run folders that were made elsewhere, or before the code was changed, as results."""

from __future__ import annotations

from pathlib import Path

from selfish_rnn.errors import UserError
from selfish_rnn.experiment.comparison import differences
from selfish_rnn.experiment.presets import build_experiment, read_config
from selfish_rnn.reproduce.paper import ITEMS
from selfish_rnn.reproduce.plan import PlannedRun
from selfish_rnn.reproduce.results import Results, collect
from selfish_rnn.reproduce.scales import Scale
from selfish_rnn.runs.folder import RunFolder
from selfish_rnn.scheduling.jobs import is_finished


def adopt(folder: Path, scale: Scale, results: Results, commit: str) -> tuple[PlannedRun, Path]:
    """Keep the outcome of a finished run folder as a result of a scale, if its settings are those of one of its runs.

    What decides no result, such as threads and engine, may differ. A folder that is not finished, has keys that today's
    settings do not know, or trains what no item needs, is an error that says so.
    """
    RunFolder.open(folder)
    if not is_finished(folder):
        raise UserError(f"{folder} is not finished: continue it with `selfish-rnn resume`, then adopt it")
    run = matching_run(folder, scale)
    made = {"commit": commit, "adopted_from": folder.resolve().name}
    return run, results.keep(collect(folder, run, made, []), run)


def matching_run(folder: Path, scale: Scale) -> PlannedRun:
    """The run of a scale whose settings a run folder has."""
    files = RunFolder(folder)
    found = build_experiment(read_config(files.config), str(files.config))
    vocabulary = len(files.read_vocabulary())
    nearest: list[str] | None = None
    cases = dict.fromkeys(case for item in ITEMS.values() if item.shows != "time" for case in item.cases)
    for run in (PlannedRun(scale, case, found.seed).trained_run for case in cases):
        different = differences(found, run.trained(vocabulary))
        if not different:
            return run
        if nearest is None or len(different) < len(nearest):
            nearest = different
    raise UserError(
        f"{folder} is no run of scale {scale.name}; the nearest would differ in: {'; '.join(nearest or ['everything'])}"
    )
