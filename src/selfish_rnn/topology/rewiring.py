"""Rewiring: one removal and growth over all sparse matrices of a network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from selfish_rnn.topology.methods import Method
from selfish_rnn.topology.redistribution import AfterRemoval, MatrixCounts
from selfish_rnn.topology.removal import (
    POOLS,
    Pool,
    Removal,
    Signal,
    gradients_for,
    prune_over_network,
    remove,
    remove_over_network,
)
from selfish_rnn.topology.sampling import contains, false_indices
from selfish_rnn.topology.topology import ActiveWeights, LayerTopology, Network, Topology


@dataclass(frozen=True)
class Rewiring:
    """The effect of a rewiring on one matrix.

    ``removed`` marks entries of the topology ``before``. ``grown`` are sorted positions in the matrix. A position that
    was just removed may be among them. Its weight starts at zero like every grown weight.
    """

    before: Topology
    removed: Tensor
    grown: Tensor

    @classmethod
    def between(cls, before: Topology, after: Topology) -> Rewiring:
        """Return the smallest rewiring that turns one topology into another."""
        old, new = before.positions.numpy(), after.positions.numpy()
        removed, grown = ~contains(new, old), new[~contains(old, new)]
        return cls(before, torch.from_numpy(removed), torch.from_numpy(grown))

    @property
    def removed_positions(self) -> Tensor:
        """Sorted positions that are removed."""
        return self.before.positions[self.removed]

    @property
    def kept_positions(self) -> Tensor:
        """Sorted positions that survive, without those that are removed and grow again."""
        return self.before.positions[~self.removed]

    @property
    def topology(self) -> Topology:
        """Topology afterwards."""
        return self.before.without(self.removed).joined(self.grown)

    def then(self, later: Rewiring) -> Rewiring:
        """Return one rewiring for this one, which only removes, and another after it."""
        removed = self.removed.clone()
        removed[~self.removed] = later.removed
        return Rewiring(self.before, removed, later.grown)

    def divided(self, rows: Sequence[int]) -> Iterator[Rewiring]:
        """Split the rewiring from the top into matrices of ``rows`` rows each, without gates."""
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
    method: Method,
    network: Network,
    rate: float,
    generator: torch.Generator,
    state: dict[str, Any] | None = None,
    counts: Sequence[PruneCount] | None = None,
    progress: float = 0.0,
) -> Iterator[Rewiring]:
    """Remove the fraction ``rate`` of the weights and grow the same number; yield the rewiring of each matrix.

    The number of weights in the network is the same before and after. A method that also prunes takes ``counts``, as
    :func:`prune` does, and rewires the weights that remain.

    ``state`` is the state of the parts of the method, first :meth:`Method.first_state`. It is updated in place.
    ``progress`` goes from 0 at the start of the run to 1 at its end. A matrix may be changed as soon as its rewiring is
    returned.
    """
    if not method.rewires:
        raise ValueError(f"method {method.name!r} grows no weights, so it cannot rewire")
    if method.prunes != (counts is not None):
        raise ValueError(f"method {method.name!r} {'prunes too and needs' if method.prunes else 'takes no'} counts=")
    state = method.first_state() if state is None else state
    if counts is None:
        step = _RemovalStep(method, len(network), generator, state, progress)
        return map(_RewiringPlan(step, network, rate, generator).rewiring, range(len(network)))
    pruning = _PruningPlan(method, network, counts, generator, progress)
    remaining = [partial(pruning.remaining, index) for index in range(len(network))]
    plan = _RewiringPlan(_RemovalStep(method, len(network), generator, state, progress), remaining, rate, generator)
    return (pruning.rewiring(index).then(plan.rewiring(index)) for index in range(len(network)))


PruneCount = int | Sequence[int]
"""Number of weights that a matrix is pruned to, or that of each of its gates."""


def prune(
    method: Method,
    network: Network,
    counts: Sequence[PruneCount],
    generator: torch.Generator,
    progress: float = 0.0,
) -> Iterator[Rewiring]:
    """Remove weights until each matrix has its number of ``counts``; yield the rewiring of each matrix.

    If the method prunes over the network, only the sum of ``counts`` is binding.
    """
    return map(_PruningPlan(method, network, counts, generator, progress).rewiring, range(len(network)))


class _RemovalStep:
    """The removal of a method, with the generators and the state that it requests."""

    def __init__(
        self, method: Method, matrices: int, generator: torch.Generator, state: dict[str, Any], progress: float
    ) -> None:
        assert method.removal is not None
        self.method = method
        self.part = method.removal
        self._state = state
        self._progress = progress
        # One seed per matrix: the removal of a matrix may run more than once and must choose the same weights.
        self._seeds = torch.randint(2**62, (matrices,), generator=generator).tolist() if self.part.random else []

    def matrix(self, index: int, matrix: ActiveWeights, pool: Pool, rate: float) -> Tensor:
        """Mark the weights of one matrix to remove."""
        return remove(self.part, matrix, pool, rate, **self._needs(index))

    def network(self, network: Network, rate: float) -> list[Tensor]:
        """Mark the fraction ``rate`` of the weights, ranked over all matrices."""
        values, needs = self._of_network(network)
        return remove_over_network(self.part, values, rate, **needs)

    def pruned(self, network: Network, count: int) -> list[Tensor]:
        """Mark exactly ``count`` weights, ranked over all matrices."""
        values, needs = self._of_network(network)
        return prune_over_network(self.part, values, count, **needs)

    def _of_network(self, network: Network) -> tuple[list[Tensor], dict[str, Any]]:
        weights = [_for_removal(self.part, matrix()) for matrix in network]
        needs = self._needs(0)
        if self.part.gradients:
            needs["gradients"] = torch.cat([gradients for _, gradients in weights if gradients is not None])
        return [values for values, _ in weights], needs

    def rewired(self, network: Network, rates: Sequence[float], rate: float) -> list[Tensor]:
        """Mark the weights of all matrices to remove, and update the state."""
        pool = self.method.pool
        if pool.network and not self.part.elementwise:
            removed = self.network(network, rate)
        else:
            removed = [self.matrix(index, matrix(), pool, rates[index]) for index, matrix in enumerate(network)]
        if self.part.adapt is not None:
            count, existing = sum(int(marks.sum()) for marks in removed), sum(map(len, removed))
            self._state["removal"] = self.part.adapt(self._state["removal"], rate, count, existing)
        return removed

    def _needs(self, index: int) -> dict[str, Any]:
        needs = {} if self.part.state is None else {"state": self._state["removal"]}
        if self.part.random:
            needs["generator"] = torch.Generator().manual_seed(self._seeds[index])
        if self.part.progress:
            needs["progress"] = self._progress
        return needs


def _for_removal(part: Removal, matrix: ActiveWeights) -> tuple[Tensor, Tensor | None]:
    return matrix.values, gradients_for(part, matrix)


class _PruningPlan:
    """The weights that a method prunes from each matrix."""

    def __init__(
        self,
        method: Method,
        network: Network,
        counts: Sequence[PruneCount],
        generator: torch.Generator,
        progress: float,
    ) -> None:
        assert method.pruning is not None
        self._network = network
        self._counts = counts
        self._step = _RemovalStep(method, len(network), generator, method.first_state(), progress)
        self._marks: list[Tensor] | None = None
        if method.pruning.network:
            if not all(isinstance(count, int) for count in counts):
                raise ValueError(f"pruning {method.pruning.name} ranks all matrices, so gates have no counts")
            existing = sum(matrix().topology.count for matrix in network)
            self._marks = self._step.pruned(network, max(existing - sum(cast(Sequence[int], counts)), 0))

    def rewiring(self, index: int) -> Rewiring:
        """Return the pruning of one matrix."""
        matrix = self._network[index]()
        return Rewiring(matrix.topology, self._pruned(index, matrix), torch.empty(0, dtype=torch.int64))

    def remaining(self, index: int) -> ActiveWeights:
        """Return the weights of one matrix that are left."""
        matrix = self._network[index]()
        return matrix.without(self._pruned(index, matrix))

    def _pruned(self, index: int, matrix: ActiveWeights) -> Tensor:
        if self._marks is not None:
            return self._marks[index]
        counts, topology = self._counts[index], matrix.topology
        if isinstance(counts, int):
            return self._step.matrix(index, matrix, POOLS["matrix"], _excess(topology.count, counts))
        # Each gate is pruned to its own number, as a matrix would be.
        marks = torch.zeros(topology.count, dtype=torch.bool)
        for (_, span), count in zip(topology.gate_spans(), counts, strict=True):
            entries = topology.within(span)
            outside = torch.ones(topology.count, dtype=torch.bool)
            outside[entries] = False
            gate = matrix.without(outside)
            marks[entries] = self._step.matrix(index, gate, POOLS["matrix"], _excess(gate.topology.count, count))
        return marks


def _excess(existing: int, count: int) -> float:
    """Return the fraction of weights to remove."""
    return max(existing - count, 0) / max(existing, 1)


class _RewiringPlan:
    """The decisions of a rewiring: those over all matrices at once, then those of each matrix when it is visited."""

    def __init__(self, step: _RemovalStep, network: Network, rate: float, generator: torch.Generator) -> None:
        removal, redistribution, growth = step.part, step.method.redistribution, step.method.growth
        assert growth is not None
        self.growth, self.redistribution = growth, redistribution
        self.network = network
        self._removal_step = step
        self._generator = generator
        self._rates = [rate] * len(network)
        self._removed: list[Tensor] | None = None
        self._avoid_removed: bool | None = None
        self._counts: list[int] | None = None
        scores = [0.0] * len(network)
        if removal.rates is not None or redistribution.signal is not None:
            scores = [matrix().mean_score() for matrix in network]
        if removal.rates is not None:
            self._rates = removal.rates([matrix().topology.density for matrix in network], scores, rate)
        if step.method.pool.network or removal.state is not None:
            self._removed = step.rewired(network, self._rates, rate)
        if redistribution.counts is not None:
            layers = [self._layer(index, score) for index, score in enumerate(scores)]
            reduced = [replace(layer, capacity=layer.capacity - layer.removed) for layer in layers]
            self._avoid_removed = sum(layer.capacity for layer in reduced) >= sum(layer.removed for layer in reduced)
            self._counts = redistribution.counts(reduced if growth.avoid_removed and self._avoid_removed else layers)

    def rewiring(self, index: int) -> Rewiring:
        """Return the rewiring of one matrix."""
        matrix = self.network[index]()
        before, removed = matrix.topology, self._marks(index, matrix)
        survivors = false_indices(removed)
        gradients = gradients_for(self.redistribution, matrix)
        if gradients is not None:
            gradients = gradients[survivors]
        freed = AfterRemoval(before.without(removed), before, matrix.values[survivors], gradients)
        if self.growth.avoid_removed:
            freed = self._avoiding_removed(freed)
        if self.redistribution.quotas is not None:
            quotas = self.redistribution.quotas(freed)
        else:
            assert self._counts is not None
            quotas = [(before.whole, self._counts[index])]
        needs: dict[str, Any] = {"generator": self._generator} if self.growth.random else {}
        if self.growth.signal is not None:
            sampled = not Signal(self.growth.signal).dense
            needs.update({"gradient_at": matrix.sampled_gradient} if sampled else {"score": matrix.dense_score()})
        grown = self.growth.choose(freed.occupied, quotas, **needs)
        self._check_growth(grown, freed.occupied, quotas)
        return Rewiring(before, removed, grown)

    def _check_growth(self, grown: Tensor, occupied: Topology, quotas: Sequence[tuple[Any, int]]) -> None:
        """Raise if a growth does not return as many empty positions as its quotas ask for."""
        count, expected = len(grown), sum(number for _, number in quotas)
        if count != expected:
            raise ValueError(
                f"growth {self.growth.name!r} returned {count:,} positions, but its quotas are {expected:,}"
            )
        if not count:
            return
        inside = int(grown[0]) >= 0 and int(grown[-1]) < occupied.size
        increasing = bool((grown[1:] > grown[:-1]).all())
        if not inside or not increasing or contains(occupied.positions.numpy(), grown.numpy()).any():
            raise ValueError(
                f"growth {self.growth.name!r} must return empty positions from 0 to {occupied.size - 1:,}, sorted, "
                "each once"
            )

    def _marks(self, index: int, matrix: ActiveWeights) -> Tensor:
        if self._removed is not None:
            return self._removed[index]
        return self._removal_step.matrix(index, matrix, self._removal_step.method.pool, self._rates[index])

    def _avoiding_removed(self, freed: AfterRemoval) -> AfterRemoval:
        """Exclude the positions that were just removed from growth, if every gate has enough capacity without them."""
        reduced = replace(freed, avoid_removed=True)
        if self._avoid_removed is None:
            fits = min(map(reduced.capacity, reduced.spans)) >= reduced.count
        else:
            fits = self._avoid_removed
        return reduced if fits else freed

    def _layer(self, index: int, score: float) -> MatrixCounts:
        matrix = self.network[index]()
        removed = int(self._marks(index, matrix).sum())
        survivors = matrix.topology.count - removed
        return MatrixCounts(survivors, removed, matrix.topology.size - survivors, score)
