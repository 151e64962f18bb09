"""Into which tiles a matrix is cut, and whether a saved index says so."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from selfish_rnn.engine import library
from selfish_rnn.engine.library import address

SMALL_TILE, LARGE_TILE = 128, 192
"""The longest side of a tile: a panel of activations as long should fit the innermost cache, yet the rows of a tile
should have enough weights for a loop to be worth its start."""

SPARSE = 0.25
"""The density below which tiles are large."""

VERY_SPARSE = 0.015
"""The density below which a line of a large tile would have hardly a weight: tiles grow as the density falls."""

WEIGHTS_PER_LINE, LONGEST_SIDE = 5, 65536
"""How many weights a line of such a tile has in the mean, and the longest side whose numbers take 16 bits."""


@dataclass(frozen=True)
class Tiling:
    """Row bounds of the tiles, and the number and width of their columns."""

    row_bounds: tuple[int, ...]
    column_tiles: int
    tile_columns: int

    @classmethod
    def of(cls, shape: tuple[int, int], gate_rows: Sequence[int], count: int) -> Tiling:
        """For a matrix with so many weights. No tile has rows of two gates, and gates of one size are cut alike."""
        rows, columns = shape
        longest, column_pieces = _longest_side(rows * columns, count), 2
        if longest > LARGE_TILE:
            column_pieces = 4  # threads share them, and large tiles are few
        bounds = [0]
        for size in gate_rows:
            pieces = _pieces(size, longest, at_least=4)
            first = bounds[-1]
            bounds += [first + size * (piece + 1) // pieces for piece in range(pieces)]
        width = -(-columns // _pieces(columns, longest, at_least=column_pieces))
        return cls(tuple(bounds), -(-columns // width), width)


def gates_cut_alike(row_bounds: Sequence[int], gate_rows: Sequence[int]) -> bool:
    """Whether these bounds part the gates, and part those of one size in the same places, as the kernels need."""
    cuts: dict[int, set[tuple[int, ...]]] = {}
    first = 0
    for size in gate_rows:
        inside = tuple(bound - first for bound in row_bounds if first <= bound <= first + size)
        if inside[:1] != (0,) or inside[-1:] != (size,):
            return False
        cuts.setdefault(size, set()).add(inside)
        first += size
    return all(len(ways) == 1 for ways in cuts.values())


def _longest_side(positions: int, count: int) -> int:
    if count >= SPARSE * positions:
        return SMALL_TILE
    if count >= VERY_SPARSE * positions:
        return LARGE_TILE
    return min(WEIGHTS_PER_LINE * positions // max(count, 1), LONGEST_SIDE)


def _pieces(size: int, longest: int, at_least: int) -> int:
    """Enough, and such a number that threads share them evenly."""
    pieces = max(-(-size // longest), min(at_least, size // 32), 1)
    return min(-(-pieces // 4) * 4, size) if pieces > 2 else pieces


def index_problem(
    index: Tensor | None, values: Tensor | None, shape: tuple[int, int], gate_rows: Sequence[int]
) -> str | None:
    """What is wrong with a saved index. A kernel would follow it anywhere."""
    if index is None and values is None:
        return None
    if index is None or values is None:
        return "and its values must be loaded together: one of them is missing"
    if index.dtype != torch.uint8 or index.ndim != 1:
        return "is not the index of a packed weight"
    index = index.detach().cpu().clone(memory_format=torch.contiguous_format)
    if not library.kernels().selfish_index_valid(address(index), len(index)):
        return "is damaged, or not the index of a packed weight"
    header = library.header(index)
    if (header.rows, header.columns) != shape or (header.count,) != tuple(values.shape):
        return (
            f"is of a {header.rows} x {header.columns} matrix with {header.count} weights, this is one of "
            f"{shape[0]} x {shape[1]} and the values are of shape {tuple(values.shape)}"
        )
    start = header.offset[0]
    bounds = index[start : start + 4 * (header.row_tiles + 1)].view(torch.int32).tolist()
    if not gates_cut_alike(bounds, gate_rows):
        return f"is not cut into gates of {gate_rows} rows"
    return None


def fingerprint(index: Tensor | None) -> tuple[int, int] | None:
    """A checksum of an index, and the number of changes it has seen; nothing where there are no bytes to look at."""
    if type(index) is not Tensor or index.device.type != "cpu" or index.is_inference():
        return None
    return zlib.crc32(index.numpy().data), index._version
