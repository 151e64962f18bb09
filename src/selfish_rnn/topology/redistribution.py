"""Redistribution: the division of the freed budget over gates or matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from selfish_rnn.topology.allocation import Part, apportion, by_name
from selfish_rnn.topology.removal import Signal
from selfish_rnn.topology.topology import Span, Topology, mean_magnitude

Quota = tuple[Span, int]
"""A span and the number of weights that grow in it."""


@dataclass(frozen=True)
class AfterRemoval:
    """A matrix or layer after removal: the surviving weights and the topology before.

    ``topology`` and ``values`` are those of the surviving weights. ``gradients`` are theirs, if the redistribution
    requests them and a backward pass computed them. With ``avoid_removed`` growth also avoids the positions that were
    just removed.
    """

    topology: Topology
    before: Topology
    values: Tensor
    gradients: Tensor | None = None
    avoid_removed: bool = False

    @property
    def count(self) -> int:
        """Number of removed weights, and so of weights to grow."""
        return self.before.count - self.topology.count

    @property
    def occupied(self) -> Topology:
        """Positions at which nothing may grow."""
        return self.before if self.avoid_removed else self.topology

    @property
    def spans(self) -> list[Span]:
        """Span of each gate."""
        return [span for _, span in self.topology.gate_spans()]

    def losses(self, spans: Sequence[Span]) -> list[Quota]:
        """Return each span with the number of weights that it lost."""
        return [(span, self.before.count_in(span) - self.topology.count_in(span)) for span in spans]

    def capacity(self, span: Span) -> int:
        """Return the number of positions of a span at which weights may grow."""
        return span.size - self.occupied.count_in(span)


@dataclass(frozen=True)
class MatrixCounts:
    """Counts of a matrix after removal: surviving and removed weights, and the ``capacity`` for new ones.

    ``score`` is the mean magnitude, over the weights before removal, of the signal that the redistribution requests.
    """

    survivors: int
    removed: int
    capacity: int
    score: float = 0.0


@dataclass(frozen=True)
class Redistribution(Part):
    """A division of the freed budget, within each matrix or over the network.

    - ``quotas(freed)`` returns the spans of a matrix with the numbers of weights that grow in them. They add up to the
      weights that the matrix lost.
    - ``counts(matrices)`` returns the number of weights that grow in each matrix of the network. It may request a
      ``signal``. The mean magnitude of the signal is then the score of each matrix.

    With pool ``layer`` both work on layers in place of matrices. With ``gradients``, ``freed`` has the gradients of the
    surviving weights, if a backward pass computed them.
    """

    quotas: Callable[[AfterRemoval], list[Quota]] | None = None
    counts: Callable[[Sequence[MatrixCounts]], list[int]] | None = None
    signal: Signal | str | None = None
    gradients: bool = False

    def __post_init__(self) -> None:
        if (self.quotas is None) == (self.counts is None):
            raise ValueError(
                f"redistribution {self.name!r} needs either quotas (within a matrix) or counts (over matrices)"
            )
        if self.signal is not None and self.counts is None:
            raise ValueError(f"redistribution {self.name!r}: only counts (over matrices) can use a signal")


def same_matrix(freed: AfterRemoval) -> list[Quota]:
    """Return to each matrix the weights it lost, anywhere in it."""
    return freed.losses(freed.topology.matrix_spans)


def same_gate(freed: AfterRemoval) -> list[Quota]:
    """Return to each gate the weights it lost."""
    return freed.losses(freed.spans)


def equal_gates(freed: AfterRemoval) -> list[Quota]:
    """Grow the same number of weights per row in every gate; the excess of a full gate goes to the others.

    This is the cell gate redistribution of the paper. Removal ranks all gates together, so a gate with larger weights
    loses fewer. It grows as many as the other gates, and so it gains weights. Where gates differ in rows (the master
    gates of ON-LSTM), the number goes with the rows, or small gates would fill up at once. The gates of the input and
    the recurrent matrix of a layer have the same rows, so they grow the same number, whatever their columns.
    """
    return _by_share(freed, freed.topology.gate_rows)


def gates_by_magnitude(freed: AfterRemoval) -> list[Quota]:
    """Grow gates in proportion to the mean magnitude of their surviving weights."""
    return _by_share(freed, _gate_means(freed, freed.values))


def gates_by_gradient(freed: AfterRemoval) -> list[Quota]:
    """Grow gates in proportion to the mean gradient magnitude of their surviving weights."""
    if freed.gradients is None:
        raise ValueError("redistribution by gradient needs the gradients of the last backward pass")
    return _by_share(freed, _gate_means(freed, freed.gradients))


def _gate_means(freed: AfterRemoval, values: Tensor) -> list[float]:
    return [mean_magnitude(values[freed.topology.within(span)]) for span in freed.spans]


def _by_share(freed: AfterRemoval, shares: Sequence[float]) -> list[Quota]:
    counts = apportion(freed.count, shares, [freed.capacity(span) for span in freed.spans])
    return list(zip(freed.spans, counts, strict=True))


def layers_by_survivors(network: Sequence[MatrixCounts]) -> list[int]:
    """Grow matrices in proportion to their surviving weights (DSR, Mostafa & Wang 2019)."""
    return _over_layers(network, [layer.survivors for layer in network], fill=1.0)


def layers_by_momentum(network: Sequence[MatrixCounts]) -> list[int]:
    """Grow matrices in proportion to the mean ``|momentum|`` of their weights (SNFS, Dettmers & Zettlemoyer 2019).

    No matrix is filled beyond 99 % of its capacity.
    """
    return _over_layers(network, [layer.score for layer in network], fill=0.99)


def _over_layers(network: Sequence[MatrixCounts], shares: Sequence[float], fill: float) -> list[int]:
    total = sum(layer.removed for layer in network)
    capacities = [layer.capacity for layer in network]
    limits = [int(fill * capacity) for capacity in capacities]
    return apportion(total, shares, limits if sum(limits) >= total else capacities)


REDISTRIBUTIONS = by_name(
    Redistribution("matrix", same_matrix),
    Redistribution("gate", same_gate),
    Redistribution("gates-equal", equal_gates),
    Redistribution("gates-by-magnitude", gates_by_magnitude),
    Redistribution("gates-by-gradient", gates_by_gradient, gradients=True),
    Redistribution("layers-by-survivors", counts=layers_by_survivors),
    Redistribution("layers-by-momentum", counts=layers_by_momentum, signal=Signal.MOMENTUM),
)
