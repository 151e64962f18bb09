"""One page that needs nothing but a browser: no network, no library, nothing that runs from what it shows."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import string
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from selfish_rnn import __version__
from selfish_rnn.analysis.figures.style import COLOURS
from selfish_rnn.analysis.records import RunRecord, section_name
from selfish_rnn.analysis.report import sections
from selfish_rnn.analysis.report.comparison import Group, compare
from selfish_rnn.analysis.report.markup import Markup, tag, together
from selfish_rnn.analysis.report.sections import gates, series, topology_pictures
from selfish_rnn.errors import UserError
from selfish_rnn.files import write_atomically
from selfish_rnn.text import counted, printable

SCRIPTS = ("elements", "curves", "topologies", "page")
"""In the order in which they need each other."""


def write_report(records: Sequence[RunRecord], path: str | Path, *, title: str | None = None) -> None:
    """Write a report of runs, as one HTML file.

    Args:
        records: of :func:`~selfish_rnn.analysis.records.read_run`.
        path: the file; one that is there is replaced.
        title: what stands above it (default: the models and texts of the runs).

    Example::

        write_report([read_run(folder) for folder in folders], "report.html")
    """
    write_atomically(Path(path), report_html(records, title=title).encode())


def report_html(records: Sequence[RunRecord], *, title: str | None = None) -> str:
    """The page as text."""
    if not records:
        raise UserError("a report needs at least one run")
    named = with_own_names(records)
    comparisons = compare(named)
    groups = [group for comparison in comparisons for group in comparison.groups]
    numbers = {id(group): number for number, group in enumerate(groups)}

    def swatch(group: Group) -> Markup:
        return tag("i", class_=f"swatch c{numbers[id(group)] % len(COLOURS)}")

    pictures = _pictures(groups)
    parts = [
        sections.outcomes(comparisons, swatch),
        sections.settings(groups, swatch),
        _curves(),
        sections.runs(groups, swatch),
        sections.costs(groups, swatch),
        gates(groups, swatch),
        _topologies(bool(pictures)),
        sections.commands([run for group in groups for run in group.runs]),
    ]
    heading = title or _title(named)
    script = _script()
    return string.Template(_file("page.html")).substitute(
        title=together(heading),
        about=together(_about(named, groups)),
        policy=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        style=_file("page.css"),
        sections=together(*(part for part in parts if part is not None)),
        version=together(__version__),
        data=_json({**series(comparisons), "topologies": pictures}),
        script=script,
    )


def with_own_names(records: Sequence[RunRecord]) -> list[RunRecord]:
    """The records with names that differ: of folders with the same name, that of the folder above comes before it."""
    names = [record.name for record in records]
    result = []
    for record in records:
        name = record.name
        if names.count(name) > 1 and record.path is not None:
            name = "/".join(record.path.resolve().parts[-2:])
        result.append(dataclasses.replace(record, name=printable(name)))
    repeated = [record.name for record in result if sum(other.name == record.name for other in result) > 1]
    if repeated:
        raise UserError(f"two of the runs are called {repeated[0]}: give each run once, and rename one of two")
    return result


def _pictures(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """The topologies of one run of each group that still has its model."""
    found = []
    for group in groups:
        for run in group.runs:
            topologies = run.topologies()
            if topologies:
                found.append(topology_pictures(run, topologies))
                break
    return found


def _curves() -> Markup:
    chart = tag("div", tag("noscript", "The curves need JavaScript."), class_="chart", id="chart")
    about = "Point at the curves to read them, switch them on and off below. A circle is where averaging starts."
    return sections.section("curves", "Curves", tag("p", about), tag("div", id="controls", class_="controls"), chart,
                            tag("div", id="legend", class_="legend"))  # fmt: skip


def _topologies(any_found: bool) -> Markup:
    if not any_found:
        words = "The folders of these runs do not hold their models (model.safetensors), so there is nothing to show."
        return sections.section("topology", "Topology", tag("p", words, class_="note"))
    about = (
        "Where the weights of the best model are: rows receive, columns send, and the stronger the colour of a place, "
        "the more of its positions exist. Below, how many weights rows and columns have, a random start in grey."
    )
    return sections.section("topology", "Topology", tag("p", about), tag("div", id="topologies"))


def _title(records: Sequence[RunRecord]) -> str:
    models = dict.fromkeys(section_name(record.settings.get("model")) or "model" for record in records)
    corpora = dict.fromkeys(str(record.corpus.get("name") or record.settings.get("corpus")) for record in records)
    return f"{', '.join(models)} on {', '.join(corpora)}"


def _about(records: Sequence[RunRecord], groups: Sequence[Group]) -> str:
    finished = sum(record.finished for record in records)
    seeds = len({record.seed for record in records})
    hours = sum(record.seconds for record in records) / 3600
    done = "all finished" if finished == len(records) else f"{finished} finished"
    spent = f"{hours:.1f} hours" if hours >= 1 else f"{60 * hours:.0f} minutes"
    return (
        f"{counted(len(records), 'run')}, {done}; {counted(len(groups), 'setting')}, {counted(seeds, 'seed')}; "
        f"{spent} of training"
    )


def _json(data: Any) -> str:
    """JSON that cannot end the script element it stands in, nor begin anything else."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _script() -> str:
    """The files of the script as one, with names of its own."""
    return '"use strict";\n(() => {\n' + "\n".join(_file(f"{name}.js") for name in SCRIPTS) + "})();\n"


def _file(name: str) -> str:
    return (resources.files("selfish_rnn.analysis.report") / "assets" / name).read_text(encoding="utf-8")
