"""Where the rows and columns of the matrices of one network are found in another."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from selfish_rnn.analysis.distance.activations import LINEAR, Activations, Data, Layer, Observer
from selfish_rnn.analysis.distance.matching import Matching, Partners, UnitMatch, match_units
from selfish_rnn.analysis.networks import WeightMatrix, weight_matrices
from selfish_rnn.engine import PackedEmbedding

FIXED = ""
"""In place of a group of units: rows or columns that mean the same in both networks, such as words."""

_RECURRENT = re.compile("hh|recurrent|hidden")
_OF_LAYER = re.compile(r"_l\d+(_reverse)?$")


@dataclass(frozen=True)
class MatrixAlignment:
    """For each row and each column of a matrix of the first network the one of the second it is compared with.

    ``None`` leaves them as they are. ``rows_by`` and ``columns_by`` say by which units they were matched.
    """

    rows: Partners | None = None
    columns: Partners | None = None
    rows_by: str = FIXED
    columns_by: str = FIXED


@dataclass(frozen=True)
class Alignment:
    """How two networks correspond: an alignment for each matrix, and the matches of units behind it."""

    matrices: Mapping[str, MatrixAlignment] = field(default_factory=dict)
    matches: Mapping[str, UnitMatch] = field(default_factory=dict)
    matching: str = "none"


def align(
    first: nn.Module,
    second: nn.Module,
    data: Data,
    *,
    matching: Matching = "semi",
    samples: int = 10_000,
    readouts: Collection[str] | None = None,
) -> Alignment:
    """Match the units of two networks of the same shape by their activations on the same data.

    For ``data``, ``samples`` and ``readouts`` see :func:`~selfish_rnn.analysis.distance.topology_distance`.
    """
    if matching not in ("semi", "one-to-one"):
        raise ValueError(f"matching must be 'semi' or 'one-to-one', got {matching!r}")
    unknown = sorted(set(readouts or ()) - dict(first.named_modules()).keys())
    if unknown:
        raise ValueError(f"readouts names no module of the model: {', '.join(unknown)}")
    seen, fixed = observe_both(first, second, data, samples, readouts)
    matrices = weight_matrices(first)
    sides = {name: _sides(matrix, seen[0], fixed) for name, matrix in matrices.items()}
    used = {group for rows, columns in sides.values() for group in (*rows, *columns) if group != FIXED}
    matches = {
        group: match_units(seen[0].units.pop(group), seen[1].units.pop(group), matching) for group in sorted(used)
    }
    return Alignment(
        {
            name: MatrixAlignment(
                _partners(rows, matrices[name].gates.sizes, matches),
                _partners(columns, [len(matches[group].partners) for group in columns if group], matches),
                _named(rows),
                _named(columns),
            )
            for name, (rows, columns) in sides.items()
        },
        matches,
        matching,
    )


def observe_both(
    first: nn.Module, second: nn.Module, data: Data, samples: int, readouts: Collection[str] | None
) -> tuple[tuple[Activations, Activations], Collection[str]]:
    """The activations of two networks on the same data, at most so many samples of each unit, and the read-outs."""
    batches = [data] if isinstance(data, (torch.Tensor, PackedSequence)) else data
    with Observer(first, samples, readouts) as one, Observer(second, samples, readouts) as other:
        for batch in batches:
            one.run(batch)
            other.run(batch)
            if one.enough:
                break
    seen = one.activations(), other.activations()
    shapes = [{name: tuple(units.shape) for name, units in each.units.items()} for each in seen]
    if not shapes[0]:
        raise ValueError("there is no data: not one batch")
    if shapes[0] != shapes[1]:
        raise ValueError(f"the networks are not of the same shape: their layers have units {shapes[0]} and {shapes[1]}")
    return seen, one.readouts


def _sides(
    matrix: WeightMatrix, seen: Activations, readouts: Collection[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """By which groups of units the gates in the rows of a matrix, and its columns, are matched."""
    suffix = _OF_LAYER.search(matrix.local)
    layer = seen.layers.get((matrix.owner, suffix.group() if suffix else ""), Layer((), FIXED))
    width = matrix.size // matrix.shape[0]
    leaving = layer.leaving if layer.leaving in seen.units else FIXED
    if isinstance(matrix.module, (nn.Embedding, PackedEmbedding)):
        return (FIXED,) * len(matrix.gates), (leaving,)
    readout = isinstance(matrix.module, LINEAR) and bool(set(matrix.owners) & set(readouts))
    units = seen.units[leaving].shape[1] if leaving else 0
    # A gate of another size has no row per unit: ON-LSTM's master gates have one for each chunk of units in order.
    rows = tuple(leaving if size == units and not readout else FIXED for size in matrix.gates.sizes)
    return rows, _columns(matrix, layer.entering, leaving, units, width, seen)


def _columns(
    matrix: WeightMatrix, entering: tuple[str, ...], leaving: str, units: int, width: int, seen: Activations
) -> tuple[str, ...]:
    entered = sum(seen.units[group].shape[1] for group in entering)
    recurrent = _RECURRENT.search(matrix.local) is not None and not isinstance(matrix.module, LINEAR)
    if recurrent and width == units:
        return (leaving,)
    if width == entered:
        return entering
    if width == units and not isinstance(matrix.module, LINEAR):
        return (leaving,)
    return (*entering, leaving) if leaving and width == entered + units else (FIXED,)


def _partners(groups: tuple[str, ...], sizes: Iterable[int], matches: Mapping[str, UnitMatch]) -> Partners | None:
    """Rows, or columns, of the second network: in each block the partners of the units it belongs to."""
    if not any(groups):
        return None
    blocks, start = list[Partners](), 0
    for group, size in zip(groups, sizes, strict=True):
        blocks.append(start + (matches[group].partners if group else np.arange(size)))
        start += size
    return np.concatenate(blocks)


def _named(groups: tuple[str, ...]) -> str:
    return " + ".join(dict.fromkeys(group for group in groups if group))
