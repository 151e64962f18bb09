"""Matrices with few rows or columns: they stay dense by default, and binding warns if units are cut off."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torch import nn

from selfish_rnn.sparsifier.deferred import is_deferred
from selfish_rnn.sparsifier.registry import joined_gates
from selfish_rnn.sparsifier.selection import Chosen
from selfish_rnn.topology import Topology

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
    model: nn.Module, chosen: Sequence[Chosen], min_side: int, existing: bool
) -> tuple[list[Chosen], list[Chosen]]:
    """Return the chosen weights, and apart from them those with fewer than ``min_side`` rows or columns.

    All weights of a model of narrow matrices are chosen. With ``existing`` topologies a narrow matrix with zeros is.
    """
    if min_side < 1:
        raise ValueError(f"min_side is a number of rows and columns, at least 1; got {min_side}")
    joined_rows = {
        identity: sum(gates.rows for gates in parts.values()) for parts in joined_gates(model) for identity in parts
    }
    wide: list[Chosen] = []
    narrow: list[Chosen] = []
    for each in chosen:
        rows, columns = joined_rows.get(id(each.weight), each.shape[0]), each.size // each.shape[0]
        is_sparse = (existing or each.stored) and _has_zeros(each)
        (wide if min(rows, columns) >= min_side or is_sparse else narrow).append(each)
    return (wide, narrow) if wide else (narrow, [])


def _has_zeros(chosen: Chosen) -> bool:
    weights = chosen.parameter
    if chosen.stored:
        return weights.numel() < chosen.size
    return not (weights.is_meta or is_deferred(weights)) and int(weights.count_nonzero()) < chosen.size


def warn_of_cut_off(
    model: nn.Module,
    chosen: Sequence[Chosen],
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
    for each, topology in zip(chosen, topologies, strict=True):
        module = modules.get(id(each.weight))
        if module is not None and topology.count < each.size:
            sentence = " and ".join(_cut_off(module, topology))
            if sentence:
                sentences[each.name] = f"{each.name}: {sentence}"
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
