"""Rewiring: one removal and growth over all sparse matrices of a network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from selfish_rnn.topology.methods import Method
from selfish_rnn.topology.redistribution import AfterRemoval, MatrixCounts
from selfish_rnn.topology.removal import remove, remove_over_network
from selfish_rnn.topology.sampling import contains, false_indices
from selfish_rnn.topology.topology import ActiveWeights, LayerTopology, Network, Topology


@dataclass(frozen=True)
class Rewiring:
    """What a rewiring does to one matrix.

    ``removed`` marks entries of the topology ``before``, ``grown`` are positions in the matrix (sorted; a position
    removed just now may be among them, and starts anew all the same).
    """

    before: Topology
    removed: Tensor
    grown: Tensor

    @classmethod
    def between(cls, before: Topology, after: Topology) -> Rewiring:
        """The least that turns one topology into another."""
        old, new = before.positions.numpy(), after.positions.numpy()
        removed, grown = ~contains(new, old), new[~contains(old, new)]
        return cls(before, torch.from_numpy(removed), torch.from_numpy(grown))

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

    def divided(self, rows: Sequence[int]) -> Iterator[Rewiring]:
        """What it does to so many rows each, from the top; without gates."""
        return self._parts(lambda topology: topology.divided(rows))

    def matrices(self) -> Iterator[Rewiring]:
        """Yield the rewiring of each matrix of a layer."""
        return self._parts(lambda topology: cast(LayerTopology, topology).matrices())

    def _parts(self, divide: Callable[[Topology], Iterator[Topology]]) -> Iterator[Rewiring]:
        start = 0
        for before, grown in zip(divide(self.before), divide(replace(self.before, positions=self.grown)), strict=True):
            yield Rewiring(before, self.removed[start : start + before.count], grown.positions)
            start += before.count


def rewire(
    method: Method, network: Network, rate: float, generator: torch.Generator, state: dict[str, Any] | None = None
) -> Iterator[Rewiring]:
    """Remove the fraction ``rate`` of the weights and grow as many, as the method says; one matrix after the other.

    The number of weights in the network is the same before and after. ``state`` is what the parts of the method keep
    from one rewiring to the next, :meth:`Method.first_state` at first, and is brought up to date. A matrix may be
    changed as soon as its rewiring is there.
    """
    if not method.rewires:
        raise ValueError(f"method {method.name!r} grows nothing; there is nothing to rewire")
    removing = _Removing(method, len(network), generator, method.first_state() if state is None else state)
    return map(_Plan(removing, network, rate, generator).rewiring, range(len(network)))


def prune(method: Method, network: Network, counts: Sequence[int], generator: torch.Generator) -> Iterator[Rewiring]:
    """Remove weights of every matrix, as the method says, until as many as ``counts`` says are left; none grows."""
    removing = _Removing(method, len(network), generator, method.first_state())

    def pruning(index: int) -> Rewiring:
        matrix = network[index]()
        existing = matrix.topology.count
        removed = removing.matrix(index, matrix, max(existing - counts[index], 0) / max(existing, 1))
        return Rewiring(matrix.topology, removed, torch.empty(0, dtype=torch.int64))

    return map(pruning, range(len(network)))


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
        if self.method.pool.together and not self.part.elementwise:
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

    def __init__(self, removing: _Removing, network: Network, rate: float, generator: torch.Generator) -> None:
        removal, redistribution, growth = removing.part, removing.method.redistribution, removing.method.growth
        assert growth is not None
        self.growth, self.redistribution = growth, redistribution
        self.network = network
        self._removing = removing
        self._generator = generator
        self._rates = [rate] * len(network)
        self._removed: list[Tensor] | None = None
        self._elsewhere: bool | None = None
        self._counts: list[int] | None = None
        scores = [0.0] * len(network)
        if removal.signal is not None or redistribution.signal is not None:
            scores = [matrix().mean_score() for matrix in network]
        if removal.rates is not None:
            self._rates = removal.rates([matrix().topology.density for matrix in network], scores, rate)
        if removing.method.pool.together or removal.state is not None:
            self._removed = removing.network(network, self._rates, rate)
        if redistribution.counts is not None:
            layers = [self._layer(index, score) for index, score in enumerate(scores)]
            clear = [replace(layer, room=layer.room - layer.freed) for layer in layers]
            self._elsewhere = sum(layer.room for layer in clear) >= sum(layer.freed for layer in clear)
            self._counts = redistribution.counts(clear if growth.elsewhere and self._elsewhere else layers)

    def rewiring(self, index: int) -> Rewiring:
        """What happens to one matrix."""
        matrix = self.network[index]()
        before, removed = matrix.topology, self._marks(index, matrix)
        staying = false_indices(removed)
        asked = matrix.gradients if self.redistribution.gradients else None
        gradients = None if asked is None else asked[staying]
        freed = AfterRemoval(before.without(removed), before, matrix.values[staying], gradients)
        if self.growth.elsewhere:
            freed = self._growing_elsewhere(freed)
        if self.redistribution.quotas is not None:
            quotas = self.redistribution.quotas(freed)
        else:
            assert self._counts is not None
            quotas = [(before.whole, self._counts[index])]
        needs: dict[str, Any] = {"generator": self._generator} if self.growth.random else {}
        if self.growth.signal is not None:
            needs["score"] = matrix.dense_score()
        return Rewiring(before, removed, self.growth.choose(freed.taken, quotas, **needs))

    def _marks(self, index: int, matrix: ActiveWeights) -> Tensor:
        if self._removed is not None:
            return self._removed[index]
        return self._removing.matrix(index, matrix, self._rates[index])

    def _growing_elsewhere(self, freed: AfterRemoval) -> AfterRemoval:
        """The same with growth clear of what was removed just now; where there might be no other place, as it was."""
        clear = replace(freed, elsewhere=True)
        fits = min(map(clear.room, clear.spans)) >= clear.count if self._elsewhere is None else self._elsewhere
        return clear if fits else freed

    def _layer(self, index: int, score: float) -> MatrixCounts:
        matrix = self.network[index]()
        freed = int(self._marks(index, matrix).sum())
        kept = matrix.topology.count - freed
        return MatrixCounts(kept, freed, matrix.topology.size - kept, score)
