"""Results in documents: what stands between two markers is rendered from the files and never typed.

A document says what it wants where::

    <!-- results: small stacked-lstm -->
    <!-- end of results -->

The name is that of an item or one of these:

``claims``, ``claims-short``
    All claims with their numbers, or a line for each.
``claims-both-rules``
    All claims with the verdicts by today's rule and by that of the first edition.
``summary``
    Sentences on speed, memory, quality and verdicts.
``tables``
    Every item with results, under a heading of its own, and one line that names the others.
``figure-claims``, ``figure-sparsity``, ``figure-pareto``
    A figure, which is drawn into docs/figures.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from selfish_rnn.errors import UserError
from selfish_rnn.files import write_atomically
from selfish_rnn.reproduce.case import Item
from selfish_rnn.reproduce.distances import Distances
from selfish_rnn.reproduce.overview import items_named
from selfish_rnn.reproduce.paper import items_at
from selfish_rnn.reproduce.rendering.decisions import claims_table, short_table
from selfish_rnn.reproduce.rendering.drawing import draw
from selfish_rnn.reproduce.rendering.published import FIGURES, FOLDER, picture, render_figure
from selfish_rnn.reproduce.rendering.summary import summary
from selfish_rnn.reproduce.rendering.tables import Findings, table
from selfish_rnn.reproduce.results import Results
from selfish_rnn.reproduce.scales import scale_named

DOCUMENTS = (Path("README.md"), Path("docs/results.md"))

SECTION = re.compile(r"(<!-- results: (\S+) (\S+) -->\n)(.*?)(<!-- end of results -->)", re.DOTALL)


def findings_of(root: Path, scale: str) -> Findings:
    """Everything that is kept of a scale."""
    return Findings(scale_named(scale), Results(root, scale), Distances(root, scale))


def rendered(text: str, root: Path, document: Path = DOCUMENTS[0]) -> str:
    """Return a document with its sections as the results in `root` say; its path decides how it links to figures."""
    views: dict[str, Findings] = {}
    figures = posixpath.relpath(FOLDER.as_posix(), document.parent.as_posix())

    def section(match: re.Match[str]) -> str:
        start, scale, name, _, end = match.groups()
        view = views.setdefault(scale, findings_of(root, scale))
        return f"{start}\n{_content(name, view, figures)}\n\n{end}"

    if text.count("<!-- results:") != len(SECTION.findall(text)):
        raise UserError("a section of results is not closed: `<!-- results: SCALE NAME -->`, `<!-- end of results -->`")
    return SECTION.sub(section, text)


def figures_in(text: str) -> list[tuple[str, str]]:
    """Return scale and name of every figure that a document asks for."""
    return [(scale, name) for _, scale, name, *_ in SECTION.findall(text) if name in FIGURES]


def _content(name: str, findings: Findings, figures: str) -> str:
    if name in FIGURES:
        return picture(name, findings, figures)
    if name in _TEXTS:
        return _TEXTS[name](findings)
    return item_text(items_named([name])[0], findings)


def _tables(findings: Findings) -> str:
    """Return every item with results under a heading, and a line that names the items without any.

    A superseded scale has lower headings with its name, and no line, because it gets no more runs.
    """
    scale = findings.scale
    parts, missing = [], []
    for item in items_at(scale.name):
        text = item_text(item, findings)
        if "\n|---" in text:
            heading = f"#### {item.name}, {scale.name}" if scale.superseded else f"### {item.name}"
            parts.append(f"{heading}\n\n{text}")
        else:
            missing.append(f"`{item.name}`")
    if missing and not scale.superseded:
        parts.append(f"*No run is finished of* {', '.join(missing)}.")
    return "\n\n".join(parts)


_TEXTS: dict[str, Callable[[Findings], str]] = {
    "claims": claims_table,
    "claims-short": short_table,
    "claims-both-rules": partial(claims_table, first_rule=True),
    "summary": summary,
    "tables": _tables,
}


def item_text(item: Item, findings: Findings) -> str:
    """The table of an item, and what the paper says of its own."""
    says = f" The paper: {item.says}" if item.says else ""
    return f"{item.title} ({item.source}).{says}\n\n{table(item, findings)}"


def render_documents(folder: Path, root: Path) -> list[Path]:
    """Bring the documents in a folder and their figures up to date; return the files that changed."""
    changed: list[Path] = []
    figures: dict[tuple[str, str], None] = {}
    for document in DOCUMENTS:
        path = folder / document
        if not path.exists():
            continue
        before = path.read_text()
        after = rendered(before, root, document)
        figures.update(dict.fromkeys(figures_in(after)))
        if after != before:
            write_atomically(path, after.encode())
            changed.append(path)
    # Figures come last: tables are up to date even where matplotlib is not installed.
    for scale, name in figures:
        changed += render_figure(name, findings_of(root, scale), folder / FOLDER)
    return changed


def render_item(item: Item, findings: Findings) -> list[Path]:
    """Write an item's table beside its results, and its figures where they can be drawn."""
    folder = findings.results.folder / item.name
    path = folder / "table.md"
    write_atomically(path, (item_text(item, findings) + "\n").encode())
    return [path, *draw(item, findings, folder)]
