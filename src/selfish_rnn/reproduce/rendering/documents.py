"""Documents: README.md and docs/results.md of the repository, whose numbers are rendered from result files.

A section of a document is enclosed by two comments::

    <!-- results: small stacked-lstm -->
    <!-- end of results -->

The second word is a scale. The third is the name of an item, or one of these:

``claims``, ``claims-short``
    All claims with their numbers, or a line for each.
``claims-both-rules``
    All claims with the verdicts by the present rule and by that of the first edition.
``summary``
    Sentences on speed, memory, quality and verdicts.
``tables``
    Every item with results under a heading, and one line that names the others.
``figure-claims``, ``figure-sparsity``, ``figure-pareto``
    A figure, drawn into docs/figures.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

from selfish_rnn.errors import UserError
from selfish_rnn.files import write_atomically
from selfish_rnn.reproduce.case import Item
from selfish_rnn.reproduce.paper import items_at, items_named
from selfish_rnn.reproduce.rendering.figures import (
    FIGURES,
    FOLDER,
    Points,
    draw,
    picture,
    render_figure,
    sparsity_points,
)
from selfish_rnn.reproduce.rendering.tables import ResultView, table
from selfish_rnn.reproduce.rendering.verdicts import (
    FAILS,
    HOLDS,
    INCONCLUSIVE,
    NOT_RUN,
    claims_table,
    main_decisions,
    short_table,
)

DOCUMENTS = (Path("README.md"), Path("docs/results.md"))
"""Documents in the repository."""

SECTION = re.compile(r"(<!-- results: (\S+) (\S+) -->\n)(.*?)(<!-- end of results -->)", re.DOTALL)

AT = 0.9
"""Sparsity in the sentences on speed and memory."""


def rendered(text: str, root: Path, document: Path = DOCUMENTS[0]) -> str:
    """Return a document with its sections rendered from the results in `root`. Links depend on its path."""
    views: dict[str, ResultView] = {}
    figures = posixpath.relpath(FOLDER.as_posix(), document.parent.as_posix())

    def section(match: re.Match[str]) -> str:
        start, scale, name, _, end = match.groups()
        view = views.setdefault(scale, ResultView.read(root, scale))
        return f"{start}\n{_content(name, view, figures)}\n\n{end}"

    if text.count("<!-- results:") != len(SECTION.findall(text)):
        raise UserError("a section of results is not closed: `<!-- results: SCALE NAME -->`, `<!-- end of results -->`")
    return SECTION.sub(section, text)


def figures_in(text: str) -> list[tuple[str, str]]:
    """Return scale and name of every figure that a document asks for."""
    return [(scale, name) for _, scale, name, *_ in SECTION.findall(text) if name in FIGURES]


def _content(name: str, view: ResultView, figures: str) -> str:
    if name in FIGURES:
        return picture(name, view, figures)
    if name in _TEXTS:
        return _TEXTS[name](view)
    return item_text(items_named([name])[0], view)


def _tables(view: ResultView) -> str:
    """Return every item with results under a heading, and a line that names the items without any.

    A superseded scale has lower headings with its name, and no line, because it is not run again.
    """
    scale = view.scale
    parts, missing = [], []
    for item in items_at(scale.name):
        text = item_text(item, view)
        if "\n|---" in text:
            heading = f"#### {item.name}, {scale.name}" if scale.superseded else f"### {item.name}"
            parts.append(f"{heading}\n\n{text}")
        else:
            missing.append(f"`{item.name}`")
    if missing and not scale.superseded:
        parts.append(f"*No run is finished of* {', '.join(missing)}.")
    return "\n\n".join(parts)


def summary(view: ResultView) -> str:
    """Return a list of sentences on speed, memory, quality and verdicts."""
    lines = {line["label"]: line for panel in sparsity_points(view).get("panels", []) for line in panel["lines"]}
    sentences = [*_speed(lines), *_memory(lines), _quality(lines, view), _verdicts(view)]
    return "\n".join(f"- {sentence}" for sentence in sentences)


def _values(lines: dict[str, Points], *labels: str) -> list[float]:
    """Return the values of lines at AT; an empty list unless all were measured there."""
    values = [dict(zip(lines[label]["sparsities"], lines[label]["values"], strict=True)).get(AT)
              for label in labels if label in lines]  # fmt: skip
    numbers = [value for value in values if value is not None]
    return numbers if len(numbers) == len(labels) else []


def _speed(lines: dict[str, Points]) -> list[str]:
    values = _values(lines, "training step", "next word, float32", "next word, int8 over dense int8")
    if not values:
        return []
    step, word, int8 = values
    return [
        f"**Speed.** At sparsity {AT:g} a training step is {step:.2g} times as fast as dense torch on a CPU. The next "
        f"word is {word:.2g} times as fast in float32 as in dense float32, and {int8:.2g} times as fast in int8 as in "
        "the fastest dense int8 (LSTM of 1500 units)."
    ]


def _memory(lines: dict[str, Points]) -> list[str]:
    values = _values(lines, "training", "int8 weights")
    if not values:
        return []
    training, weights = values
    return [
        f"**Memory.** Training takes {100 * training:.0f} % of the dense network's memory, and sparse int8 weights "
        f"take {100 * weights:.0f} % of the bytes of dense int8 ones."
    ]


def _quality(lines: dict[str, Points], view: ResultView) -> str:
    about = "**Quality.** Test perplexity of Selfish relative to the dense network"
    if "Selfish" not in lines:
        return f"{about} is unknown at scale `{view.scale.name}`: no run is finished."
    line = lines["Selfish"]
    points = zip(line["sparsities"], line["values"], strict=True)
    changes = ", ".join(f"{100 * (value - 1):+.1f} % at sparsity {sparsity:g}" for sparsity, value in points)
    return f"{about} (256 units, means over common seeds): {changes}."


def _verdicts(view: ResultView) -> str:
    outcomes = main_decisions(view)
    counts = Counter(decision.verdict for decision in outcomes)
    verbs = {HOLDS: "hold", FAILS: "do not hold", INCONCLUSIVE: "are inconclusive", NOT_RUN: "are not run"}
    if counts[NOT_RUN] == len(outcomes):
        return f"**Claims.** None of the paper's {len(outcomes)} claims has been run in this edition yet."
    parts = ", ".join(f"{counts[verdict]} {verb}" for verdict, verb in verbs.items() if counts[verdict])
    return f"**Claims.** Of {len(outcomes)} claims of the paper {parts}."


_TEXTS: dict[str, Callable[[ResultView], str]] = {
    "claims": claims_table,
    "claims-short": short_table,
    "claims-both-rules": partial(claims_table, first_rule=True),
    "summary": summary,
    "tables": _tables,
}


def item_text(item: Item, view: ResultView) -> str:
    """Return title, conclusion of the paper, and table of an item."""
    conclusion = f" The paper: {item.conclusion}" if item.conclusion else ""
    return f"{item.title} ({item.source}).{conclusion}\n\n{table(item, view)}"


def render_documents(folder: Path, root: Path) -> list[Path]:
    """Update the documents in the root folder of the repository and their figures; return the changed files.

    Args:
        folder: Root folder of the repository.
        root: Folder of the results.

    Raises:
        UserError: If the folder is not the repository.
    """
    absent = [document.as_posix() for document in DOCUMENTS if not (folder / document).is_file()]
    if absent:
        raise UserError(
            f"{folder.resolve()} has no {' and no '.join(absent)}: documents are rendered in the root folder of the "
            "selfish-rnn repository"
        )
    changed: list[Path] = []
    figures: dict[tuple[str, str], None] = {}
    for document in DOCUMENTS:
        path = folder / document
        before = path.read_text()
        after = rendered(before, root, document)
        figures.update(dict.fromkeys(figures_in(after)))
        if after != before:
            write_atomically(path, after.encode())
            changed.append(path)
    # Figures come last: tables are up to date even where matplotlib is not installed.
    for scale, name in figures:
        changed += render_figure(name, ResultView.read(root, scale), folder / FOLDER)
    return changed


def render_item(item: Item, view: ResultView) -> list[Path]:
    """Write the table of an item next to its results, and its figures if matplotlib is installed."""
    folder = view.results.folder / item.name
    path = folder / "table.md"
    write_atomically(path, (item_text(item, view) + "\n").encode())
    return [path, *draw(item, view, folder)]
