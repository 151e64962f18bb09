"""Sparsities by names of weights and gates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TypeAlias

import torch
from torch import nn

from selfish_rnn.errors import nearest, shown
from selfish_rnn.sparsifier.selection import Chosen, matches_name
from selfish_rnn.topology import Topology
from selfish_rnn.topology.allocation import budget
from selfish_rnn.topology.sampling import sample

GateSparsities: TypeAlias = Mapping[str, float]
"""Sparsity of every gate of a matrix, by its name."""

NamedSparsities: TypeAlias = Mapping[str, float | GateSparsities]
"""Sparsities by patterns of names, as in ``include=``; of several patterns that match a weight the last one counts."""


def check_sparsity(value: object, name: str = "sparsity") -> None:
    """Raise an error unless a value is a sparsity."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, or a mapping of names to numbers, not {shown(value)}")
    if not 0 <= float(value) < 1:
        raise ValueError(f"{name} is the fraction of zeros, from 0 up to, not including, 1; got {value}")


@dataclass(frozen=True)
class WeightBudget:
    """Number of weights in each gate of a matrix, or in the whole of it."""

    chosen: Chosen
    counts: tuple[int, ...]
    by_gate: bool

    @property
    def count(self) -> int:
        return sum(self.counts)

    @property
    def stays_dense(self) -> bool:
        return self.count == self.chosen.size

    def full(self) -> WeightBudget:
        """Return the budget of a matrix in which every position exists."""
        return WeightBudget(self.chosen, (self.chosen.size,), False)

    def random_topology(self, generator: torch.Generator) -> Topology:
        """Draw positions uniformly from the matrix, or from each of its gates."""
        shape, gates = self.chosen.shape, self.chosen.gates
        if not self.by_gate:
            return Topology.random(shape, gates, self.count, generator)
        columns = self.chosen.size // shape[0]
        positions = [
            sample((stop - start) * columns, count, generator) + start * columns
            for (_, start, stop), count in zip(gates.row_ranges(), self.counts, strict=True)
        ]
        return Topology(shape, gates, torch.cat(positions))


def weight_budgets(model: nn.Module, chosen: Sequence[Chosen], sparsities: NamedSparsities) -> list[WeightBudget]:
    """Return the budget of every weight.

    Raises:
        ValueError: a weight has no sparsity, or a pattern gives none.
    """
    aliases = {id(each.parameter): [each.name] for each in chosen}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        aliases.get(id(parameter), []).append(name)
    patterns: dict[str, str] = {}
    for pattern in sparsities:
        if not isinstance(pattern, str):
            raise TypeError(f"sparsity= takes patterns of names, not {shown(pattern)}")
        matches = [
            each.name for each in chosen if any(matches_name(pattern, name) for name in aliases[id(each.parameter)])
        ]
        if not matches:
            names = [each.name for each in chosen]
            prefixes = {".".join(name.split(".")[:length]): None for name in names for length in range(1, 9)}
            raise ValueError(
                f"sparsity= names {pattern!r}, which matches no sparse weight of the model"
                f"{nearest(pattern, prefixes)}; there are {', '.join(names)}"
            )
        patterns.update(dict.fromkeys(matches, pattern))
    for each in chosen:
        if each.name not in patterns:
            raise ValueError(
                f'sparsity= has no pattern for {each.name}: add one, {{"{each.name}": 0}} if it is to stay dense and '
                'count, put "*" for all others first, or leave it out with exclude='
            )
    for pattern in sparsities:
        if pattern not in patterns.values():
            raise ValueError(
                f"the sparsity of {pattern!r} applies to no weight, because later patterns match all of its weights: "
                "put general patterns first"
            )
    return [_weight_budget(each, patterns[each.name], sparsities[patterns[each.name]]) for each in chosen]


def _weight_budget(chosen: Chosen, pattern: str, sparsity: float | GateSparsities) -> WeightBudget:
    if not isinstance(sparsity, Mapping):
        check_sparsity(sparsity, f"the sparsity of {pattern!r}")
        return WeightBudget(chosen, (budget([chosen.shape], 1 - float(sparsity)),), False)
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
    for name, rows in zip(names, chosen.gates.sizes, strict=True):
        check_sparsity(sparsity[name], f"the sparsity of {pattern!r}, gate {name!r},")
        counts.append(budget([(rows, chosen.size // chosen.shape[0])], 1 - float(sparsity[name])))
    return WeightBudget(chosen, tuple(counts), True)
