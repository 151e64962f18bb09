"""How every group spreads its weights over the gates, as tables with a small curve in each cell."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from selfish_rnn.analysis.gates import with_gates
from selfish_rnn.analysis.names import gate_name, short_names
from selfish_rnn.analysis.records import Densities
from selfish_rnn.analysis.report.comparison import Group
from selfish_rnn.analysis.report.markup import NOTHING, Cell, Markup, table, tag, together
from selfish_rnn.analysis.report.sections import Colour, section
from selfish_rnn.topology.gates import WHOLE

POINTS = 40
"""Most points of a small curve."""


def gates(groups: Sequence[Group], swatch: Colour) -> Markup | None:
    """A table for each matrix with gates; nothing if there is none."""
    names = list(dict.fromkeys(name for group in groups for name in with_gates(_last(group))))
    if not names:
        return None
    about = tag(
        "p",
        "Density of every gate at the end, averaged over seeds, with its course since the first epoch. ",
        tag("span", "denser", class_="denser"),
        " or ",
        tag("span", "sparser", class_="sparser"),
        " than the whole matrix.",
    )
    tables = [_matrix(name, short, groups, swatch) for name, short in zip(names, short_names(names), strict=True)]
    return section("gates", "Gates", about, tag("div", *tables, class_="matrices"))


def _last(group: Group) -> Densities:
    """The densities at the end of a group's first run."""
    return group.runs[0].epochs[-1].density


def _matrix(name: str, short: str, groups: Sequence[Group], swatch: Colour) -> Markup:
    having = [group for group in groups if name in _last(group)]
    kinds = list(dict.fromkeys(gate for group in having for gate in _last(group)[name] if gate != WHOLE))
    rows = [
        [together(swatch(group), group.label), *(_density(group, name, gate) for gate in kinds)] for group in having
    ]
    caption = short if short == name else f"{short} ({name})"
    return table(["setting", *(gate_name(gate) for gate in kinds)], rows, caption=caption)


def _density(group: Group, name: str, gate: str) -> Cell:
    if gate not in _last(group)[name]:  # of another cell
        return Cell(NOTHING)
    ends = [run.epochs[-1].density[name] for run in group.runs if gate in run.epochs[-1].density.get(name, {})]
    density = statistics.fmean(end[gate] for end in ends)
    whole = statistics.fmean(end[WHOLE] for end in ends)
    course = [epoch.density[name][gate] for epoch in group.runs[0].epochs]
    # How far from the whole matrix, half of it being as far as the colour goes.
    strength = min(1.0, abs(density - whole) / (0.5 * whole)) if whole else 0.0
    content = tag(
        "span",
        f"{density:.3f}",
        _sparkline(course, whole),
        class_="gate " + ("denser" if density > whole else "sparser"),
        style=f"--strength:{45 * strength:.0f}%",
    )
    return Cell(content, density)


def _sparkline(course: Sequence[float], whole: float) -> Markup:
    """From 40 % to 160 % of the density of the whole matrix, which is the line through the middle."""
    step = max(1, -(-len(course) // POINTS))
    shown = [*course[:-1:step], course[-1]]
    points = " ".join(
        f"{60 * index / max(1, len(shown) - 1):.1f},{_height(value / whole if whole else 1.0):.1f}"
        for index, value in enumerate(shown)
    )
    inner = together(tag("line", x1=0, x2=60, y1=8, y2=8), tag("polyline", points=points))
    return tag("svg", inner, viewBox="-1 -1 62 18", class_="spark", aria_hidden="true")


def _height(times: float) -> float:
    return 16 * min(1.0, max(0.0, (1.6 - times) / 1.2))
