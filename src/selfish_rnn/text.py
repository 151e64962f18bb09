"""Numbers and tables as people read them."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def duration(seconds: float) -> str:
    """Seconds as a person says them: 45 s, 3 min 05 s, 2 h 10 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def aligned(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> str:
    """Rows of text with their columns one below the other; those of the numbers in ``right`` are to the right.

    >>> print(aligned([("matrix", "weights"), ("rnn.weight_ih_l0", "81")], right=[1]))
    matrix            weights
    rnn.weight_ih_l0       81
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = enumerate(zip(row, widths, strict=True))
        fitted = (cell.rjust(width) if column in right else cell.ljust(width) for column, (cell, width) in cells)
        lines.append("  ".join(fitted).rstrip())
    return "\n".join(lines)
