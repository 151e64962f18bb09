"""Into which tiles a matrix is cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SMALL_TILE, LARGE_TILE = 128, 192
"""The longest side of a tile: a panel of activations as long should fit the innermost cache, yet the rows of a tile
should have enough weights for a loop to be worth its start."""

SPARSE = 0.25
"""The density below which tiles are large."""

VERY_SPARSE = 0.035
"""The density below which a line of a large tile would have only a few weights: tiles grow as the density falls."""

WEIGHTS_PER_LINE, LONGEST_SIDE = 40, 65536
"""How many weights a line of such a tile has in the mean, and the longest side whose numbers take 16 bits. Activations
come from the outer caches for every weight then, so long lines, begun and ended less often, are the faster."""


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
