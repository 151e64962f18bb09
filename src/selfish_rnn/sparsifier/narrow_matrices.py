"""Matrices with few rows or columns: they stay dense by default, and binding warns if units are cut off."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from selfish_rnn.sparsifier.deferred import is_deferred
from selfish_rnn.sparsifier.registry import joined_gates
from selfish_rnn.sparsifier.selection import Chosen

MIN_SIDE = 16
"""Fewest rows and columns of a matrix that becomes sparse by default."""


def without_narrow(model: nn.Module, chosen: Sequence[Chosen], min_side: int, existing: bool) -> list[Chosen]:
    """Return the chosen weights without those that have fewer than ``min_side`` rows or columns.

    A model of narrow matrices only keeps all of them. With ``existing`` topologies a narrow matrix that contains zeros
    is kept, too.
    """
    if min_side < 1:
        raise ValueError(f"min_side is a number of rows and columns, at least 1; got {min_side}")
    joined_rows = {
        identity: sum(gates.rows for gates in parts.values())
        for parts in joined_gates(model)
        for identity in parts
    }
    wide = [
        each
        for each in chosen
        if min(joined_rows.get(id(each.weight), each.shape[0]), each.size // each.shape[0]) >= min_side
        or (existing and _has_zeros(each))
    ]
    return wide or list(chosen)


def _has_zeros(chosen: Chosen) -> bool:
    if chosen.stored:
        return True
    weight = chosen.parameter
    return not (weight.is_meta or is_deferred(weight)) and int(weight.count_nonzero()) < weight.numel()
