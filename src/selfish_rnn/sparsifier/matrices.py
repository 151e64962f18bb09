"""The weights of a model as a method sees them, and the topologies they begin with."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from selfish_rnn.sparsifier.deferred import is_deferred
from selfish_rnn.sparsifier.registry import joined_gates
from selfish_rnn.sparsifier.selection import Chosen, unpackable
from selfish_rnn.sparsifier.weights import SparseWeight, StoredWeight
from selfish_rnn.topology import ActiveWeights, GateLayout, Method, Rewiring, Topology


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


def check_topology(topology: str, masks: Mapping[str, Tensor] | None) -> None:
    """Refuse two ways of giving a topology, and others than there are."""
    if topology not in ("random", "nonzero"):
        raise ValueError(f'topology is "random" or "nonzero", got {topology!r}; masks go into masks=')
    if masks is not None and topology == "nonzero":
        raise ValueError('masks= gives a topology, and so does topology="nonzero": leave one of them out')


def topology_given(
    chosen: Sequence[Chosen],
    topology: str,
    masks: Mapping[str, Tensor] | None,
    method: Method,
    sparsity: float | None,
) -> bool:
    """Whether the topology is given, by masks or by the model, and not drawn."""
    stored = [each.name for each in chosen if each.stored]
    obstacle = unpackable(method)
    if stored and obstacle is not None:
        raise ValueError(f"{stored[0]} is packed, but {obstacle}")
    if stored and masks is not None:
        raise ValueError(f"{stored[0]} is packed and has its topology already: leave masks= out")
    if stored and len(stored) < len(chosen) and topology == "random":
        other = next(each.name for each in chosen if not each.stored)
        raise ValueError(
            f"{stored[0]} is packed and has a topology, {other} has none: exclude one of them, or bind with "
            'topology="nonzero"'
        )
    existing = masks is not None or topology == "nonzero" or bool(stored)
    if existing and method.prunes:
        raise ValueError(f"method {method.name!r} starts with a dense network and takes no existing topology")
    if not existing and sparsity is None:
        raise ValueError('sparsity= is needed, or topology="nonzero" or masks=, which have one already')
    return existing


def existing_topologies(
    chosen: Sequence[Chosen], masks: Mapping[str, Tensor] | None, sparsity: float | None
) -> list[Topology]:
    """The topologies that masks give, or without them the weights that are not zero; of about this sparsity."""
    topologies = []
    for name, weight, gates in chosen:
        if isinstance(weight, StoredWeight):
            topologies.append(weight.sparse_weight(name, gates).topology)
            continue
        if masks is not None and name not in masks:
            raise ValueError(f"masks= has the names of weights, such as {name}, not those of modules or patterns")
        mask = weight.detach() if masks is None else masks[name]
        if mask.shape != weight.shape:
            raise ValueError(
                f"the mask of {name} is of shape {tuple(mask.shape)}, the weight of shape {tuple(weight.shape)}"
            )
        topologies.append(Topology.from_mask(mask, gates))
        if topologies[-1].count == 0:
            raise ValueError(f"no weight of {name} exists: all of it is zero; exclude it, or leave one at least")
    found = 1 - sum(each.count for each in topologies) / sum(each.size for each in topologies)
    if sparsity is not None and abs(found - sparsity) > 0.01:
        raise ValueError(f"the existing topology has sparsity {found:.4g}, not {sparsity:g}: leave sparsity= out")
    return topologies


def saved_topologies(
    weights: Sequence[SparseWeight], masks: Mapping[str, Tensor], shapes: Mapping[str, Sequence[int]]
) -> list[Topology]:
    """The topologies of a saved state, which must be of these weights."""
    differing = sorted(set(masks) ^ {weight.name for weight in weights})
    if differing:
        raise ValueError(f"the saved topology is of other weights than this model's; they differ in {differing}")
    for weight in weights:
        if tuple(shapes[weight.name]) != weight.shape:
            raise ValueError(
                f"{weight.name}: the saved topology is of shape {tuple(shapes[weight.name])}, "
                f"the matrix of shape {weight.shape}"
            )
    return [Topology.from_saved(masks[weight.name], weight.shape, weight.gates) for weight in weights]


def warn_of_zeros(chosen: Sequence[Chosen]) -> None:
    """Warn if a topology is drawn for a model that seems to have one; a matrix of zeros only is a way to begin."""
    parameters = [each.weight for each in chosen if isinstance(each.weight, nn.Parameter)]
    begun = [each for each in parameters if not (each.is_meta or is_deferred(each)) and bool(each.any())]
    existing, size = sum(int(each.count_nonzero()) for each in begun), sum(each.numel() for each in begun)
    if existing < size / 2:
        warnings.warn(
            f"only {existing:,} of the model's {size:,} weights are not zero: it seems to be sparse already, and a new "
            'topology is drawn, which deletes most of them. To keep them bind it with topology="nonzero"',
            stacklevel=3,
        )
