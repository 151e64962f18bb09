"""Distances between the topologies of runs, measured from run folders."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from selfish_rnn.analysis.distance import align
from selfish_rnn.analysis.topologies import distance_between, distance_from
from selfish_rnn.reproduce.plan import Pair, PlannedRun
from selfish_rnn.reproduce.results import Distances, Results
from selfish_rnn.runs.run import Run
from selfish_rnn.scheduling.jobs import is_finished

Measure = Callable[[Path, Path | None], Distances | None]
"""Function that returns the distances between the runs in two folders, or within one."""


def measure_missing(
    pairs: Sequence[Pair], results: Results, folder_of: Callable[[PlannedRun], Path], measure: Measure
) -> list[Pair]:
    """Measure the pairs of finished runs that have no distances yet.

    Args:
        pairs: Pairs of an item.
        results: Destination.
        folder_of: Function from a run to its folder.
        measure: Measurement, such as :func:`distances_over_time`.

    Returns:
        The pairs that could not be measured.
    """
    missing = []
    for pair in pairs:
        run, partner = pair
        folders = folder_of(run), folder_of(partner) if partner else None
        if results.distances(pair) is not None:
            continue
        records = measure(*folders) if all(folder is None or is_finished(folder) for folder in folders) else None
        if records is None:
            missing.append(pair)
        else:
            results.save_distances(pair, records)
    return missing


def distances_over_time(first: Path, second: Path | None, start: int) -> Distances | None:
    """Return the distance between the topologies of two runs, or within one run, for every epoch from `start` on.

    Units of two runs are matched by their activations on the test text, unless both runs have the same start. Returns
    None if a run has no history of topologies.
    """
    histories = [Run.open(folder).topologies for folder in (first, second) if folder is not None]
    if not all(history.path.is_file() for history in histories):
        return None
    if second is None:
        series = distance_from(histories[0], start)
    else:
        alignment = None if _same_start(first, second) else _alignment(first, second)
        series = distance_between(histories[0], histories[1], alignment)
    return [_record(moment.epoch, distance) for moment, distance in series if moment.epoch >= start]


def _record(epoch: int, distance: Any) -> dict[str, float]:
    matrices = {matrix.name: round(float(matrix.distance), 4) for matrix in distance.matrices}
    # The paper measures input and recurrent weights of the layers, without embedding and decoder.
    recurrent = [value for name, value in matrices.items() if "weight_" in name]
    return {"epoch": epoch, "mean": round(statistics.fmean(recurrent or matrices.values()), 4), **matrices}


def _same_start(first: Path, second: Path) -> bool:
    seeds = {Run.open(folder).experiment.start_seed for folder in (first, second)}
    return len(seeds) == 1 and None not in seeds


def _alignment(first: Path, second: Path) -> Any:
    """Match the units of two runs by their activations on the test text."""
    runs = Run.open(first), Run.open(second)
    size = runs[0].experiment.test_batch_size
    test = runs[0].corpus.test
    columns = test[: len(test) // size * size].view(size, -1).t()
    return align(runs[0].model(), runs[1].model(), torch.split(columns, runs[0].experiment.window))
