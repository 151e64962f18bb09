"""Gate layouts: the division of the rows of a recurrent weight matrix into named gates."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

LSTM_GATES = ("input", "forget", "candidate", "output")
GRU_GATES = ("reset", "update", "candidate")
RNN_GATES = ("hidden",)

WHOLE = "all"
"""Name of a whole matrix among its gates, and of the only gate of a matrix without gates."""


@dataclass(frozen=True)
class GateLayout:
    """Named gates, stacked from the top row of a matrix to the bottom. Their sizes may differ.

    >>> GateLayout.even(("reset", "update", "candidate"), rows=12).sizes
    (4, 4, 4)
    >>> GateLayout(("master", "output"), (2, 20)).rows
    22

    A weight of several dimensions is a matrix whose rows are the indices of ``axes``, the first one slowest, and whose
    columns are those of all other axes. The gates divide the first of ``axes``. The recurrent kernel of xLSTM's sLSTM
    has the shape (heads, inputs, gates, outputs), so a row of a gate is an output of a head:

    >>> layout = GateLayout.even(("input", "forget", "cell", "output"), 4 * 2 * 8, axes=(2, 0, 3))
    >>> layout.matrix_shape((2, 8, 4, 8))
    (64, 8)
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    axes: tuple[int, ...] = (0,)

    def __post_init__(self) -> None:
        if len(self.names) != len(self.sizes) or not self.names:
            raise ValueError(f"a gate layout needs one size per name, got names {self.names} and sizes {self.sizes}")
        if len(set(self.names)) != len(self.names):
            raise ValueError(f"gate names must differ from each other, got {self.names}")
        if any(size < 1 for size in self.sizes):
            raise ValueError(f"every gate needs at least one row, got sizes {self.sizes}")
        if not self.axes or len(set(self.axes)) != len(self.axes) or min(self.axes) < 0:
            raise ValueError(f"the rows of a gate layout are different axes, counted from 0; got {self.axes}")

    @classmethod
    def even(cls, names: Sequence[str], rows: int, axes: Sequence[int] = (0,)) -> GateLayout:
        """Return gates of the same size over ``rows`` rows."""
        if rows % len(names):
            raise ValueError(f"{rows} rows cannot be divided evenly over the gates {tuple(names)}")
        return cls(tuple(names), (rows // len(names),) * len(names), tuple(axes))

    @classmethod
    def single(cls, rows: int, axes: Sequence[int] = (0,)) -> GateLayout:
        """Return the layout of a matrix without gates: one gate covers all rows."""
        return cls((WHOLE,), (rows,), tuple(axes))

    def matrix_shape(self, shape: Sequence[int]) -> tuple[int, int]:
        """Return the rows and columns of a weight of this shape; raise if the gates do not fit them."""
        if max(self.axes) >= len(shape):
            raise ValueError(f"a gate layout over the axes {self.axes} does not fit a weight of shape {tuple(shape)}")
        rows = math.prod(shape[axis] for axis in self.axes)
        if rows != self.rows:
            raise ValueError(f"gates of {self.rows} rows do not fit a matrix of shape {tuple(shape)}")
        return rows, math.prod(shape) // max(rows, 1)

    @property
    def rows(self) -> int:
        """Number of rows of all gates."""
        return sum(self.sizes)

    def __len__(self) -> int:
        return len(self.names)

    def row_ranges(self) -> Iterator[tuple[str, int, int]]:
        """Yield each gate with its first row and the row after its last."""
        start = 0
        for name, size in zip(self.names, self.sizes, strict=True):
            yield name, start, start + size
            start += size
