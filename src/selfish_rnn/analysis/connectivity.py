"""The shape of a topology in numbers: how dense each part of it is, and how many weights a unit has.

Rows are the units that receive and columns those that send, so the in-degree of a unit in a gate is the count of its
row there, and the out-degree the count of a column. Everything is counted from the positions that exist.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from selfish_rnn.topology import Topology
from selfish_rnn.topology.topology import Span


def density_map(topology: Topology, gate: str, bins: int = 48) -> Any:
    """The density of each of at most ``bins`` x ``bins`` equal parts of a gate, as a float array (rows, columns).

    Example::

        density_map(topology, "forget", bins=32).shape    # (32, 32) of a gate of 200 x 200
    """
    if bins < 1:
        raise ValueError(f"bins must be at least 1, got {bins}")
    rows, columns, height, width = _places(topology, gate)
    parts = (min(bins, height), min(bins, width))
    # Edges at whole numbers: the area of a part is then the number of positions in it.
    edges = [np.round(np.linspace(0, size, count + 1)) for size, count in zip((height, width), parts, strict=True)]
    counts, _, _ = np.histogram2d(rows, columns, bins=edges)
    return counts / np.outer(np.diff(edges[0]), np.diff(edges[1]))


def in_degrees(topology: Topology, gate: str) -> Any:
    """How many weights each row of a gate has."""
    rows, _, height, _ = _places(topology, gate)
    return np.bincount(rows, minlength=height)


def out_degrees(topology: Topology, gate: str) -> Any:
    """How many weights of a gate each column has."""
    _, columns, _, width = _places(topology, gate)
    return np.bincount(columns, minlength=width)


def random_degrees(density: float, among: int) -> tuple[Any, Any]:
    """Degrees and their probabilities where ``among`` positions exist with the same probability, apart from each other.

    The binomial distribution B(among, density), which is the start of a uniform allocation.
    """
    degrees = np.arange(among + 1)
    if density in (0, 1):
        return degrees, (degrees == among * density).astype(float)
    choices = np.array([math.lgamma(among + 1) - math.lgamma(k + 1) - math.lgamma(among - k + 1) for k in degrees])
    return degrees, np.exp(choices + degrees * math.log(density) + (among - degrees) * math.log1p(-density))


@dataclass(frozen=True)
class DegreeShares:
    """Shares of the units by their degree: bin ``i`` holds the degrees between ``edges[i]`` and ``edges[i + 1]``."""

    edges: Any
    gates: dict[str, Any]
    random: Any


def degree_shares(topology: Topology, *, sent: bool, start: Topology | None = None, bins: int = 24) -> DegreeShares:
    """The distribution of in-degrees (or with ``sent`` of out-degrees) in every gate and at the random start.

    Without the topology at the ``start``, that is what a random topology of the same density has on average.
    """
    degrees = out_degrees if sent else in_degrees
    found = {gate: degrees(topology, gate) for gate in topology.gates.names}
    width = topology.size // topology.shape[0]
    if start is None:
        sizes = topology.gates.sizes if sent else [width] * len(found)
        random = [random_degrees(topology.density, among) for among in sizes]
    else:
        before = [degrees(start, gate) for gate in found]
        random = [(values, np.full(len(values), 1 / len(values))) for values in before]
    likely = [values[shares > 1e-4] for values, shares in random]
    everything = np.concatenate([*found.values(), *likely])
    lowest, highest = int(everything.min()), int(everything.max())
    step = -(-(highest - lowest + 1) // bins)
    edges = np.arange(lowest - 0.5, highest + step, step)
    return DegreeShares(
        edges,
        {gate: np.histogram(values, edges)[0] / len(values) for gate, values in found.items()},
        sum(np.histogram(values, edges, weights=shares)[0] for values, shares in random) / len(random),
    )


def _places(topology: Topology, gate: str) -> tuple[Any, Any, int, int]:
    """Rows within a gate and columns of its positions, and its height and width."""
    spans: dict[str, Span] = dict(topology.gate_spans())
    if gate not in spans:
        raise ValueError(f"there is no gate {gate!r}; there are {', '.join(spans)}")
    width = topology.size // topology.shape[0]
    span = spans[gate]
    rows, columns = np.divmod(topology.positions[topology.within(span)].numpy() - span.start, width)
    return rows, columns, (span.stop - span.start) // width, width
