"""HTML in which nothing unescaped can end up by accident, and numbers as people read them."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

from selfish_rnn.text import printable

NOTHING = "\u2013"
"""A dash: what a cell shows when there is nothing to show."""


class Markup(str):
    """Text that is HTML already."""


def tag(name: str, *children: object, **attributes: object) -> Markup:
    """Return an element; children that are not :class:`Markup` are text and escaped, attributes always.

    Control characters in either are written out.

    >>> tag("p", "a < b", tag("b", "c"), class_="note", data_value=3)
    '<p class="note" data-value="3">a &lt; b<b>c</b></p>'
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(printable(str(value)))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{written}>{together(*children)}</{name}>")


def together(*children: object) -> Markup:
    """Children one after the other."""
    return Markup(
        "".join(child if isinstance(child, Markup) else html.escape(printable(str(child))) for child in children)
    )


@dataclass(frozen=True)
class Cell:
    """What a cell of a table shows; ``value`` is what it is sorted by, if not by what it shows."""

    content: object
    value: float | None = None


def number(value: float | None, digits: int = 2, unit: str = "") -> Cell:
    """A number as a cell, a dash where there is none."""
    return Cell(NOTHING) if value is None else Cell(f"{value:,.{digits}f}{unit}", value)


def duration(seconds: float) -> Cell:
    """``1:14`` minutes, ``2:03:09`` hours."""
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    text = f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"
    return Cell(text, seconds)


def table(headings: Sequence[str], rows: Sequence[Sequence[object]], *, caption: str, sortable: bool = True) -> Markup:
    """A table that scrolls by itself where it is too wide; a column in which a cell has a value is one of numbers."""
    cells = [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in rows]
    numeric = [any(row[column].value is not None for row in cells) for column in range(len(headings))]
    head = [
        tag("th", tag("button", heading, type="button") if sortable else heading, scope="col", class_=_kind(right))
        for heading, right in zip(headings, numeric, strict=True)
    ]
    body = [
        tag(
            "tr",
            *(
                tag("td", cell.content, class_=_kind(right), data_value=cell.value)
                for cell, right in zip(row, numeric, strict=True)
            ),
        )
        for row in cells
    ]
    kind = "sortable" if sortable else None
    inner = tag("table", tag("thead", tag("tr", *head)), tag("tbody", *body), class_=kind, aria_label=caption)
    return tag("figure", tag("div", inner, class_="scroll", tabindex=0), tag("figcaption", caption), class_="table")


def _kind(numeric: bool) -> str | None:
    return "number" if numeric else None
