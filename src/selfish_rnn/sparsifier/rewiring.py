"""One rewiring: its schedule, the matrices and layers of a method, and dense scores."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from selfish_rnn.sparsifier.distributed import ParallelWrapper, check_same_topologies, mean_over_ranks
from selfish_rnn.sparsifier.optimizer_state import keeps_momentum, momentum
from selfish_rnn.sparsifier.selection import Candidate, joined_gates, layer_weights
from selfish_rnn.sparsifier.weights import SparseWeight
from selfish_rnn.system import trim_if_releasing
from selfish_rnn.topology import (
    ActiveWeights,
    Allocation,
    GateLayout,
    LayerTopology,
    Method,
    Pool,
    Rewiring,
    Schedule,
    Signal,
    Topology,
    View,
)


@dataclass(frozen=True)
class Plan:
    """Rewirings of a run: their number, their prune rates and, if they are automatic, the steps between them."""

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

    def progress(self, rewiring: int) -> float:
        """Return the fraction of the run at a rewiring, counted from 1; 0 if the run has no known end."""
        return 0.0 if self.rewirings is None else min(rewiring / self.rewirings, 1.0)

    def rate(self, rewiring: int) -> float:
        """Return the fraction of weights that a rewiring, counted from 1, removes and grows."""
        if not self.method.rewires:
            return 0.0
        return self.schedule.rate(self.progress(rewiring), self.prune_rate)

    def due(self, step: int) -> bool:
        """Return whether an automatic rewiring follows a step."""
        return self.rewire_every is not None and step % self.rewire_every == 0


class DenseScores:
    """Dense gradients or momentum by which a method grows weights; gradients are freed after use.

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
        """True if gradients are needed."""
        return self._signal is not None and not any(map(self.is_momentum_of, self._optimizers))

    def is_momentum_of(self, optimizer: Optimizer) -> bool:
        """Return whether the score is the momentum of this optimizer."""
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
        """Start to collect dense gradients, if they are needed."""
        if self.by_gradient:
            for weight in self._weights:
                weight.collect_gradient()

    @contextlib.contextmanager
    def collecting(self) -> Iterator[None]:
        """Collect the dense gradients of backward passes in this block."""
        self.start()
        try:
            yield
        finally:
            for weight in self._weights:
                weight.stop_collecting()

    def score(self, weight: SparseWeight) -> Tensor:
        """Return the gradient or momentum of a whole matrix."""
        if self.by_gradient:
            return self._checked(weight, weight.collected_gradient)
        if not any(optimizer.state for optimizer in self._optimizers):
            raise RuntimeError("this method grows by the momentum of the optimizer, which has made no step yet")
        remembered = (momentum(optimizer, weight.parameter) for optimizer in self._optimizers)
        return next((score for score in remembered if score is not None), torch.zeros_like(weight.parameter))

    def gradient_at(self, weight: SparseWeight, positions: Tensor) -> Tensor:
        """Return the gradients of some positions of a matrix."""
        return self._checked(weight, lambda: weight.collected_gradient_at(positions))

    def _checked(self, weight: SparseWeight, collected: Callable[[], Tensor]) -> Tensor:
        """Return collected gradients, the same on every rank; raise if there are none or they are not finite."""
        if not weight.has_gradient:
            raise RuntimeError(
                "this method grows by the gradient of weights that do not exist: put the pass before "
                "rewire() in `with sparsifier.dense_gradients():`; of a packed model that is compiled, make that "
                "pass with the model itself"
            )
        gradient = mean_over_ranks(collected())
        if not torch.isfinite(gradient).all():
            raise FloatingPointError(
                f"the gradient of {weight.name} by which weights grow is NaN or infinite: leave it out, and collect "
                "that of another pass in `with sparsifier.dense_gradients():`"
            )
        return gradient

    def clear(self) -> None:
        """Free the gradients after use."""
        for weight in self._weights:
            weight.drop_gradient()


class Matrix:
    """Matrix of a method: one weight, or several weights whose rows are stacked.

    Attributes:
        parts: The weights.
        views: Views of the method on them.
        units: The matrix of units without any unit.
    """

    def __init__(self, parts: Sequence[SparseWeight], views: Sequence[View], units: Topology) -> None:
        self.parts = parts
        self.views = views
        self.units = units

    @property
    def frozen(self) -> bool:
        return not all(part.requires_grad for part in self.parts)

    @property
    def count(self) -> int:
        """Number of existing units."""
        return sum(unit_count(view, part) for part, view in zip(self.parts, self.views, strict=True))

    def existing(self, scores: DenseScores) -> ActiveWeights:
        """The existing units of all parts."""
        existing = [
            view.unit_weights(
                replace(part.existing(partial(scores.score, part)), gradient_at=partial(scores.gradient_at, part))
            )
            for part, view in zip(self.parts, self.views, strict=True)
        ]
        if len(existing) == 1:
            return existing[0]
        starts = itertools.accumulate((active.topology.size for active in existing[:-1]), initial=0)
        positions = [active.topology.positions + start for active, start in zip(existing, starts, strict=True)]
        topology = replace(self.units, positions=torch.cat(positions))
        return _concatenated(existing, topology, lambda: self._score(existing))

    def _score(self, existing: Sequence[ActiveWeights]) -> Tensor:
        return torch.cat([active.dense_score() for active in existing])

    def rewire(self, rewiring: Rewiring, optimizers: Sequence[Optimizer], check_resize: Callable[[str], None]) -> None:
        """Rewire every part by its share of a rewiring of the matrix.

        ``check_resize`` is called before the number of values of a packed weight changes, with its name.
        """
        shares = [rewiring]
        if len(self.parts) > 1:
            shares = list(rewiring.divided([view.units.shape[0] for view in self.views]))
        for part, view, units in zip(self.parts, self.views, shares, strict=True):
            share = units if view.single else view.rewiring(part.topology, units)
            packed = tuple(part.parameter.shape) != part.shape
            if packed and len(share.grown) != int(share.removed.sum()):
                check_resize(part.name)
            part.rewire(share, optimizers)


def unit_count(view: View, weight: SparseWeight) -> int:
    """Return the number of existing units of a weight."""
    return weight.count if view.single else view.unit_topology(weight.topology).count


class Layer:
    """Matrices of one recurrent layer, for a method that ranks their weights together."""

    def __init__(self, matrices: Sequence[Matrix]) -> None:
        self.matrices = matrices

    @property
    def parts(self) -> list[SparseWeight]:
        """Weights of all matrices."""
        return [part for matrix in self.matrices for part in matrix.parts]

    def existing(self, scores: DenseScores) -> ActiveWeights:
        """Return the existing units of all matrices."""
        existing = [matrix.existing(scores) for matrix in self.matrices]
        topology = LayerTopology.of([active.topology for active in existing])
        return _concatenated(
            existing, topology, lambda: torch.cat([active.dense_score().flatten() for active in existing])
        )

    def rewire(self, rewiring: Rewiring, optimizers: Sequence[Optimizer], check_resize: Callable[[str], None]) -> None:
        """Rewire every matrix by its share of a rewiring of the layer."""
        for matrix, share in zip(self.matrices, rewiring.matrices(), strict=True):
            matrix.rewire(share, optimizers, check_resize)


def _concatenated(existing: Sequence[ActiveWeights], topology: Topology, score: Callable[[], Tensor]) -> ActiveWeights:
    """Join existing weights; gradients only if all of them have any."""
    gradients = [active.gradients for active in existing if active.gradients is not None]
    ends = list(itertools.accumulate(active.topology.size for active in existing))

    def gradient_at(positions: Tensor) -> Tensor:
        sampled = torch.empty(len(positions))
        for active, end in zip(existing, ends, strict=True):
            start = end - active.topology.size
            inside = (positions >= start) & (positions < end)
            sampled[inside] = active.sampled_gradient(positions[inside] - start).to(sampled.dtype)
        return sampled

    return ActiveWeights(
        topology,
        torch.cat([active.values for active in existing]),
        torch.cat(gradients) if len(gradients) == len(existing) else None,
        score,
        gradient_at,
    )


class _Joined(NamedTuple):
    """Numbers of the chosen weights that form one matrix of a method: one for most matrices."""

    numbers: tuple[int, ...]
    units: Topology


class Matrices:
    """Chosen weights of a model, grouped into the matrices of a method, in the order of their first weights.

    A matrix is one of units, as the ``views`` of the weights have them. A ``pool`` that is the layer joins the matrices
    of every recurrent layer that have units of one size.
    """

    def __init__(self, model: nn.Module, chosen: Sequence[Candidate], views: Sequence[View], pool: Pool) -> None:
        self.views = views
        numbers = {id(candidate.weight): number for number, candidate in enumerate(chosen)}
        alone = {number: _Joined((number,), view.units) for number, view in enumerate(views)}
        for parts in joined_gates(model):
            numbers_here = [numbers[identity] for identity in parts if numbers.get(identity) in alone]
            if len(numbers_here) > 1:
                joined = _Joined(tuple(numbers_here), _stacked([views[number].units for number in numbers_here]))
                for number in numbers_here:
                    del alone[number]
                alone[min(numbers_here)] = joined
        self._joined = [alone[number] for number in sorted(alone)]
        self._layers = self._group_by_layer(model, numbers) if pool.layer else []

    def _group_by_layer(self, model: nn.Module, numbers: Mapping[int, int]) -> list[list[int]]:
        """Return the indices of the matrices of every layer of several matrices; a matrix is in one layer at most."""
        free = {number: index for index, joined in enumerate(self._joined) for number in joined.numbers}
        sizes = [self.views[joined.numbers[0]].unit_size for joined in self._joined]
        layers = []
        for weights in layer_weights(model):
            members = sorted({free[numbers[identity]] for identity in weights if numbers.get(identity) in free})
            for size in dict.fromkeys(sizes[index] for index in members):
                alike = [index for index in members if sizes[index] == size]
                if len(alike) > 1:
                    layers.append(alike)
                    free = {number: index for number, index in free.items() if index not in alike}
        return layers

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Shape of each matrix of units."""
        return [group.units.shape for group in self._joined]

    @property
    def gate_rows(self) -> list[tuple[int, ...]]:
        """Rows of each gate of each matrix of units."""
        return [group.units.gates.sizes for group in self._joined]

    def of(self, weights: Sequence[SparseWeight]) -> list[Matrix]:
        """Return the matrices of these weights, which are in the order of the chosen ones."""
        return [
            Matrix(
                [weights[number] for number in group.numbers],
                [self.views[number] for number in group.numbers],
                group.units,
            )
            for group in self._joined
        ]

    def rewired(self, weights: Sequence[SparseWeight]) -> list[tuple[Matrix | Layer, list[int]]]:
        """Return the matrices or layers of these weights that a method rewires, without frozen matrices.

        Each comes with the indices of its matrices.
        """
        matrices = self.of(weights)
        thawed = [[index for index in layer if not matrices[index].frozen] for layer in self._layers]
        layers = {layer[0]: layer for layer in thawed if len(layer) > 1}
        inside = {index for layer in layers.values() for index in layer}
        rewired: list[tuple[Matrix | Layer, list[int]]] = []
        for index, matrix in enumerate(matrices):
            if index in layers:
                rewired.append((Layer([matrices[member] for member in layers[index]]), layers[index]))
            elif index not in inside and not matrix.frozen:
                rewired.append((matrix, [index]))
        return rewired

    def counts(self, topologies: Sequence[Topology]) -> list[int]:
        """Return the number of units of each matrix, for these topologies of the chosen weights."""
        return [
            sum(self.views[number].unit_topology(topologies[number]).count for number in group.numbers)
            for group in self._joined
        ]

    def densities(self, topologies: Sequence[Topology]) -> list[float]:
        """Return the density of the matrix of every chosen weight."""
        densities = [0.0] * len(topologies)
        for numbers, _ in self._joined:
            count = sum(topologies[number].count for number in numbers)
            size = sum(topologies[number].size for number in numbers)
            for number in numbers:
                densities[number] = count / size
        return densities

    def random_topologies(
        self, allocation: Allocation, counts: Sequence[int], generator: torch.Generator
    ) -> list[Topology]:
        """For every weight a topology; so many units are drawn from every whole matrix."""
        topologies: dict[int, Topology] = {}
        for (numbers, units), count in zip(self._joined, counts, strict=True):
            whole = allocation.draw(units.shape, units.gates, count, generator)
            views = [self.views[number] for number in numbers]
            parts = whole.divided([view.units.shape[0] for view in views])
            for number, view, part in zip(numbers, views, parts, strict=True):
                topologies[number] = view.expand(replace(part, gates=view.units.gates))
        return [topologies[number] for number in range(len(self.views))]


def _stacked(parts: Sequence[Topology]) -> Topology:
    """Return the matrix of units whose rows are those of several, one below the other."""
    gates = GateLayout(
        tuple(name for part in parts for name in part.gates.names),
        tuple(size for part in parts for size in part.gates.sizes),
    )
    return Topology((gates.rows, *parts[0].shape[1:]), gates, torch.empty(0, dtype=torch.int64))


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
        trim_if_releasing()
    check_same_topologies(weights)
    if any(weight.parameter.numel() != size for weight, size in zip(weights, sizes, strict=True)):
        wrapper.replan()
    return removed
