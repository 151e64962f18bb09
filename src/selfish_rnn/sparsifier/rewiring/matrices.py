"""The weights of a model as a method sees them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from selfish_rnn.sparsifier.ranks import refuse_parted_ranks, renew_reducers
from selfish_rnn.sparsifier.registry import joined_gates, layer_weights
from selfish_rnn.sparsifier.selection import Chosen
from selfish_rnn.sparsifier.weights import SparseWeight
from selfish_rnn.system import give_back_reused_memory
from selfish_rnn.topology import ActiveWeights, GateLayout, LayerTopology, Pool, Rewiring, Topology


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
        existing = [part.existing() for part in self.parts]
        sizes = [0, *(part.size for part in self.parts)]
        starts = itertools.accumulate(sizes[:-1])
        topology = Topology(
            (self.gates.rows, *self.parts[0].shape[1:]),
            self.gates,
            torch.cat([each.topology.positions + start for each, start in zip(existing, starts, strict=True)]),
        )
        return _concatenated(existing, topology, lambda: self.score(score))

    def score(self, score: Callable[[SparseWeight], Tensor]) -> Tensor:
        """The dense score of all parts, one below the other."""
        return torch.cat([score(part) for part in self.parts])

    def rewire(self, rewiring: Rewiring, optimizers: Sequence[Optimizer]) -> None:
        """Let every part take on what it has of a new topology."""
        if len(self.parts) == 1:
            self.parts[0].rewire(rewiring, optimizers)
            return
        for part, own in zip(self.parts, rewiring.divided([part.shape[0] for part in self.parts]), strict=True):
            part.rewire(own, optimizers)


class Layer:
    """The matrices of one recurrent layer, for a method that ranks their weights together."""

    def __init__(self, matrices: Sequence[Matrix]) -> None:
        self.matrices = matrices

    @property
    def parts(self) -> list[SparseWeight]:
        """The weights of all matrices."""
        return [part for matrix in self.matrices for part in matrix.parts]

    def existing(self, score: Callable[[SparseWeight], Tensor]) -> ActiveWeights:
        """Return the existing weights of all matrices; ``score`` gives the dense score of one weight."""
        existing = [matrix.existing(score) for matrix in self.matrices]
        topology = LayerTopology.of([each.topology for each in existing])
        matrices = self.matrices
        return _concatenated(
            existing, topology, lambda: torch.cat([matrix.score(score).flatten() for matrix in matrices])
        )

    def rewire(self, rewiring: Rewiring, optimizers: Sequence[Optimizer]) -> None:
        """Rewire every matrix by its share of a rewiring of the layer."""
        for matrix, share in zip(self.matrices, rewiring.matrices(), strict=True):
            matrix.rewire(share, optimizers)


def _concatenated(existing: Sequence[ActiveWeights], topology: Topology, score: Callable[[], Tensor]) -> ActiveWeights:
    """Join existing weights; gradients only if all of them have any."""
    gradients = [each.gradients for each in existing if each.gradients is not None]
    return ActiveWeights(
        topology,
        torch.cat([each.values for each in existing]),
        torch.cat(gradients) if len(gradients) == len(existing) else None,
        score,
    )


class _Joined(NamedTuple):
    """Which of the chosen weights, by their numbers, are one matrix to a method: most are so alone."""

    numbers: tuple[int, ...]
    shape: tuple[int, ...]
    gates: GateLayout


class Matrices:
    """The chosen weights of a model as the matrices that a method sees, in the order of their first weights.

    A ``pool`` that is the layer joins the matrices of every recurrent layer.
    """

    def __init__(self, model: nn.Module, chosen: Sequence[Chosen], pool: Pool) -> None:
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
        self._layers = self._group_by_layer(model, numbers) if pool.layer else []

    def _group_by_layer(self, model: nn.Module, numbers: Mapping[int, int]) -> list[list[int]]:
        """The matrices, by their indices, of every layer of several matrices; each matrix belongs to one layer."""
        free = {number: index for index, joined in enumerate(self._joined) for number in joined.numbers}
        layers = []
        for weights in layer_weights(model):
            members = sorted({free[numbers[each]] for each in weights if numbers.get(each) in free})
            if len(members) > 1:
                layers.append(members)
                free = {number: index for number, index in free.items() if index not in members}
        return layers

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        return [each.shape for each in self._joined]

    def of(self, weights: Sequence[SparseWeight]) -> list[Matrix]:
        """The matrices of these weights, which stand for the chosen ones."""
        return [Matrix([weights[number] for number in each.numbers], each.gates) for each in self._joined]

    def rewired(self, weights: Sequence[SparseWeight]) -> list[Matrix | Layer]:
        """Return the matrices or layers of these weights that a method rewires, without frozen matrices."""
        matrices = self.of(weights)
        thawed = [[index for index in layer if not matrices[index].frozen] for layer in self._layers]
        layers = {layer[0]: Layer([matrices[index] for index in layer]) for layer in thawed if len(layer) > 1}
        inside = {index for layer in thawed if len(layer) > 1 for index in layer}
        return [
            layers.get(index, matrix)
            for index, matrix in enumerate(matrices)
            if index in layers or (index not in inside and not matrix.frozen)
        ]

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
    matrices: Sequence[Matrix | Layer],
    rewirings: Iterator[Rewiring],
    optimizers: Sequence[Optimizer],
    dense_gradients: bool,
) -> int:
    """Rewire matrices or layers, the same way on every rank; how many weights went.

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
