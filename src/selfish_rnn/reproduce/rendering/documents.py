"""Results in documents: what stands between two markers is rendered from the files and never typed.

A document says what it wants where::

    <!-- results: small stacked-lstm -->
    <!-- end of results -->

The name is that of an item, ``claims`` for all claims with their numbers, or ``claims-short`` for a line each.
"""

from __future__ import annotations

import re
from pathlib import Path

from selfish_rnn.errors import UserError
from selfish_rnn.files import write_atomically
from selfish_rnn.reproduce.case import Item
from selfish_rnn.reproduce.distances import Distances
from selfish_rnn.reproduce.overview import items_named
from selfish_rnn.reproduce.rendering.decisions import claims_table, short_table
from selfish_rnn.reproduce.rendering.drawing import draw
from selfish_rnn.reproduce.rendering.tables import Findings, table
from selfish_rnn.reproduce.results import Results
from selfish_rnn.reproduce.scales import scale_named

DOCUMENTS = (Path("README.md"), Path("docs/results.md"))

SECTION = re.compile(r"(<!-- results: (\S+) (\S+) -->\n)(.*?)(<!-- end of results -->)", re.DOTALL)


def findings_of(root: Path, scale: str) -> Findings:
    """Everything that is kept of a scale."""
    return Findings(scale_named(scale), Results(root, scale), Distances(root, scale))


def rendered(text: str, root: Path) -> str:
    """A document with its sections as the results say."""
    known: dict[str, Findings] = {}

    def section(found: re.Match[str]) -> str:
        start, scale, name, _, end = found.groups()
        findings = known.setdefault(scale, findings_of(root, scale))
        return f"{start}\n{_content(name, findings)}\n\n{end}"

    if text.count("<!-- results:") != len(SECTION.findall(text)):
        raise UserError("a section of results is not closed: `<!-- results: SCALE NAME -->`, `<!-- end of results -->`")
    return SECTION.sub(section, text)


def _content(name: str, findings: Findings) -> str:
    if name == "claims":
        return claims_table(findings)
    if name == "claims-short":
        return short_table(findings)
    return item_text(items_named([name])[0], findings)


def item_text(item: Item, findings: Findings) -> str:
    """The table of an item, and what the paper says of its own."""
    says = f" The paper: {item.says}" if item.says else ""
    return f"{item.title} ({item.source}).{says}\n\n{table(item, findings)}"


def render_documents(folder: Path, root: Path) -> list[Path]:
    """Bring the documents in a folder up to date; return those that changed."""
    changed = []
    for document in DOCUMENTS:
        path = folder / document
        if not path.exists():
            continue
        before = path.read_text()
        after = rendered(before, root)
        if after != before:
            write_atomically(path, after.encode())
            changed.append(path)
    return changed


def render_item(item: Item, findings: Findings) -> list[Path]:
    """Write an item's table beside its results, and its figures where they can be drawn."""
    folder = findings.results.folder / item.name
    path = folder / "table.md"
    write_atomically(path, (item_text(item, findings) + "\n").encode())
    return [path, *draw(item, findings, folder)]
