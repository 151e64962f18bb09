"""Budgets: the number of weights of every matrix and gate, given by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import TypeAlias

import torch
from torch import nn

from selfish_rnn.errors import nearest, short_repr
from selfish_rnn.sparsifier.rewiring import Matrix
from selfish_rnn.sparsifier.selection import Candidate, matches_name
from selfish_rnn.topology import Allocation, GateLayout, Method, Topology, View
from selfish_rnn.topology.allocation import budget
from selfish_rnn.topology.rewiring import PruneCount

GateSparsities: TypeAlias = Mapping[str, float]
"""Sparsity of every gate of a matrix, by its name."""

NamedSparsities: TypeAlias = Mapping[str, float | GateSparsities]
"""Sparsities by patterns of names, as in ``include=``; of several patterns that match a weight the last one counts."""


def check_sparsity(value: object, name: str = "sparsity") -> None:
    """Raise an error unless a value is a sparsity."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, or a mapping of names to numbers, not {short_repr(value)}")
    if not 0 <= float(value) < 1:
        raise ValueError(f"{name} is the fraction of zeros, from 0 up to, not including, 1; got {value}")


@dataclass(frozen=True)
class WeightBudget:
    """Number of units in each gate of a matrix, or in the whole of it."""

    chosen: Candidate
    view: View
    counts: tuple[int, ...]
    by_gate: bool

    @property
    def count(self) -> int:
        return sum(self.counts)

    @property
    def size(self) -> int:
        """Number of units that the matrix has room for."""
        return self.view.units.size

    @property
    def stays_dense(self) -> bool:
        return self.count == self.size

    def at_start(self, method: Method) -> WeightBudget:
        """Return the budget with which a method starts that prunes or stays dense."""
        return replace(self, counts=tuple(_prune_counts(self, method, 0, None)))

    def random_topology(self, allocation: Allocation, generator: torch.Generator) -> Topology:
        """Draw units from the matrix, or from each of its gates."""
        units = self.view.units
        if not self.by_gate:
            return self.view.expand(allocation.draw(units.shape, units.gates, self.count, generator))
        columns = units.size // units.shape[0]
        positions = [
            allocation.draw((rows, columns), GateLayout.single(rows), count, generator).positions + first * columns
            for (_, first, stop), count in zip(units.gates.row_ranges(), self.counts, strict=True)
            for rows in [stop - first]
        ]
        return self.view.expand(replace(units, positions=torch.cat(positions)))


def overall_sparsity(matrices: Sequence[WeightBudget] | Sequence[Topology]) -> float:
    """Return the fraction of zeros over several matrices."""
    return 1 - sum(matrix.count for matrix in matrices) / sum(matrix.size for matrix in matrices)


def weight_budgets(
    model: nn.Module, chosen: Sequence[Candidate], views: Sequence[View], sparsities: NamedSparsities
) -> list[WeightBudget]:
    """Return the budget of every weight.

    Raises:
        ValueError: a weight has no sparsity, or a pattern gives none.
    """
    aliases = {id(candidate.parameter): [candidate.name] for candidate in chosen}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        aliases.get(id(parameter), []).append(name)
    patterns: dict[str, str] = {}
    for pattern in sparsities:
        if not isinstance(pattern, str):
            raise TypeError(f"sparsity= takes patterns of names, not {short_repr(pattern)}")
        matches = [
            candidate.name
            for candidate in chosen
            if any(matches_name(pattern, name) for name in aliases[id(candidate.parameter)])
        ]
        if not matches:
            names = [candidate.name for candidate in chosen]
            prefixes = {".".join(name.split(".")[:length]): None for name in names for length in range(1, 9)}
            raise ValueError(
                f"sparsity= names {pattern!r}, which matches no sparse weight of the model"
                f"{nearest(pattern, prefixes)}; there are {', '.join(names)}"
            )
        patterns.update(dict.fromkeys(matches, pattern))
    for candidate in chosen:
        if candidate.name not in patterns:
            raise ValueError(
                f'sparsity= has no pattern for {candidate.name}: add one, {{"{candidate.name}": 0}} if it is to stay '
                'dense and count, put "*" for all others first, or leave it out with exclude='
            )
    for pattern in sparsities:
        if pattern not in patterns.values():
            raise ValueError(
                f"the sparsity of {pattern!r} applies to no weight, because later patterns match all of its weights: "
                "put general patterns first"
            )
    return [
        _weight_budget(candidate, view, patterns[candidate.name], sparsities[patterns[candidate.name]])
        for candidate, view in zip(chosen, views, strict=True)
    ]


def _weight_budget(chosen: Candidate, view: View, pattern: str, sparsity: float | GateSparsities) -> WeightBudget:
    if not isinstance(sparsity, Mapping):
        check_sparsity(sparsity, f"the sparsity of {pattern!r}")
        return WeightBudget(chosen, view, (budget([view.units.shape], 1 - float(sparsity)),), False)
    names = chosen.gates.names
    if len(names) == 1:
        raise ValueError(f"{chosen.name} has no gates: give it one sparsity, not one for {', '.join(sparsity)}")
    differing = [name for name in sparsity if name not in names] or [name for name in names if name not in sparsity]
    if differing:
        raise ValueError(
            f"the sparsities of {pattern!r} must name the gates of {chosen.name}, which are {', '.join(names)}; "
            f"{differing[0]!r} is {'missing' if differing[0] in names else 'no gate of it'}"
        )
    counts = []
    units = view.units
    for name, rows in zip(names, units.gates.sizes, strict=True):
        check_sparsity(sparsity[name], f"the sparsity of {pattern!r}, gate {name!r},")
        counts.append(budget([(rows, units.size // units.shape[0])], 1 - float(sparsity[name])))
    return WeightBudget(chosen, view, tuple(counts), True)


def prune_counts(
    method: Method,
    matrices: Sequence[Matrix],
    sparsity: float | Sequence[WeightBudget],
    done: int,
    planned: int | None,
) -> list[PruneCount]:
    """Return the number of units of each matrix after ``done`` rewirings of a method that prunes.

    ``sparsity`` is the final one, or a budget per weight. A matrix whose gates have budgets has a number for each of
    them. Frozen matrices keep what they have. If the method prunes over the network, only the sum is binding.
    """
    counts: list[PruneCount] = []
    if isinstance(sparsity, float | int):
        counts += method.counts([matrix.units.shape for matrix in matrices], sparsity, done, planned)
    else:
        budgets = {budget.chosen.name: budget for budget in sparsity}
        counts += [
            _prune_count(method, matrix.units, [budgets[part.name] for part in matrix.parts], done, planned)
            for matrix in matrices
        ]
    frozen = [matrix.count if matrix.frozen else None for matrix in matrices]
    assert method.pruning is not None
    if not method.pruning.network:
        return [
            count if frozen_count is None else frozen_count for frozen_count, count in zip(frozen, counts, strict=True)
        ]
    remaining = sum(map(total, counts)) - sum(frozen_count or 0 for frozen_count in frozen)
    shares: list[PruneCount] = []
    for frozen_count in frozen:
        # One unit for every other matrix, and the rest of the sum for the first one that is not frozen.
        is_first = frozen_count is None and None not in frozen[: len(shares)]
        shares.append(max(remaining - frozen.count(None) + 1, 1) if is_first else frozen_count or 1)
    return shares


def _prune_count(
    method: Method, units: Topology, final: Sequence[WeightBudget], done: int, planned: int | None
) -> PruneCount:
    """Return the number of units of a matrix with a budget of its own, or of each of its gates."""
    if not any(budget.by_gate for budget in final):
        sparsity = 1 - sum(budget.count for budget in final) / units.size
        return method.counts([units.shape], sparsity, done, planned)[0]
    return [count for budget in final for count in _prune_counts(budget, method, done, planned)]


def _prune_counts(weight: WeightBudget, method: Method, done: int, planned: int | None) -> list[int]:
    """Return the number of units of a weight, or of each of its gates, on the way to its budget."""
    units = weight.view.units
    columns = units.size // units.shape[0]
    rows = units.gates.sizes if weight.by_gate else (units.shape[0],)
    return [
        number
        for height, count in zip(rows, weight.counts, strict=True)
        for number in method.counts([(height, columns)], 1 - count / (height * columns), done, planned)
    ]


def total(count: PruneCount) -> int:
    """Return the number of units of a matrix whose gates may have numbers of their own."""
    return count if isinstance(count, int) else sum(count)


def missing_weights(matrices: Sequence[Matrix], counts: Sequence[PruneCount]) -> int:
    """Return the number of weights that matrices lack, compared with these numbers of units."""
    pairs = zip(matrices, counts, strict=True)
    return sum((total(count) - matrix.count) * matrix.views[0].unit_size for matrix, count in pairs)


def grouped_counts(counts: Sequence[PruneCount], members: Sequence[list[int]]) -> list[PruneCount]:
    """Return the numbers of units of matrices or layers, from those of their member matrices."""
    return [
        counts[indices[0]] if len(indices) == 1 else sum(total(counts[index]) for index in indices)
        for indices in members
    ]
