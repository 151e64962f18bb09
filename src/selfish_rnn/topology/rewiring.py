"""Rewiring: one removal and growth over all sparse matrices of a network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from selfish_rnn.topology.methods import Method
from selfish_rnn.topology.redistribution import AfterRemoval, MatrixCounts, Quota
from selfish_rnn.topology.removal import remove, remove_over_network
from selfish_rnn.topology.sampling import false_indices
from selfish_rnn.topology.topology import ActiveWeights, Network, Topology


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
    def kept_positions(self) -> Tensor:
        """Which positions stay, sorted; one that is removed and grows again is not among them."""
        return self.before.positions[~self.removed]

    @property
    def topology(self) -> Topology:
        """Which positions exist afterwards."""
        return self.before.without(self.removed).joined(self.grown)


def rewire(
    method: Method,
    network: Network,
    rate: float,
    generator: torch.Generator,
    state: dict[str, Any] | None = None,
) -> Iterator[Rewiring]:
    """Remove the fraction ``rate`` of the weights and grow as many, as the method says; one matrix after the other.

    The number of weights in the network is the same before and after. ``state`` is what the parts of the method keep
    from one rewiring to the next, :meth:`Method.first_state` at first, and is brought up to date. A matrix may be
    changed as soon as its rewiring is there.
    """
    if not method.rewires:
        raise ValueError(f"method {method.name!r} grows nothing; there is nothing to rewire")
    state = method.first_state() if state is None else state
    return _rewirings(_Plan(_Removing(method, len(network), generator, state), network, rate), generator)


def prune(method: Method, network: Network, counts: Sequence[int], generator: torch.Generator) -> Iterator[Rewiring]:
    """Remove weights of every matrix, as the method says, until as many as ``counts`` says are left; none grows."""
    removing = _Removing(method, len(network), generator, method.first_state())
    for index, count in enumerate(counts):
        yield _pruning(removing, index, network[index](), count)


def _pruning(removing: _Removing, index: int, matrix: ActiveWeights, count: int) -> Rewiring:
    surplus = max(matrix.topology.count - count, 0)
    removed = removing.matrix(index, matrix, surplus / max(matrix.topology.count, 1))
    return Rewiring(matrix.topology, removed, torch.empty(0, dtype=torch.int64))


def _rewirings(plan: _Plan, generator: torch.Generator) -> Iterator[Rewiring]:
    for index in range(len(plan.network)):
        yield _rewiring(plan, index, generator)


def _rewiring(plan: _Plan, index: int, generator: torch.Generator) -> Rewiring:
    growth = plan.growth
    matrix = plan.network[index]()
    removed = plan.removed(index, matrix)
    staying = false_indices(removed)
    gradients = None if matrix.gradients is None else matrix.gradients[staying]
    freed = AfterRemoval(matrix.topology.without(removed), matrix.topology, matrix.values[staying], gradients)
    if growth.elsewhere and plan.has_room_elsewhere(freed):
        freed = freed.keeping_clear_of_removed()
    needs: dict[str, Any] = {"generator": generator} if growth.random else {}
    if growth.signal is not None:
        needs["score"] = matrix.dense_score()
    return Rewiring(matrix.topology, removed, growth.choose(freed.taken, plan.quotas(index, freed), **needs))


class _Removing:
    """The removal of a method at work on a network, with what it asks for."""

    def __init__(self, method: Method, matrices: int, generator: torch.Generator, state: dict[str, Any]) -> None:
        assert method.removal is not None
        self.method = method
        self.part = method.removal
        self._state = state
        # A seed for every matrix: the removal of one is asked for more than once, and must say the same each time.
        self._seeds = torch.randint(2**62, (matrices,), generator=generator).tolist() if self.part.random else []

    def matrix(self, index: int, matrix: ActiveWeights, rate: float) -> Tensor:
        """Marks of the weights of one matrix that go."""
        return remove(self.part, matrix.topology, matrix.values, self.method.pool, rate, **self._needs(index))

    def network(self, network: Network, rates: Sequence[float], rate: float) -> list[Tensor]:
        """Marks of the weights of all matrices that go, with one look at all of them; brings the state up to date."""
        if self.method.pool == "network" and not self.part.elementwise:
            removed = remove_over_network(self.part, [each().values for each in network], rate, **self._needs(0))
        else:
            removed = [self.matrix(index, each(), rates[index]) for index, each in enumerate(network)]
        if self.part.adapt is not None:
            count, existing = sum(int(marks.sum()) for marks in removed), sum(map(len, removed))
            self._state["removal"] = self.part.adapt(self._state["removal"], rate, count, existing)
        return removed

    def _needs(self, index: int) -> dict[str, Any]:
        needs = {} if self.part.state is None else {"state": self._state["removal"]}
        if self.part.random:
            needs["generator"] = torch.Generator().manual_seed(self._seeds[index])
        return needs


class _Plan:
    """What a rewiring decides over all matrices together; what is a matrix's own affair is decided when it is there."""

    def __init__(self, removing: _Removing, network: Network, rate: float) -> None:
        assert removing.method.growth is not None
        self.growth = removing.method.growth
        self.redistribution = removing.method.redistribution
        self.network = network
        self._removing = removing
        self._rates = [rate] * len(network)
        self._removed: list[Tensor] | None = None
        self._elsewhere: bool | None = None
        self._counts: list[int] | None = None
        removal = removing.part
        scores: list[float | None] = [None] * len(network)
        if removal.signal is not None or self.redistribution.signal is not None:
            scores = [matrix().mean_score() for matrix in network]
        if removal.rates is not None:
            densities = [matrix().topology.density for matrix in network]
            self._rates = removal.rates(densities, [score or 0.0 for score in scores], rate)
        if removing.method.pool == "network" or removal.state is not None:
            self._removed = removing.network(network, self._rates, rate)
        if self.redistribution.counts is not None:
            layers = [self._layer(index, score) for index, score in enumerate(scores)]
            clear = [replace(layer, room=layer.room - layer.freed) for layer in layers]
            self._elsewhere = sum(layer.room for layer in clear) >= sum(layer.freed for layer in clear)
            self._counts = self.redistribution.counts(clear if self.growth.elsewhere and self._elsewhere else layers)

    def removed(self, index: int, matrix: ActiveWeights) -> Tensor:
        """Marks of the weights of a matrix that go."""
        if self._removed is not None:
            return self._removed[index]
        return self._removing.matrix(index, matrix, self._rates[index])

    def quotas(self, index: int, freed: AfterRemoval) -> list[Quota]:
        """How many weights grow where in a matrix."""
        if self._counts is not None:
            return [(freed.topology.whole, self._counts[index])]
        assert self.redistribution.quotas is not None
        return self.redistribution.quotas(freed)

    def has_room_elsewhere(self, freed: AfterRemoval) -> bool:
        """Whether growth can keep clear of what was removed just now; if not, there might be nowhere else to go."""
        if self._elsewhere is not None:
            return self._elsewhere
        clear = freed.keeping_clear_of_removed()
        return min(clear.room(span) for _, span in clear.topology.gate_spans()) >= clear.count

    def _layer(self, index: int, score: float | None) -> MatrixCounts:
        matrix = self.network[index]()
        freed = int(self.removed(index, matrix).sum())
        kept = matrix.topology.count - freed
        return MatrixCounts(kept, freed, matrix.topology.size - kept, score)
