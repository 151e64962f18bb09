"""One rewiring: the matrices and layers a method sees, and the dense scores it needs."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from selfish_rnn.sparsifier.distributed import ParallelWrapper, mean_over_ranks, refuse_parted_ranks
from selfish_rnn.sparsifier.optimizer_state import keeps_momentum, momentum
from selfish_rnn.sparsifier.selection import Chosen, joined_gates, layer_weights
from selfish_rnn.sparsifier.weights import SparseWeight
from selfish_rnn.system import give_back_reused_memory
from selfish_rnn.topology import (
    ActiveWeights,
    GateLayout,
    LayerTopology,
    Method,
    Pool,
    Rewiring,
    Schedule,
    Signal,
    Topology,
)


@dataclass(frozen=True)
class Plan:
    """The rewirings of a run: ``rewirings`` in all, by themselves after every ``rewire_every`` steps if that is given.

    The first one has the ``prune_rate``, the others what the schedule makes of it.
    """

    method: Method
    schedule: Schedule
    prune_rate: float
    rewirings: int | None
    rewire_every: int | None

    def __post_init__(self) -> None:
        method, rewirings = self.method, self.rewirings
        if not 0 <= self.prune_rate <= 1:
            raise ValueError(f"prune_rate is the fraction of weights rewired, from 0 to 1; got {self.prune_rate}")
        if rewirings is not None and (not isinstance(rewirings, int) or rewirings < 1):
            raise ValueError(f"rewirings is the number of rewirings in the run, at least 1; got {rewirings}")
        if self.rewire_every is not None and self.rewire_every < 1:
            raise ValueError(f"rewire_every is a number of optimizer steps, at least 1; got {self.rewire_every}")
        if rewirings is None and (method.prunes or (method.rewires and self.schedule.decays)):
            raise ValueError(
                f"method {method.name!r} with a {self.schedule.name} schedule needs rewirings=, the number of "
                "rewirings in the run (the number of epochs if you call rewire() after each)"
            )

    def rate(self, rewiring: int) -> float:
        """The fraction of weights that a rewiring, from 1 on, removes and grows."""
        if not self.method.rewires:
            return 0.0
        progress = 0.0 if self.rewirings is None else min(rewiring / self.rewirings, 1.0)
        return self.schedule.rate(progress, self.prune_rate)

    def due(self, step: int) -> bool:
        """Whether a rewiring follows a step by itself."""
        return self.rewire_every is not None and step % self.rewire_every == 0


class DenseScores:
    """The dense gradients or momentum a method goes by, each kept no longer than it is needed.

    ``signal`` is the method's :attr:`~selfish_rnn.topology.Method.signal`. Momentum is that of the optimizer, which
    then is kept for all positions; with an optimizer that has none it is the gradient. A gradient is collected only
    inside :meth:`collecting`, or from :meth:`start` on.
    """

    def __init__(
        self, signal: Signal | None, weights: Sequence[SparseWeight], optimizers: Collection[Optimizer]
    ) -> None:
        self._signal = signal
        self.by_momentum = signal is not None and signal.kept_by_optimizer
        self._weights = weights
        self._optimizers = optimizers
        self._until_known = True

    @property
    def by_gradient(self) -> bool:
        """Whether it is gradients that are needed."""
        return self._signal is not None and not any(map(self.is_momentum_of, self._optimizers))

    def is_momentum_of(self, optimizer: Optimizer) -> bool:
        """Whether it is the momentum of this optimizer."""
        return self.by_momentum and keeps_momentum(optimizer)

    def in_momentum(self) -> bool:
        """Return whether gradients must stay dense to get into an optimizer's momentum.

        Before any optimizer is known they stay dense, unless the run is resumed and its optimizer has no momentum.
        """
        if not self._optimizers:
            return self.by_momentum and self._until_known
        return self.by_momentum and not self.by_gradient

    def resume(self, in_momentum: bool) -> None:
        """Continue as in the saved run, where :meth:`in_momentum` was this, until an optimizer is known."""
        self._until_known = in_momentum

    def start(self) -> None:
        """Collect the dense gradients of the backward passes to come, if they are needed."""
        if self.by_gradient:
            for weight in self._weights:
                weight.collect_gradient()

    @contextlib.contextmanager
    def collecting(self) -> Iterator[None]:
        """Keep the dense gradients of the backward passes in this block."""
        self.start()
        try:
            yield
        finally:
            for weight in self._weights:
                weight.stop_collecting()

    def score(self, weight: SparseWeight) -> Tensor:
        """The gradient or momentum of a whole matrix."""
        if self.by_gradient:
            if not weight.has_gradient:
                raise RuntimeError(
                    "this method goes by the gradient of weights that do not exist: put the pass before "
                    "rewire() in `with sparsifier.dense_gradients():`; of a packed model that is compiled, make that "
                    "pass with the model itself"
                )
            gradient = mean_over_ranks(weight.collected_gradient())
            if not torch.isfinite(gradient).all():
                raise FloatingPointError(
                    f"the gradient of {weight.name} that growth goes by is NaN or infinite: leave it out, and collect "
                    "that of another pass in `with sparsifier.dense_gradients():`"
                )
            return gradient
        if not any(optimizer.state for optimizer in self._optimizers):
            raise RuntimeError("this method goes by the momentum of the optimizer, which has made no step yet")
        remembered = (momentum(optimizer, weight.parameter) for optimizer in self._optimizers)
        return next((score for score in remembered if score is not None), torch.zeros_like(weight.parameter))

    def clear(self) -> None:
        """Forget the gradients: they have been used."""
        for weight in self._weights:
            weight.drop_gradient()


class Matrix:
    """What a method takes for one matrix: a weight, or several whose rows, one below the other, hold its gates."""

    def __init__(self, parts: Sequence[SparseWeight], gates: GateLayout) -> None:
        self.parts = parts
        self.gates = gates

    @property
    def frozen(self) -> bool:
        return not all(part.requires_grad for part in self.parts)

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

    def rewire(self, rewiring: Rewiring, optimizers: Sequence[Optimizer], check_resize: Callable[[str], None]) -> None:
        """Rewire every part by its share of a rewiring of the matrix.

        ``check_resize`` is called before the number of values of a packed weight changes, with its name.
        """
        rows = [part.shape[0] for part in self.parts]
        shares = [rewiring] if len(rows) == 1 else rewiring.divided(rows)
        for part, share in zip(self.parts, shares, strict=True):
            packed = tuple(part.parameter.shape) != part.shape
            if packed and len(share.grown) != int(share.removed.sum()):
                check_resize(part.name)
            part.rewire(share, optimizers)


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

    def rewire(self, rewiring: Rewiring, optimizers: Sequence[Optimizer], check_resize: Callable[[str], None]) -> None:
        """Rewire every matrix by its share of a rewiring of the layer."""
        for matrix, share in zip(self.matrices, rewiring.matrices(), strict=True):
            matrix.rewire(share, optimizers, check_resize)


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

    def densities(self, topologies: Sequence[Topology]) -> list[float]:
        """Return for every weight the density of its matrix, of which the weight may be one part of several."""
        densities = [0.0] * len(topologies)
        for (numbers, shape, _), count in zip(self._joined, self.counts(topologies), strict=True):
            for number in numbers:
                densities[number] = count / math.prod(shape)
        return densities

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
    wrapper: ParallelWrapper,
) -> int:
    """Rewire matrices or layers, the same way on every rank; return the number of removed weights.

    With ``dense_gradients`` gradients stay where no weight exists. The ``wrapper`` of the model follows packed weights
    whose number of values changes.
    """
    weights = [weight for matrix in matrices for weight in matrix.parts]
    sizes = [weight.parameter.numel() for weight in weights]
    removed = 0
    for matrix in matrices:
        rewiring = next(rewirings)  # zip would hold on to the one before
        matrix.rewire(rewiring, optimizers, wrapper.check)
        if not dense_gradients:
            for weight in matrix.parts:
                weight.mask_gradient()
        removed += int(rewiring.removed.sum())
        del rewiring
        give_back_reused_memory()
    refuse_parted_ranks(weights)
    if any(weight.parameter.numel() != size for weight, size in zip(weights, sizes, strict=True)):
        wrapper.replan()
    return removed
