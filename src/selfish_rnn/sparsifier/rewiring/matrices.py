"""The weights of a model as a method sees them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from selfish_rnn.sparsifier.ranks import refuse_parted_ranks, renew_reducers
from selfish_rnn.sparsifier.registry import joined_gates
from selfish_rnn.sparsifier.selection import Chosen
from selfish_rnn.sparsifier.weights import SparseWeight
from selfish_rnn.system import give_back_reused_memory
from selfish_rnn.topology import ActiveWeights, GateLayout, Rewiring, Topology


class Matrix:
    """What a method takes for one matrix: a weight, or several whose rows, one below the other, hold its gates."""

    def __init__(self, parts: Sequence[SparseWeight], gates: GateLayout) -> None:
        self.parts = parts
        self.gates = gates

    @property
    def frozen(self) -> bool:
        return any(part.frozen for part in self.parts)

    @property
    def count(self) -> int:
        return sum(part.count for part in self.parts)

    def existing(self, score: Callable[[SparseWeight], Tensor]) -> ActiveWeights:
        """The existing weights of all parts; ``score`` gives that of one."""
        if len(self.parts) == 1:
            return self.parts[0].existing(partial(score, self.parts[0]))
        found = [part.existing() for part in self.parts]
        sizes = [0, *(part.size for part in self.parts)]
        starts = itertools.accumulate(sizes[:-1])
        topology = Topology(
            (self.gates.rows, *self.parts[0].shape[1:]),
            self.gates,
            torch.cat([each.topology.positions + start for each, start in zip(found, starts, strict=True)]),
        )
        gradients = [each.gradients for each in found if each.gradients is not None]
        return ActiveWeights(
            topology,
            torch.cat([each.values for each in found]),
            torch.cat(gradients) if len(gradients) == len(found) else None,
            lambda: torch.cat([score(part) for part in self.parts]),
        )

    def rewire(self, rewiring: Rewiring, optimizers: Sequence[Optimizer]) -> None:
        """Let every part take on what it has of a new topology."""
        if len(self.parts) == 1:
            self.parts[0].rewire(rewiring, optimizers)
            return
        for part, own in zip(self.parts, rewiring.divided([part.shape[0] for part in self.parts]), strict=True):
            part.rewire(own, optimizers)


class _Joined(NamedTuple):
    """Which of the chosen weights, by their numbers, are one matrix to a method: most are so alone."""

    numbers: tuple[int, ...]
    shape: tuple[int, ...]
    gates: GateLayout


class Matrices:
    """The chosen weights of a model as the matrices that a method sees, in the order of their first weights."""

    def __init__(self, model: nn.Module, chosen: Sequence[Chosen]) -> None:
        numbers = {id(each.weight): number for number, each in enumerate(chosen)}
        alone = {number: _Joined((number,), each.shape, each.gates) for number, each in enumerate(chosen)}
        for parts in joined_gates(model):
            found = {numbers[each]: gates for each, gates in parts.items() if numbers.get(each) in alone}
            if len(found) > 1:
                gates = GateLayout(
                    tuple(name for part in found.values() for name in part.names),
                    tuple(size for part in found.values() for size in part.sizes),
                )
                for number in found:
                    del alone[number]
                alone[min(found)] = _Joined(tuple(found), (gates.rows, *chosen[min(found)].shape[1:]), gates)
        self._joined = [alone[number] for number in sorted(alone)]

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        return [each.shape for each in self._joined]

    def of(self, weights: Sequence[SparseWeight]) -> list[Matrix]:
        """The matrices of these weights, which stand for the chosen ones."""
        return [Matrix([weights[number] for number in each.numbers], each.gates) for each in self._joined]

    def counts(self, topologies: Sequence[Topology]) -> list[int]:
        """How many weights each matrix has, if the chosen weights have these topologies."""
        return [sum(topologies[number].count for number in each.numbers) for each in self._joined]

    def random_topologies(
        self, chosen: Sequence[Chosen], counts: Sequence[int], generator: torch.Generator
    ) -> list[Topology]:
        """For every weight a topology; so many positions are drawn from every whole matrix."""
        topologies: dict[int, Topology] = {}
        for (numbers, shape, gates), count in zip(self._joined, counts, strict=True):
            whole = Topology.random(shape, gates, count, generator)
            parts = whole.divided([chosen[number].shape[0] for number in numbers])
            for number, part in zip(numbers, parts, strict=True):
                topologies[number] = replace(part, gates=chosen[number].gates)
        return [topologies[number] for number in range(len(chosen))]


def rewire_matrices(
    matrices: Sequence[Matrix], rewirings: Iterator[Rewiring], optimizers: Sequence[Optimizer], dense_gradients: bool
) -> int:
    """Rewire matrices, the same way on every rank; how many weights went.

    With ``dense_gradients`` gradients stay where no weight exists.
    """
    weights = [weight for matrix in matrices for weight in matrix.parts]
    sizes = [weight.parameter.numel() for weight in weights]
    removed = 0
    for matrix in matrices:
        rewiring = next(rewirings)  # zip would hold on to the one before
        matrix.rewire(rewiring, optimizers)
        if not dense_gradients:
            for weight in matrix.parts:
                weight.mask_gradient()
        removed += int(rewiring.removed.sum())
        del rewiring
        give_back_reused_memory()
    refuse_parted_ranks(weights)
    parameters = zip((weight.parameter for weight in weights), sizes, strict=True)
    renew_reducers([parameter for parameter, size in parameters if parameter.numel() != size])
    return removed
