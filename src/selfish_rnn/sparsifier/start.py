"""Starting topologies: drawn at random, or taken from masks, nonzero weights or packed weights."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from selfish_rnn.sparsifier.budgets import NamedSparsities, WeightBudget, check_sparsity
from selfish_rnn.sparsifier.deferred import is_deferred
from selfish_rnn.sparsifier.rewiring import Matrices
from selfish_rnn.sparsifier.selection import Candidate, joined_gates, unpackable
from selfish_rnn.sparsifier.weights import SparseWeight
from selfish_rnn.topology import Allocation, Method, Topology, View
from selfish_rnn.topology.allocation import budget
from selfish_rnn.topology.methods import find_part
from selfish_rnn.topology.topology import rows_as

MIN_SIDE = 16
"""Fewest rows and columns of a matrix that becomes sparse by default."""

_TOLERATED = 0.1
"""Fraction of empty rows or columns up to which binding does not warn."""

_SHOWN = 3
"""Number of matrices that a warning lists."""


class _Consequences(NamedTuple):
    """Meaning of an empty row and of an empty column for the network."""

    row: str
    column: str


_CONSEQUENCES: dict[type[nn.Module], _Consequences] = {
    nn.Embedding: _Consequences("entries are zero", "dimensions are zero in every entry"),
    nn.RNNBase: _Consequences("gates see no input", "inputs reach no gate"),
    nn.RNNCellBase: _Consequences("gates see no input", "inputs reach no gate"),
    nn.Module: _Consequences("outputs see no input", "units reach no output"),
}
"""Consequences by type of module; the first that matches counts."""


def without_narrow(
    model: nn.Module, chosen: Sequence[Candidate], min_side: int, existing: bool
) -> tuple[list[Candidate], list[Candidate]]:
    """Return the chosen weights, and apart from them those with fewer than ``min_side`` rows or columns.

    All weights of a model of narrow matrices are chosen. With ``existing`` topologies a narrow matrix with zeros is.
    """
    if min_side < 1:
        raise ValueError(f"min_side is a number of rows and columns, at least 1; got {min_side}")
    joined_rows = {
        identity: sum(gates.rows for gates in parts.values()) for parts in joined_gates(model) for identity in parts
    }
    wide: list[Candidate] = []
    narrow: list[Candidate] = []
    for candidate in chosen:
        rows, columns = joined_rows.get(id(candidate.weight), candidate.shape[0]), candidate.size // candidate.shape[0]
        is_sparse = (existing or candidate.stored) and _has_zeros(candidate)
        (wide if min(rows, columns) >= min_side or is_sparse else narrow).append(candidate)
    return (wide, narrow) if wide else (narrow, [])


def _has_zeros(chosen: Candidate) -> bool:
    weights = chosen.parameter
    if chosen.stored:
        return weights.numel() < chosen.size
    return not (weights.is_meta or is_deferred(weights)) and int(weights.count_nonzero()) < chosen.size


def warn_of_cut_off(
    model: nn.Module,
    chosen: Sequence[Candidate],
    topologies: Sequence[Topology],
    sparsity: float,
    narrow: Sequence[str],
    uniform: bool,
) -> None:
    """Warn if more than a tenth of the rows or columns of a matrix are empty, which cuts units off.

    Recurrent matrices are left out: the input and the output of their layer still reach every unit.
    """
    modules = {
        id(parameter): module
        for module in model.modules()
        for name, parameter in module.named_parameters(recurse=False)
        if not (name.startswith("weight_hh") and isinstance(module, (nn.RNNBase, nn.RNNCellBase)))
    }
    sentences = {}
    for candidate, topology in zip(chosen, topologies, strict=True):
        module = modules.get(id(candidate.weight))
        if module is not None and topology.count < candidate.size:
            sentence = " and ".join(_cut_off(module, topology))
            if sentence:
                sentences[candidate.name] = f"{candidate.name}: {sentence}"
    if not sentences:
        return
    names, hidden = [*sentences], len(sentences) - _SHOWN
    listed = "; ".join([*sentences.values()][:_SHOWN]) + (f"; and {hidden} more matrices" if hidden > 0 else "")
    dense = "".join(f', "{name}": 0' for name in [*names[:_SHOWN], *narrow])
    remedies = [
        "lower the sparsity",
        f"leave such matrices dense with exclude={names[:_SHOWN]}",
        f'give each its own sparsity, as in sparsity={{"*": {sparsity:g}{dense}}}',
    ]
    if uniform:
        remedies.append('give narrow matrices more weights with allocation="er"')
    warnings.warn(f"the sparse topology cuts units off: {listed}. Remedies: {'; '.join(remedies)}", stacklevel=3)


def _cut_off(module: nn.Module, topology: Topology) -> Iterator[str]:
    """List the empty rows and columns of a matrix, where they are too many."""
    consequences = next(words for kind, words in _CONSEQUENCES.items() if isinstance(module, kind))
    rows, columns = topology.shape[0], topology.size // topology.shape[0]
    for side, size, indices, consequence in (
        ("rows", rows, topology.positions // columns, consequences.row),
        ("columns", columns, topology.positions % columns, consequences.column),
    ):
        empty = size - int(indices.bincount(minlength=size).count_nonzero())
        if empty > _TOLERATED * size:
            yield f"{empty:,} of {size:,} {consequence} (their {side} are empty)"


def check_start(
    sparsity: float | NamedSparsities | None,
    topology: str,
    masks: Mapping[str, Tensor] | None,
    allocation: Allocation | str | None,
) -> None:
    """Validate ``sparsity``, ``topology``, ``masks`` and ``allocation``; raise an error if they conflict."""
    if isinstance(sparsity, Mapping):
        if allocation is not None:
            raise ValueError(
                "sparsity= gives the number of weights of every matrix, and so does allocation=: leave one of them out"
            )
    elif sparsity is not None:
        check_sparsity(sparsity)
    if topology not in ("random", "nonzero"):
        raise ValueError(f'topology is "random" or "nonzero", got {topology!r}; masks go into masks=')
    if masks is not None and topology == "nonzero":
        raise ValueError('masks= gives a topology, and so does topology="nonzero": leave one of them out')


def with_allocation(method: Method, allocation: Allocation | str | None) -> Method:
    """Return a method with another allocation, if one is given."""
    if allocation is None:
        return method
    if method.allocation.dense:
        raise ValueError(
            f"method {method.name!r} starts with every weight and divides no budget: leave allocation= out"
        )
    part: Allocation = find_part("allocation", allocation)
    if part.dense:
        raise ValueError(
            f"allocation {part.name!r} starts with every weight, whatever the sparsity: use a method that does so, "
            'such as method="gmp"'
        )
    return method.replace(allocation=part)


def starting_topologies(
    chosen: Sequence[Candidate],
    views: Sequence[View],
    matrices: Matrices,
    method: Method,
    sparsity: float | None,
    budgets: Sequence[WeightBudget] | None,
    allocation: Allocation | str | None,
    topology: str,
    masks: Mapping[str, Tensor] | None,
    generator: torch.Generator,
) -> tuple[list[Topology], bool]:
    """Return the topology of every weight, and whether masks or the model have it: False if it is drawn.

    ``budgets`` take the place of ``sparsity`` where every weight has its own.
    """
    if _given(chosen, topology, masks, method):
        if budgets is not None or allocation is not None:
            argument = "allocation=" if budgets is None else "a mapping for sparsity="
            raise ValueError(
                f"{argument} divides the weights over matrices without a topology; these have one: leave it out"
            )
        topologies = _existing(chosen, masks, sparsity)
        for candidate, view, start in zip(chosen, views, topologies, strict=True):
            try:
                view.unit_topology(start)
            except ValueError as error:
                raise ValueError(f"{candidate.name}: {error}; choose the granularity that it was made with") from None
        return topologies, True
    if sparsity is None:
        raise ValueError('sparsity= is needed, or topology="nonzero" or masks=, which have one already')
    _warn_of_zeros(chosen)
    if budgets is not None:
        if method.prunes or method.allocation.dense:
            budgets = [weight_budget.at_start(method) for weight_budget in budgets]
        return [weight_budget.random_topology(method.allocation, generator) for weight_budget in budgets], False
    counts = method.counts(matrices.shapes, sparsity, 0, None)
    return matrices.random_topologies(method.allocation, counts, generator), False


@torch.no_grad()
def rescale_(parameter: Tensor, topology: Topology, density: float, budget: WeightBudget | None) -> None:
    """Divide weights by the square root of the density of their matrix, or of the gate if gates have budgets."""
    if budget is not None and budget.by_gate:
        densities = topology.gate_densities()
        if topology.gates.axes == (0,):
            for name, start, stop in topology.gates.row_ranges():
                parameter[start:stop].div_(math.sqrt(densities[name]))
            return
        scales = [1 / math.sqrt(densities[name]) for name in topology.gates.names]
        of_row = torch.repeat_interleave(torch.tensor(scales), torch.tensor(topology.gates.sizes))
        parameter.mul_(rows_as(of_row, topology).to(parameter.device, parameter.dtype))
    else:
        parameter.div_(math.sqrt(density if budget is None else topology.density))


def _given(chosen: Sequence[Candidate], topology: str, masks: Mapping[str, Tensor] | None, method: Method) -> bool:
    stored = [candidate.name for candidate in chosen if candidate.stored]
    obstacle = unpackable(method)
    if stored and obstacle is not None:
        raise ValueError(f"{stored[0]} is packed, but {obstacle}")
    if stored and masks is not None:
        raise ValueError(f"{stored[0]} is packed and has its topology already: leave masks= out")
    if stored and len(stored) < len(chosen) and topology == "random":
        unpacked = next(candidate.name for candidate in chosen if not candidate.stored)
        raise ValueError(
            f"{stored[0]} is packed and has a topology, {unpacked} has none: exclude one of them, or bind with "
            'topology="nonzero"'
        )
    existing = masks is not None or topology == "nonzero" or bool(stored)
    if existing and method.prunes:
        raise ValueError(f"method {method.name!r} starts with a dense network and takes no existing topology")
    return existing


def _existing(
    chosen: Sequence[Candidate], masks: Mapping[str, Tensor] | None, sparsity: float | None
) -> list[Topology]:
    """Return the topologies of masks or nonzero weights, whose sparsity must be close to this one."""
    topologies = []
    for name, weight, gates in chosen:
        if isinstance(weight, SparseWeight):
            topologies.append(replace(weight.topology, gates=gates))
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
    count, size = sum(start.count for start in topologies), sum(start.size for start in topologies)
    existing_sparsity = 1 - count / size
    if sparsity is None:
        return topologies
    missing = budget([start.shape for start in topologies], 1 - sparsity) - count
    lost = ""
    if missing > 0 and masks is None:
        lost = (
            f'topology="nonzero" has {count:,} weights, {missing:,} fewer than sparsity={sparsity:g} gives: weights '
            "that are exactly zero, such as those that have just grown, are lost. The saved sparsifier has them: load "
            "its state with load_state_dict"
        )
    if abs(existing_sparsity - sparsity) > 0.01:
        problem = f"the existing topology has sparsity {existing_sparsity:.4g}, not {sparsity:g}: leave sparsity= out"
        raise ValueError(f"{problem}; {lost}" if lost else problem)
    if lost:
        warnings.warn(lost, stacklevel=4)
    return topologies


def _warn_of_zeros(chosen: Sequence[Candidate]) -> None:
    """Warn if a topology is drawn for a model that seems to have one; matrices of zeros only do not count."""
    parameters = [candidate.weight for candidate in chosen if isinstance(candidate.weight, nn.Parameter)]
    begun = [
        parameter
        for parameter in parameters
        if not (parameter.is_meta or is_deferred(parameter)) and bool(parameter.any())
    ]
    existing, size = (
        sum(int(parameter.count_nonzero()) for parameter in begun),
        sum(parameter.numel() for parameter in begun),
    )
    if existing < size / 2:
        warnings.warn(
            f"only {existing:,} of the model's {size:,} weights are not zero: it seems to be sparse already, and a new "
            'topology is drawn, which deletes most of them. To keep them bind it with topology="nonzero"',
            stacklevel=4,
        )
