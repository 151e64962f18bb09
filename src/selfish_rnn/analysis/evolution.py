"""How the topology of a run moves over time, from its history."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from selfish_rnn.analysis.distance.measure import Alignment, TopologyDistance, compare_topologies
from selfish_rnn.runs.topologies import Moment, TopologyHistory, TopologyRecord
from selfish_rnn.topology.sampling import merge


@dataclass(frozen=True)
class Exploration:
    """The share of positions that have existed at some time up to this moment, of each matrix and over all."""

    moment: Moment
    matrices: dict[str, float]
    overall: float


def exploration(history: TopologyHistory) -> Iterator[Exploration]:
    """In-time over-parameterisation: how much of the dense network a run has tried out by and by.

        R_s = |positions that existed at some time| / |all positions|

    It starts at the density; a run that keeps its topology stays there.
    """
    tried: dict[str, Tensor] = {}
    for record in history:
        for name, topology in record.topologies.items():
            # A rewiring tells what is new; what was written down whole does not.
            new = record.grown.get(name, topology.positions if not record.grown or name not in tried else None)
            if new is not None:
                tried[name] = _union(tried.get(name), new)
        sizes = {name: topology.size for name, topology in record.topologies.items()}
        yield Exploration(
            Moment(record.step, record.epoch),
            {name: len(tried[name]) / size for name, size in sizes.items()},
            sum(map(len, tried.values())) / sum(sizes.values()),
        )


def _union(tried: Tensor | None, new: Tensor) -> Tensor:
    if tried is None:
        return new
    both = merge(tried, new).numpy()
    return torch.from_numpy(both[np.diff(both, prepend=-1) > 0])


def distance_from(history: TopologyHistory, epoch: int = 0) -> Iterator[tuple[Moment, TopologyDistance]]:
    """The distance of every later topology of a run to that after ``epoch`` (the paper's figure on the left).

    Units are those of one network, so there is nothing to match.
    """
    origin: TopologyRecord | None = None
    for record in history:
        if record.epoch <= epoch:
            origin = record
            continue
        if origin is None:
            raise ValueError(f"{history.path} has no record of epoch {epoch} or before")
        yield Moment(record.step, record.epoch), compare_topologies(origin.topologies, record.topologies)


def distance_between(
    first: TopologyHistory, second: TopologyHistory, alignment: Alignment | None = None
) -> Iterator[tuple[Moment, TopologyDistance]]:
    """The distance between two runs after every epoch that both have.

    Without an ``alignment`` units correspond by number: right for runs from one start, as in the paper's figure on the
    right. :func:`~selfish_rnn.analysis.distance.align` matches those of two trained models.
    """
    ours, theirs = _by_epoch(first), _by_epoch(second)
    one, other = next(ours, None), next(theirs, None)
    while one is not None and other is not None:
        if one.epoch == other.epoch:
            compared = compare_topologies(one.topologies, other.topologies, alignment)
            yield Moment(one.step, one.epoch), compared
        behind = min(one.epoch, other.epoch)
        if one.epoch == behind:
            one = next(ours, None)
        if other.epoch == behind:
            other = next(theirs, None)


def _by_epoch(history: TopologyHistory) -> Iterator[TopologyRecord]:
    """The last record of every epoch."""
    last: TopologyRecord | None = None
    for record in history:
        if last is not None and record.epoch != last.epoch:
            yield last
        last = record
    if last is not None:
        yield last
