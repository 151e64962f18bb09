"""Gate layouts: the division of the rows of a recurrent weight matrix into named gates."""

from __future__ import annotations

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

    >>> GateLayout.even(("reset", "update", "candidate"), rows=12)
    GateLayout(names=('reset', 'update', 'candidate'), sizes=(4, 4, 4))
    >>> GateLayout(("master", "output"), (2, 20)).rows
    22
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.names) != len(self.sizes) or not self.names:
            raise ValueError(f"a gate layout needs one size per name, got names {self.names} and sizes {self.sizes}")
        if len(set(self.names)) != len(self.names):
            raise ValueError(f"gate names must differ from each other, got {self.names}")
        if any(size < 1 for size in self.sizes):
            raise ValueError(f"every gate needs at least one row, got sizes {self.sizes}")

    @classmethod
    def even(cls, names: Sequence[str], rows: int) -> GateLayout:
        """Return gates of the same size over ``rows`` rows."""
        if rows % len(names):
            raise ValueError(f"{rows} rows cannot be divided evenly over the gates {tuple(names)}")
        return cls(tuple(names), (rows // len(names),) * len(names))

    @classmethod
    def single(cls, rows: int) -> GateLayout:
        """Return the layout of a matrix without gates: one gate covers all rows."""
        return cls((WHOLE,), (rows,))

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
