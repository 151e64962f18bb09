"""What the analysis room tells of runs: operations, and distances between topologies."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import torch

from selfish_rnn.analysis.distance import align
from selfish_rnn.analysis.topologies import distance_between, distance_from
from selfish_rnn.analysis.training_flops import run_flops
from selfish_rnn.errors import UserError
from selfish_rnn.experiment.settings import Experiment
from selfish_rnn.runs.run import Run


def operations(folder: Path, experiment: Experiment) -> list[float] | None:
    """Operations of a run, to train and to test, as fractions of those of the dense network of an experiment."""
    try:
        counted = run_flops(Run.open(folder), experiment)
    except UserError:  # the folder does not tell enough
        return None
    return [round(float(counted.training_ratio), 4), round(float(counted.inference_ratio), 4)]


def distances_over_time(first: Path, second: Path | None, start: int) -> list[dict[str, float]] | None:
    """Epoch by epoch, the distance between the topologies of two runs, or within one, from the epoch ``start`` on.

    A record has ``epoch``, the ``mean`` over the matrices of recurrent layers, and every matrix by name. Units of two
    runs are matched by what they do on the test text, unless both runs have the same start. Nothing if a run has no
    history of topologies.
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
    # The paper measures the input and recurrent weights of the layers, not embedding and decoder.
    recurrent = [value for name, value in matrices.items() if "weight_" in name]
    return {"epoch": epoch, "mean": round(statistics.fmean(recurrent or matrices.values()), 4), **matrices}


def _same_start(first: Path, second: Path) -> bool:
    seeds = {Run.open(folder).experiment.start_seed for folder in (first, second)}
    return len(seeds) == 1 and None not in seeds


def _alignment(first: Path, second: Path) -> Any:
    one, other = Run.open(first), Run.open(second)
    size = one.experiment.test_batch_size
    test = one.corpus.test
    columns = test[: len(test) // size * size].view(size, -1).t()
    return align(one.model(), other.model(), torch.split(columns, one.experiment.window))
