"""Redistribution: who gets the freed budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from selfish_rnn.topology.allocation import Part, apportion, by_name
from selfish_rnn.topology.removal import Signal
from selfish_rnn.topology.topology import Span, Topology, mean_magnitude

Quota = tuple[Span, int]
"""The number of weights that grow in a span."""


@dataclass(frozen=True)
class AfterRemoval:
    """A matrix or layer after removal: what stays (``topology`` and its weights) and how many weights are to be grown.

    ``before`` is the topology before removal. ``gradients`` are those of the staying weights, where they are asked for
    and there are any. With ``elsewhere`` growth keeps clear not only of the topology but also of what was removed just
    now.
    """

    topology: Topology
    before: Topology
    values: Tensor
    gradients: Tensor | None = None
    elsewhere: bool = False

    @property
    def count(self) -> int:
        return self.before.count - self.topology.count

    @property
    def taken(self) -> Topology:
        return self.before if self.elsewhere else self.topology

    @property
    def spans(self) -> list[Span]:
        return [span for _, span in self.topology.gate_spans()]

    def lost(self, spans: Sequence[Span]) -> list[Quota]:
        """Each span with the number of weights that it lost."""
        return [(span, self.before.count_in(span) - self.topology.count_in(span)) for span in spans]

    def room(self, span: Span) -> int:
        return span.size - self.taken.count_in(span)


@dataclass(frozen=True)
class MatrixCounts:
    """The numbers of a matrix after removal: weights ``kept`` and ``freed``, and ``room`` for new ones.

    ``score`` is the mean magnitude, over the weights before removal, of the signal the redistribution asks for.
    """

    kept: int
    freed: int
    room: int
    score: float = 0.0


@dataclass(frozen=True)
class Redistribution(Part):
    """A way to divide what removal has freed, in one of two places.

    ``quotas(freed)`` says how many weights grow in which span of a matrix, as many as the matrix has lost;
    ``counts(matrices)`` says how many grow in each matrix of the network, anywhere in it. With pool ``layer`` both work
    on layers in place of matrices. A redistribution over the
    network may ask for a ``signal``, whose mean magnitude is then the score of each matrix. With ``gradients``,
    ``freed`` has those of the weights that stay, if there was a backward pass.
    """

    quotas: Callable[[AfterRemoval], list[Quota]] | None = None
    counts: Callable[[Sequence[MatrixCounts]], list[int]] | None = None
    signal: Signal | str | None = None
    gradients: bool = False

    def __post_init__(self) -> None:
        if (self.quotas is None) == (self.counts is None):
            raise ValueError(f"redistribution {self.name!r} needs either quotas, in a matrix, or counts, of matrices")
        if self.signal is not None and self.counts is None:
            raise ValueError(f"redistribution {self.name!r}: only counts, of matrices, can go by a signal")


def same_matrix(freed: AfterRemoval) -> list[Quota]:
    """Let each matrix grow what it lost, anywhere in it."""
    return freed.lost(freed.topology.matrix_spans)


def same_gate(freed: AfterRemoval) -> list[Quota]:
    """Each gate grows what it lost."""
    return freed.lost(freed.spans)


def equal_gates(freed: AfterRemoval) -> list[Quota]:
    """Let every gate grow the same number of weights per row; what a full gate cannot take goes to the others.

    The cell gate redistribution of the paper: as removal is over all gates together, a gate with more large weights
    loses fewer, grows as many as the others and so gains. Where the gates differ in rows (ON-LSTM's master gates)
    the number goes with the rows, or the small ones would fill up at once. The gates of the input and of the recurrent
    matrix of a layer have the same rows and so grow as many, whatever their columns.
    """
    return _by_share(freed, freed.topology.gate_rows)


def gates_by_magnitude(freed: AfterRemoval) -> list[Quota]:
    """Gates grow in proportion to the mean magnitude of the weights they keep."""
    return _by_share(freed, _gate_means(freed, freed.values))


def gates_by_gradient(freed: AfterRemoval) -> list[Quota]:
    """Gates grow in proportion to the mean gradient magnitude of the weights they keep."""
    if freed.gradients is None:
        raise ValueError(
            "redistribution by gradient needs the gradients of the last backward pass: "
            "rewire before they are set to None (optimizer.zero_grad)"
        )
    return _by_share(freed, _gate_means(freed, freed.gradients))


def _gate_means(freed: AfterRemoval, values: Tensor) -> list[float]:
    return [mean_magnitude(values[freed.topology.within(span)]) for span in freed.spans]


def _by_share(freed: AfterRemoval, shares: Sequence[float]) -> list[Quota]:
    counts = apportion(freed.count, shares, [freed.room(span) for span in freed.spans])
    return list(zip(freed.spans, counts, strict=True))


def layers_by_survivors(network: Sequence[MatrixCounts]) -> list[int]:
    """Every matrix grows in proportion to the weights it kept (DSR, Mostafa & Wang 2019)."""
    return _over_layers(network, [layer.kept for layer in network], fill=1.0)


def layers_by_momentum(network: Sequence[MatrixCounts]) -> list[int]:
    """Every matrix grows in proportion to the mean ``|momentum|`` of its weights (SNFS, Dettmers & Zettlemoyer 2019).

    No matrix is filled beyond 99 % of its room.
    """
    return _over_layers(network, [layer.score for layer in network], fill=0.99)


def _over_layers(network: Sequence[MatrixCounts], shares: Sequence[float], fill: float) -> list[int]:
    total = sum(layer.freed for layer in network)
    rooms = [layer.room for layer in network]
    capacities = [int(fill * room) for room in rooms]
    return apportion(total, shares, capacities if sum(capacities) >= total else rooms)


REDISTRIBUTIONS = by_name(
    Redistribution("matrix", same_matrix),
    Redistribution("gate", same_gate),
    Redistribution("gates-equal", equal_gates),
    Redistribution("gates-by-magnitude", gates_by_magnitude),
    Redistribution("gates-by-gradient", gates_by_gradient, gradients=True),
    Redistribution("layers-by-survivors", counts=layers_by_survivors),
    Redistribution("layers-by-momentum", counts=layers_by_momentum, signal=Signal.MOMENTUM),
)
