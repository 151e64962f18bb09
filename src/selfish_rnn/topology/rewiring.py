"""Rewiring: one removal and growth over all sparse matrices of a network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from selfish_rnn.topology.growth import GROWTHS
from selfish_rnn.topology.methods import Method
from selfish_rnn.topology.redistribution import (
    LAYER_REDISTRIBUTIONS,
    REDISTRIBUTIONS,
    AfterRemoval,
    MatrixCounts,
    Quota,
)
from selfish_rnn.topology.removal import AdaptiveThreshold, by_magnitude, remove, sparing_rates
from selfish_rnn.topology.topology import Topology, false_indices


@dataclass(frozen=True)
class ActiveWeights:
    """The existing weights of one matrix: topology, and values in the order of its positions.

    ``gradients`` are theirs. ``score`` gives, for methods that grow by it, the dense gradient or momentum of the
    whole matrix; it is called for one matrix at a time.
    """

    topology: Topology
    values: Tensor
    gradients: Tensor | None = None
    score: Callable[[], Tensor] | None = None

    def dense_score(self) -> Tensor:
        if self.score is None:
            raise ValueError("growth by score needs the dense gradient or momentum of the matrix")
        return self.score()

    def mean_score(self) -> float:
        """The mean magnitude of the score over the existing weights."""
        along = self.dense_score().flatten().cpu()[self.topology.positions]
        return float(along.abs().mean()) if len(along) else 0.0


Network = Sequence[Callable[[], ActiveWeights]]
"""Each matrix of a network when it is asked for: gathering one takes memory, and a rewiring holds one at a time."""


@dataclass(frozen=True)
class Rewiring:
    """What a rewiring does to one matrix.

    ``removed`` marks entries of the topology ``before``, ``grown`` are positions in the matrix (sorted; a position
    removed just now may be among them, and starts anew all the same).
    """

    before: Topology
    removed: Tensor
    grown: Tensor

    @property
    def removed_positions(self) -> Tensor:
        """Which positions go, sorted."""
        return self.before.positions[self.removed]

    @property
    def topology(self) -> Topology:
        """Which positions exist afterwards."""
        return self.before.without(self.removed).joined(self.grown)


def rewire(
    method: Method,
    network: Network,
    rate: float,
    generator: torch.Generator,
    threshold: AdaptiveThreshold | None = None,
) -> Iterator[Rewiring]:
    """Remove the fraction ``rate`` of the weights and grow as many, as the method says; one matrix after the other.

    The number of weights in the network is the same before and after. ``threshold`` is what removal by threshold
    remembers from one rewiring to the next. A matrix may be changed as soon as its rewiring is there.
    """
    if not method.rewires:
        raise ValueError(f"method {method.name!r} grows nothing; there is nothing to rewire")
    return _rewirings(_Plan(method, network, rate, threshold or AdaptiveThreshold()), generator)


def prune(network: Network, counts: Sequence[int]) -> Iterator[Rewiring]:
    """Remove the smallest weights of every matrix until as many as ``counts`` says are left; none grows."""
    for matrix, count in zip(network, counts, strict=True):
        yield _pruning(matrix(), count)


def _pruning(matrix: ActiveWeights, count: int) -> Rewiring:
    surplus = max(matrix.topology.count - count, 0)
    removed = by_magnitude(matrix.values, surplus / max(matrix.topology.count, 1))
    return Rewiring(matrix.topology, removed, torch.empty(0, dtype=torch.int64))


def _rewirings(plan: _Plan, generator: torch.Generator) -> Iterator[Rewiring]:
    for index in range(len(plan.network)):
        yield _rewiring(plan, index, generator)


def _rewiring(plan: _Plan, index: int, generator: torch.Generator) -> Rewiring:
    assert plan.method.growth is not None
    growth = GROWTHS[plan.method.growth]
    matrix = plan.network[index]()
    removed = plan.removed(index, matrix)
    staying = false_indices(removed)
    gradients = None if matrix.gradients is None else matrix.gradients[staying]
    freed = AfterRemoval(matrix.topology.without(removed), matrix.topology, matrix.values[staying], gradients)
    if growth.elsewhere and plan.has_room_elsewhere(freed):
        freed = freed.keeping_clear_of_removed()
    grown = growth.choose(freed.taken, plan.quotas(index, freed), generator, matrix.dense_score)
    return Rewiring(matrix.topology, removed, grown)


class _Plan:
    """What a rewiring decides over all matrices together; what is a matrix's own affair is decided when it is there."""

    def __init__(self, method: Method, network: Network, rate: float, threshold: AdaptiveThreshold) -> None:
        self.method = method
        self.network = network
        self._rates = [rate] * len(network)
        self._removed: list[Tensor] | None = None
        self._elsewhere: bool | None = None
        self._counts: list[int] | None = None
        momentum: list[float | None] = [None] * len(network)
        if method.signal == "momentum":
            momentum = [matrix().mean_score() for matrix in network]
        if method.removal == "magnitude-sparing-dense":
            topologies = [matrix().topology for matrix in network]
            self._rates = sparing_rates(topologies, [mean or 0.0 for mean in momentum], rate)
        elif method.removal == "threshold":
            self._removed = threshold.remove((matrix().values for matrix in network), rate)
        elif method.pool == "network":
            self._removed = self._remove([matrix() for matrix in network], rate)
        if method.redistribution in LAYER_REDISTRIBUTIONS:
            self._divide_over_layers(momentum)

    def removed(self, index: int, matrix: ActiveWeights) -> Tensor:
        """Marks of the weights of a matrix that go."""
        if self._removed is not None:
            return self._removed[index]
        return self._remove([matrix], self._rates[index])[0]

    def quotas(self, index: int, freed: AfterRemoval) -> list[Quota]:
        """How many weights grow where in a matrix."""
        if self._counts is not None:
            return [(freed.topology.whole, self._counts[index])]
        return REDISTRIBUTIONS[self.method.redistribution](freed)

    def has_room_elsewhere(self, freed: AfterRemoval) -> bool:
        """Whether growth can keep clear of what was removed just now; if not, there might be nowhere else to go."""
        if self._elsewhere is not None:
            return self._elsewhere
        clear = freed.keeping_clear_of_removed()
        return min(clear.room(span) for _, span in clear.topology.gate_spans()) >= clear.count

    def _remove(self, matrices: Sequence[ActiveWeights], rate: float) -> list[Tensor]:
        criterion = "magnitude" if self.method.removal == "magnitude-sparing-dense" else self.method.removal
        assert criterion is not None
        topologies = [matrix.topology for matrix in matrices]
        return remove(topologies, [matrix.values for matrix in matrices], criterion, self.method.pool, rate)

    def _divide_over_layers(self, momentum: Sequence[float | None]) -> None:
        layers = [self._layer(index, mean) for index, mean in enumerate(momentum)]
        clear = [replace(layer, room=layer.room - layer.freed) for layer in layers]
        self._elsewhere = sum(layer.room for layer in clear) >= sum(layer.freed for layer in clear)
        assert self.method.growth is not None
        if GROWTHS[self.method.growth].elsewhere and self._elsewhere:
            layers = clear
        self._counts = LAYER_REDISTRIBUTIONS[self.method.redistribution](layers)

    def _layer(self, index: int, momentum: float | None) -> MatrixCounts:
        matrix = self.network[index]()
        freed = int(self.removed(index, matrix).sum())
        kept = matrix.topology.count - freed
        return MatrixCounts(kept, freed, matrix.topology.size - kept, momentum)
