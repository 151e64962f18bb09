"""Numbers and tables as people read them."""

from __future__ import annotations

import re
import statistics
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # which the library can do without
    from rich.console import Console
    from rich.table import Table


# All control characters but tab and line feed, marks that turn the direction of text, and halves of characters.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    r"""Return text with every control character written out: a word may be an escape sequence, ``\x1b]52;...``.

    >>> printable("the\x1b[2Jcat")
    'the\\x1b[2Jcat'
    """
    return _CONTROL.sub(lambda match: match.group().encode("unicode_escape").decode(), text)


def duration(seconds: float) -> str:
    """Return seconds in units: 45 s, 3 min 05 s, 2 h 10 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def spread(values: Sequence[float], digits: int = 2, none: str = "-") -> str:
    """Return mean and standard deviation, ``71.65 ± 0.12``, or the single value."""
    if not values:
        return none
    mean = f"{statistics.fmean(values):.{digits}f}"
    return f"{mean} ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else mean


def counted(number: int, noun: str) -> str:
    """Return a count with its noun: ``1 run``, ``3 runs``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def aligned(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> str:
    """Return rows of text with aligned columns; the columns numbered in ``right`` are right-aligned.

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


def say(console: Console, text: str) -> None:
    """Print text without wrapping."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def plain_table(text: Iterable[str] = (), numbers: Iterable[str] = (), **options: Any) -> Table:
    """Return a table without lines: columns of text, then columns of numbers, under these headings."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), **options)
    for heading in text:
        table.add_column(heading, overflow="fold")
    for heading in numbers:
        table.add_column(heading, justify="right")
    return table
