"""Indexes of packed weights: tiling, construction and validation."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from selfish_rnn.engine import library
from selfish_rnn.engine.library import address
from selfish_rnn.system import available_memory

SMALL_TILE, LARGE_TILE = 128, 192
"""Longest side of a tile: a panel of activations as long should fit the innermost cache, yet the rows of a tile
should have enough weights for a loop to be worth its start."""

SPARSE = 0.25
"""Density below which tiles are large."""

VERY_SPARSE = 0.035
"""Density below which a line of a large tile would have only a few weights: tiles grow as the density falls."""

WEIGHTS_PER_LINE, LONGEST_SIDE = 40, 65536
"""Mean number of weights of a line of such a tile, and the longest side that 16 bits can number. Activations
come from the outer caches for every weight then, so long lines, begun and ended less often, are the faster."""


@dataclass(frozen=True)
class Tiling:
    """Row bounds of the tiles, and the number and width of their columns."""

    row_bounds: tuple[int, ...]
    column_tiles: int
    tile_columns: int

    @classmethod
    def of(cls, shape: tuple[int, int], gate_rows: Sequence[int], count: int) -> Tiling:
        """Return the tiling of a matrix with ``count`` weights.

        No tile has rows of two gates, and gates of one size are cut alike.
        """
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
    """Return a sufficient number of pieces that threads can share evenly."""
    pieces = max(-(-size // longest), min(at_least, size // 32), 1)
    return min(-(-pieces // 4) * 4, size) if pieces > 2 else pieces


LARGEST = 2**31 - 1
"""Largest number of rows, columns, weights and tiles of an index."""

TILE_BYTES = 44
"""Bytes of an empty tile, in the index and while it is built."""


@dataclass(frozen=True)
class Contents:
    """Facts of an index that operators check before a kernel reads it."""

    rows: int
    columns: int
    count: int
    row_bounds: tuple[int, ...]

    @classmethod
    def of(cls, index: Tensor) -> Contents:
        """Read the facts of a valid index."""
        header = library.header(index)
        start = header.offset[0]
        bounds = index[start : start + 4 * (header.row_tiles + 1)].view(torch.int32).tolist()
        return cls(header.rows, header.columns, header.count, tuple(bounds))

    @functools.cached_property
    def _ways(self) -> dict[tuple[int, ...], bool]:
        return {}

    def has_gates(self, gate_rows: tuple[int, ...]) -> bool:
        """Return whether the tiles divide gates of these sizes, and divide gates of one size alike."""
        if gate_rows not in self._ways:
            self._ways[gate_rows] = gates_cut_alike(self.row_bounds, gate_rows)
        return self._ways[gate_rows]


Fact = TypeVar("Fact")


class _Entry(NamedTuple):
    """Validated memory: its storage, address, shape, number of changes and fact."""

    storage: StorageWeakRef
    place: int
    shape: torch.Size
    version: int
    fact: Any


class Known(Generic[Fact]):
    """Facts of validated memory, for as long as it lives and torch counts no change to it.

    Changes that torch does not count, as those through ``memory.data`` or ``memory.numpy()``, are not seen.
    """

    def __init__(self) -> None:
        # By the storage. While a weak reference is held, no other storage has its address.
        self._entries: dict[int, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, memory: Tensor) -> Fact | None:
        """Return the fact of the same bytes, or None."""
        known = self._entries.get(memory.untyped_storage()._cdata) if memory.layout == torch.strided else None
        if known is None:
            return None
        _, place, shape, version, fact = known
        same: Fact = fact
        return same if (memory.data_ptr(), memory.shape, _version(memory)) == (place, shape, version) else None

    def remember(self, memory: Tensor, fact: Fact) -> Fact:
        """Record memory that was just built or checked."""
        for key, known in list(self._entries.items()):
            if known.storage.expired():  # type: ignore[no-untyped-call]
                self._entries.pop(key, None)
        storage = memory.untyped_storage()
        reference = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        self._entries[storage._cdata] = _Entry(reference, memory.data_ptr(), memory.shape, _version(memory), fact)
        return fact


_known = Known[Contents]()


def build_index(positions: Tensor, shape: tuple[int, int], gate_rows: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Build the index of weights at these positions; return it, and for each value the rank of its position."""
    kernels = library.kernels()
    tiling = Tiling.of(shape, gate_rows, len(positions))
    bounds = torch.tensor(tiling.row_bounds, dtype=torch.int32, device="cpu")
    rows = len(bounds) - 1, address(bounds)
    arguments = (*shape, len(positions), address(positions), *rows, tiling.column_tiles, tiling.tile_columns)
    # On the CPU, whatever torch.device("meta") or torch.set_default_device say: the kernels write there.
    index = torch.empty(kernels.selfish_index_bytes(*arguments), dtype=torch.uint8, device="cpu")
    order = torch.empty(len(positions), dtype=torch.int32, device="cpu")
    kernels.selfish_index_build(*arguments, address(index), address(order))
    remember(index)
    return index, order


def contents(index: Tensor) -> Contents:
    """Return the facts of an index. It is checked whole the first time, and again after a change."""
    known = _known.get(index)
    if known is not None:
        return known
    problem = _problem(index)
    if problem is not None:
        raise ValueError(f"the index of a packed weight {problem}")
    return remember(index)


def remember(index: Tensor) -> Contents:
    """Record an index that was just built or checked."""
    return _known.remember(index, Contents.of(index))


def check_matrix(rows: int, columns: int) -> None:
    """Raise an error if a matrix of this shape cannot be packed: kernels count rows, columns and tiles in 32 bits."""
    if min(rows, columns) < 1 or max(rows, columns) > LARGEST or rows * columns > LARGEST * SMALL_TILE**2:
        raise ValueError(
            f"a packed matrix has at least one row and one column, at most {LARGEST} of each and "
            f"{LARGEST * SMALL_TILE**2} positions, not {rows} x {columns}"
        )
    needed, available = rows * columns // SMALL_TILE**2 * TILE_BYTES, available_memory()
    if available is not None and needed > available:
        raise MemoryError(
            f"the tiles of a packed matrix of {rows} x {columns} take {needed / 2**30:.0f} GiB, "
            f"{available / 2**30:.0f} GiB are free"
        )


def checked_positions(positions: Tensor, shape: tuple[int, int], values: Tensor | None = None) -> Tensor:
    """Return row-major positions for an index; raise an error if they, or the values with them, do not fit."""
    if positions.ndim != 1 or positions.is_floating_point() or len(positions) > LARGEST:
        raise ValueError(
            f"positions must be a row of at most {LARGEST} whole numbers, they are {positions.dtype} of shape "
            f"{tuple(positions.shape)}"
        )
    if values is not None and values.shape != positions.shape:
        raise ValueError(f"there are {len(positions)} positions and values of shape {tuple(values.shape)}")
    size = shape[0] * shape[1]
    positions = positions.to("cpu", torch.int64).contiguous()
    if len(positions) and (positions[0] < 0 or positions[-1] >= size or (positions[1:] <= positions[:-1]).any()):
        raise ValueError(f"positions must be sorted, different and from 0 to {size - 1}")
    return positions


def check_count(values: Tensor, count: int) -> None:
    """Raise an error unless there is a value for each weight; ``weight.values.data = other`` may change that."""
    if values.shape != (count,):
        raise ValueError(
            f"the packed matrix has {count} weights, its values are of shape {tuple(values.shape)}: other values come "
            "with weight.assign(positions, values) or load_state_dict"
        )


def _version(index: Tensor) -> int:
    return -1 if index.is_inference() else index._version


def _problem(index: Tensor) -> str | None:
    """Return the problem of an index, or None. A kernel would follow it anywhere."""
    if index.dtype != torch.uint8 or index.ndim != 1 or not index.is_cpu or not index.is_contiguous():
        return (
            f"must be a contiguous row of torch.uint8 on the CPU, it is {index.dtype} of shape {tuple(index.shape)} "
            f"with strides {index.stride()} on {index.device}"
        )
    if index.data_ptr() % 8:
        return "must lie at a multiple of eight bytes in memory: clone it"
    if not library.kernels().selfish_index_valid(address(index), len(index)):
        return "is damaged, or not the index of a packed weight"
    return None


def gates_cut_alike(row_bounds: Sequence[int], gate_rows: Sequence[int]) -> bool:
    """Return whether row bounds divide the gates, and gates of one size alike, as the kernels need."""
    cuts: dict[int, set[tuple[int, ...]]] = {}
    first = 0
    for size in gate_rows:
        inside = tuple(bound - first for bound in row_bounds if first <= bound <= first + size)
        if inside[:1] != (0,) or inside[-1:] != (size,):
            return False
        cuts.setdefault(size, set()).add(inside)
        first += size
    return all(len(ways) == 1 for ways in cuts.values())


def fingerprint(index: Tensor | None) -> tuple[int, int] | None:
    """Return a checksum of an index and its number of changes, or None if it has no bytes on the CPU."""
    if type(index) is not Tensor or index.device.type != "cpu" or index.is_inference():
        return None
    return zlib.crc32(index.numpy().data), index._version
