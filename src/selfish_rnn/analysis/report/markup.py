"""HTML elements, escaped by default, and readable numbers."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

from selfish_rnn.text import printable

NOTHING = "\u2013"
"""Content of an empty cell: a dash."""


class Markup(str):
    """HTML source, which is not escaped again."""


def tag(name: str, *children: object, **attributes: object) -> Markup:
    """Return an element. Attributes, and children that are not :class:`Markup`, are escaped.

    Control characters are written in escaped form.

    >>> tag("p", "a < b", tag("b", "c"), class_="note", data_value=3)
    '<p class="note" data-value="3">a &lt; b<b>c</b></p>'
    """
    pairs = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(printable(str(value)))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{pairs}>{concatenated(*children)}</{name}>")


def concatenated(*children: object) -> Markup:
    """Return children one after the other, escaped where necessary."""
    return Markup(
        "".join(child if isinstance(child, Markup) else html.escape(printable(str(child))) for child in children)
    )


@dataclass(frozen=True)
class Cell:
    """Content of a table cell. Rows are sorted by ``value``, if there is one."""

    content: object
    value: float | None = None


def number(value: float | None, digits: int = 2, unit: str = "") -> Cell:
    """Return a number as a cell, a dash for None."""
    return Cell(NOTHING) if value is None else Cell(f"{value:,.{digits}f}{unit}", value)


def duration(seconds: float) -> Cell:
    """Return a duration as a cell: ``1:14`` for minutes, ``2:03:09`` for hours."""
    whole = round(seconds)
    hours, minutes = divmod(whole // 60, 60)
    text = f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"
    return Cell(text, seconds)


def table(
    headings: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    caption: str,
    sortable: bool = True,
    title: bool = True,
) -> Markup:
    """Return a table that scrolls sideways if it is too wide. Columns with values are numeric.

    Without `title` the caption is for screen readers only.
    """
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
    return tag(
        "figure",
        tag("div", inner, class_="scroll", tabindex=0),
        tag("figcaption", caption) if title else "",
        class_="table",
    )


def _kind(numeric: bool) -> str | None:
    return "number" if numeric else None


def section(identity: str, title: str, *children: object) -> Markup:
    """Return a section with a heading."""
    return tag("section", tag("h2", title), *children, id=identity)
