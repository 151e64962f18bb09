"""What the analysis room tells of runs: operations, and distances between topologies.

Everything of it is asked for by name when it is needed, so that runs can be made and results rendered without it; what
is not there is a gap in a table and not an error.
"""

from __future__ import annotations

import statistics
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import yaml

from selfish_rnn.errors import UserError

ROOM = "selfish_rnn.analysis"

START_EPOCH = 5
"""The paper compares the topologies of one run with that of this epoch, and those of two runs from it on."""


def part(name: str) -> Any:
    """A module of the analysis room, or nothing where there is none."""
    if find_spec(ROOM) is None or find_spec(f"{ROOM}.{name}") is None:
        return None
    return import_module(f"{ROOM}.{name}")


def operations(folder: Path) -> list[float] | None:
    """Operations of a run, to train and to test, as fractions of those of its dense network."""
    flops = part("flops")
    if flops is None:
        return None
    from selfish_rnn.runs.run import Run

    try:
        counted = flops.run_flops(Run.open(folder))
    except UserError:  # the folder does not tell enough
        return None
    return [round(float(counted.training_ratio), 4), round(float(counted.inference_ratio), 4)]


def distances_over_time(first: Path, second: Path | None) -> list[dict[str, float]] | None:
    """Epoch by epoch, the distance between the topologies of two runs, or within one from its fifth epoch on.

    A record has ``epoch``, the ``mean`` over the matrices of recurrent layers, and every matrix by name. Units of two
    runs are matched by what they do on the test text, unless both runs have the same start. Nothing if a run has no
    history of topologies.
    """
    evolution = part("evolution")
    if evolution is None:
        return None
    topologies = import_module("selfish_rnn.runs.topologies")
    paths = [folder / topologies.FILE for folder in (first, second) if folder is not None]
    if not all(path.is_file() for path in paths):
        return None
    histories = [topologies.TopologyHistory(path) for path in paths]
    if second is None:
        series = evolution.distance_from(histories[0], START_EPOCH)
    else:
        series = evolution.distance_between(
            *histories, None if _same_start(first, second) else _alignment(first, second)
        )
    return [_record(moment.epoch, distance) for moment, distance in series if moment.epoch >= START_EPOCH]


def _record(epoch: int, distance: Any) -> dict[str, float]:
    matrices = {matrix.name: round(float(matrix.distance), 4) for matrix in distance.matrices}
    # The paper measures the input and recurrent weights of the layers, not embedding and decoder.
    recurrent = [value for name, value in matrices.items() if "weight_" in name]
    return {"epoch": epoch, "mean": round(statistics.fmean(recurrent or matrices.values()), 4), **matrices}


def _same_start(first: Path, second: Path) -> bool:
    seeds = {yaml.safe_load((folder / "config.yaml").read_text()).get("start_seed") for folder in (first, second)}
    return len(seeds) == 1 and None not in seeds


def _alignment(first: Path, second: Path) -> Any:
    from selfish_rnn.runs.run import Run

    one, other = Run.open(first), Run.open(second)
    size = one.experiment.test_batch_size
    test = one.corpus().test
    columns = test[: len(test) // size * size].view(size, -1).t()
    return part("distance").align(one.model(), other.model(), torch.split(columns, one.experiment.window))
