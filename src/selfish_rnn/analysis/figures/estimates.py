"""Forest plot: estimates with their intervals and verdicts, one row each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from selfish_rnn.analysis.figures.style import GREY, PAGE, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ROW = 0.19
"""Inches of height for a row."""

_FRAME = 0.55
"""Inches of height for the axis of a panel."""


@dataclass(frozen=True)
class Estimate:
    """One row of a forest plot: a mean with the two ends of its interval, and what was concluded from it.

    ``threshold`` is the value that the interval is compared with. Ends may be infinite, which draws no line.
    """

    label: str
    mean: float
    low: float
    high: float
    verdict: str
    threshold: float = 0.0


@styled
def forest_plot(panels: Mapping[str, Sequence[Estimate]], colours: Mapping[str, str], *, dark: bool = False) -> Figure:
    """Estimates from top to bottom, those of each unit in a panel of its own with the unit below.

    Args:
        panels: estimates by the label of their axis.
        colours: colour of each verdict; a verdict without one is grey.
        dark: draw light lines on a dark background.

    Example::

        row = Estimate("Selfish against static", 2.3, 1.4, 3.2, "holds")
        forest_plot({"difference of test perplexity": [row]}, {"holds": "#009E73"})
    """
    panels = {unit: rows for unit, rows in panels.items() if rows}
    if not panels:
        raise ValueError("there are no estimates to draw")
    heights = [_ROW * len(rows) + _FRAME for rows in panels.values()]
    figure = new_figure(PAGE, sum(heights))
    grid = figure.subplots(len(panels), squeeze=False, height_ratios=heights)[:, 0]
    for axes, (unit, rows) in zip(grid, panels.items(), strict=True):
        _panel(axes, rows, colours)
        axes.set_xlabel(unit)
    return figure


def _panel(axes: Axes, rows: Sequence[Estimate], colours: Mapping[str, str]) -> None:
    axes.axvline(0, color=GREY, linewidth=0.8, zorder=1)
    for place, row in enumerate(rows):
        colour = colours.get(row.verdict, GREY)
        bounded = math.isfinite(row.low) and math.isfinite(row.high)
        if bounded:
            axes.plot([row.low, row.high], [place, place], color=colour, linewidth=1.6, solid_capstyle="butt")
        # A hollow square has no interval: it stands for a single seed.
        axes.plot(row.mean, place, "s", color=colour, mfc=colour if bounded else axes.get_facecolor(), markersize=4)
        if row.threshold:
            axes.plot([row.threshold] * 2, [place - 0.35, place + 0.35], color=GREY, linewidth=1, linestyle=":")
        axes.annotate(
            row.verdict, (1.01, place), xycoords=("axes fraction", "data"), color=colour, va="center", fontsize=7
        )
    axes.set_yticks(range(len(rows)), [row.label for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
