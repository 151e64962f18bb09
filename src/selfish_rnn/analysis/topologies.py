"""Measures of topologies: density maps, degrees, and changes over the training of a run."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from selfish_rnn.analysis.distance import Alignment, TopologyDistance, compare_topologies
from selfish_rnn.runs.topologies import Moment, TopologyHistory, TopologyRecord
from selfish_rnn.topology import Topology
from selfish_rnn.topology.sampling import merge
from selfish_rnn.topology.topology import Span


def density_map(topology: Topology, gate: str, bins: int = 48) -> Any:
    """Return the density of at most ``bins`` x ``bins`` equal parts of a gate, as a float array (rows, columns).

    Example::

        density_map(topology, "forget", bins=32).shape    # (32, 32) of a gate of 200 x 200
    """
    if bins < 1:
        raise ValueError(f"bins must be at least 1, got {bins}")
    rows, columns, height, width = _rows_and_columns(topology, gate)
    parts = (min(bins, height), min(bins, width))
    # Edges at whole numbers: the area of a part is then the number of positions in it.
    edges = [np.round(np.linspace(0, size, count + 1)) for size, count in zip((height, width), parts, strict=True)]
    counts, _, _ = np.histogram2d(rows, columns, bins=edges)
    return counts / np.outer(np.diff(edges[0]), np.diff(edges[1]))


def in_degrees(topology: Topology, gate: str) -> Any:
    """Return the number of weights in each row of a gate."""
    rows, _, height, _ = _rows_and_columns(topology, gate)
    return np.bincount(rows, minlength=height)


def out_degrees(topology: Topology, gate: str) -> Any:
    """Return the number of weights in each column of a gate."""
    _, columns, _, width = _rows_and_columns(topology, gate)
    return np.bincount(columns, minlength=width)


def random_degrees(density: float, among: int) -> tuple[Any, Any]:
    """Return degrees and their probabilities if each of ``among`` positions exists independently with a probability.

    The binomial distribution B(among, density), which is the start of a uniform allocation.
    """
    degrees = np.arange(among + 1)
    if density in (0, 1):
        return degrees, (degrees == among * density).astype(float)
    choices = np.array([math.lgamma(among + 1) - math.lgamma(k + 1) - math.lgamma(among - k + 1) for k in degrees])
    return degrees, np.exp(choices + degrees * math.log(density) + (among - degrees) * math.log1p(-density))


@dataclass(frozen=True)
class DegreeShares:
    """Shares of the units by their degree. Bin ``i`` holds the degrees between ``edges[i]`` and ``edges[i + 1]``."""

    edges: Any
    gates: dict[str, Any]
    random: Any


def degree_shares(topology: Topology, *, sent: bool, start: Topology | None = None, bins: int = 24) -> DegreeShares:
    """Return the distribution of in-degrees (with ``sent``: out-degrees) in every gate and at the random start.

    Without a ``start``, the latter is the average of random topologies with the same density.
    """
    degrees = out_degrees if sent else in_degrees
    by_gate = {gate: degrees(topology, gate) for gate in topology.gates.names}
    width = topology.size // topology.shape[0]
    if start is None:
        sizes = topology.gates.sizes if sent else [width] * len(by_gate)
        random = [random_degrees(topology.density, among) for among in sizes]
    else:
        before = [degrees(start, gate) for gate in by_gate]
        random = [(values, np.full(len(values), 1 / len(values))) for values in before]
    likely = [values[shares > 1e-4] for values, shares in random]
    everything = np.concatenate([*by_gate.values(), *likely])
    lowest, highest = int(everything.min()), int(everything.max())
    step = -(-(highest - lowest + 1) // bins)
    edges = np.arange(lowest - 0.5, highest + step, step)
    return DegreeShares(
        edges,
        {gate: np.histogram(values, edges)[0] / len(values) for gate, values in by_gate.items()},
        sum(np.histogram(values, edges, weights=shares)[0] for values, shares in random) / len(random),
    )


def _rows_and_columns(topology: Topology, gate: str) -> tuple[Any, Any, int, int]:
    """Return the rows within a gate and the columns of its positions, and its height and width."""
    spans: dict[str, Span] = dict(topology.gate_spans())
    if gate not in spans:
        raise ValueError(f"there is no gate {gate!r}; there are {', '.join(spans)}")
    width = topology.size // topology.shape[0]
    span = spans[gate]
    rows, columns = np.divmod(topology.positions[topology.within(span)].numpy() - span.start, width)
    return rows, columns, (span.stop - span.start) // width, width


@dataclass(frozen=True)
class Exploration:
    """Share of positions that existed at any time up to a moment, by matrix and over all."""

    moment: Moment
    matrices: dict[str, float]
    overall: float


def exploration(history: TopologyHistory) -> Iterator[Exploration]:
    """Yield the in-time over-parameterisation: the share of the dense network that a run has explored.

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
    """Yield the distance of every later topology of a run to that after ``epoch`` (the paper's Figure 4, left).

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
    """Yield the distance between two runs after every epoch that both have.

    Without an ``alignment`` units correspond by number: right for runs from one start, as in the paper's figure on the
    right. :func:`~selfish_rnn.analysis.distance.align` matches those of two trained models.
    """
    ours, theirs = _by_epoch(first), _by_epoch(second)
    our_record, their_record = next(ours, None), next(theirs, None)
    while our_record is not None and their_record is not None:
        if our_record.epoch == their_record.epoch:
            distance = compare_topologies(our_record.topologies, their_record.topologies, alignment)
            yield Moment(our_record.step, our_record.epoch), distance
        behind = min(our_record.epoch, their_record.epoch)
        if our_record.epoch == behind:
            our_record = next(ours, None)
        if their_record.epoch == behind:
            their_record = next(theirs, None)


def _by_epoch(history: TopologyHistory) -> Iterator[TopologyRecord]:
    """Yield the last record of every epoch."""
    last: TopologyRecord | None = None
    for record in history:
        if last is not None and record.epoch != last.epoch:
            yield last
        last = record
    if last is not None:
        yield last
