"""The report as one HTML file that loads nothing and executes nothing from its data."""

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
from selfish_rnn.analysis.report import one_run, sections
from selfish_rnn.analysis.report.comparison import Comparison, Group, compare
from selfish_rnn.analysis.report.markup import Markup, concatenated, section, tag
from selfish_rnn.analysis.report.sections import gates, series, topology_pictures
from selfish_rnn.errors import UserError
from selfish_rnn.files import write_atomically
from selfish_rnn.text import counted, printable

SCRIPTS = ("elements", "curves", "topologies", "page")
"""Files of the script, in the order of their dependencies."""


def write_report(records: Sequence[RunRecord], path: str | Path, *, title: str | None = None) -> None:
    """Write a report of runs, as one HTML file.

    Args:
        records: Records of :func:`~selfish_rnn.analysis.records.read_run`.
        path: File to write; an existing file is replaced.
        title: Heading (default: models and texts of the runs).

    Example::

        write_report([read_run(folder) for folder in folders], "report.html")
    """
    write_atomically(Path(path), report_html(records, title=title).encode())


def report_html(records: Sequence[RunRecord], *, title: str | None = None) -> str:
    """Return the page as text. A single run has a form of its own."""
    if not records:
        raise UserError("a report needs at least one run")
    named = with_unique_names(records)
    comparisons = compare(named)
    groups = [group for comparison in comparisons for group in comparison.groups]
    pictures = _pictures(groups)
    if len(named) == 1:
        parts = _one_run(named[0], sections.notes(comparisons), bool(pictures))
    else:
        parts = _several_runs(comparisons, groups, bool(pictures))
    heading = title or _title(named)
    script = _script()
    return string.Template(_file("page.html")).substitute(
        title=concatenated(heading),
        about=concatenated(_about(named, groups)),
        policy=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        style=_file("page.css"),
        sections=concatenated(*(part for part in parts if part is not None)),
        version=concatenated(__version__),
        data=_json({**series(comparisons), "topologies": pictures}),
        script=script,
    )


def _one_run(record: RunRecord, notes: list[str], has_model: bool) -> list[Markup | None]:
    """Return the sections about a single run."""
    facts = one_run.ModelFacts.of(record) if has_model else None
    return [
        one_run.outcome(record, facts, sections.machine_of([record]), notes),
        one_run.sample(facts) if facts is not None else None,
        _curves(),
        one_run.sparsity(record),
        _topologies(has_model),
        one_run.settings(record),
        one_run.next_steps(record),
    ]


def _several_runs(comparisons: Sequence[Comparison], groups: Sequence[Group], has_models: bool) -> list[Markup | None]:
    """Return the sections that compare runs."""
    numbers = {id(group): number for number, group in enumerate(groups)}

    def swatch(group: Group) -> Markup:
        return tag("i", class_=f"swatch c{numbers[id(group)] % len(COLOURS)}")

    return [
        sections.outcomes(comparisons, swatch),
        sections.settings(groups, swatch),
        _curves(),
        sections.runs(groups, swatch),
        sections.costs(groups, swatch),
        gates(groups, swatch),
        _topologies(has_models),
        sections.commands([run for group in groups for run in group.runs]),
    ]


def with_unique_names(records: Sequence[RunRecord]) -> list[RunRecord]:
    """Return records with unique names: folders of the same name get the name of their parent as a prefix."""
    names = [record.name for record in records]
    result = []
    for record in records:
        name = record.name
        if names.count(name) > 1 and record.path is not None:
            name = "/".join(record.path.resolve().parts[-2:])
        result.append(dataclasses.replace(record, name=printable(name)))
    repeated = [record.name for record in result if sum(entry.name == record.name for entry in result) > 1]
    if repeated:
        raise UserError(f"two of the runs are called {repeated[0]}: give each run once, and rename one of the two")
    return result


def _pictures(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Return the topologies of the first run of each group that has its model."""
    pictures = []
    for group in groups:
        for run in group.runs:
            topologies = run.topologies()
            if topologies:
                pictures.append(topology_pictures(run, topologies))
                break
    return pictures


def _curves() -> Markup:
    chart = tag("div", tag("noscript", "The curves need JavaScript."), class_="chart", id="chart")
    about = (
        "Point at the curves to read values. A circle marks the start of averaging; a dashed line is the perplexity of "
        "word frequencies alone."
    )
    return section("curves", "Curves", tag("p", about), tag("div", id="controls", class_="controls"), chart,
                            tag("div", id="legend", class_="legend"))  # fmt: skip


def _topologies(has_models: bool) -> Markup:
    if not has_models:
        note = "The run folders contain no model (model.safetensors), so there are no topologies to show."
        return section("topology", "Topology", tag("p", note, class_="note"))
    about = (
        "Density maps of the gates of the best model: rows are receiving units (top to bottom), columns are sending "
        "units (left to right). The curves show the share of rows or columns (vertical axis) by their number of "
        "weights (horizontal axis), with a random start in grey."
    )
    return section("topology", "Topology", tag("p", about), tag("div", id="topologies"))


def _title(records: Sequence[RunRecord]) -> str:
    models = dict.fromkeys(section_name(record.settings.get("model")) or "model" for record in records)
    corpora = dict.fromkeys(str(record.corpus.get("name") or record.settings.get("corpus")) for record in records)
    return f"{', '.join(models)} on {', '.join(corpora)}"


def _about(records: Sequence[RunRecord], groups: Sequence[Group]) -> str:
    """Return the line below the heading."""
    hours = sum(record.seconds for record in records) / 3600
    spent = f"{hours:.1f} hours" if hours >= 1 else counted(round(60 * hours), "minute")
    if len(records) == 1:
        state = "finished" if records[0].finished else "not finished"
        return (
            f"run {records[0].name}, {state}; method {records[0].method}, seed {records[0].seed}; {spent} of training"
        )
    finished = sum(record.finished for record in records)
    seeds = len({record.seed for record in records})
    done = "all finished" if finished == len(records) else f"{finished} finished"
    return (
        f"{counted(len(records), 'run')}, {done}; {counted(len(groups), 'setting')}, {counted(seeds, 'seed')}; "
        f"{spent} of training"
    )


def _json(data: Any) -> str:
    """Return JSON that cannot close its script element or open another one."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _script() -> str:
    """Return the files of the script as one, in its own scope."""
    return '"use strict";\n(() => {\n' + "\n".join(_file(f"{name}.js") for name in SCRIPTS) + "})();\n"


def _file(name: str) -> str:
    return (resources.files("selfish_rnn.analysis.report") / "assets" / name).read_text(encoding="utf-8")
