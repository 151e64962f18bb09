"""Figures that compare networks: perplexity against cost, ratios against sparsity, forest plots."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from selfish_rnn.analysis.figures.style import GREY, MARKERS, PAGE, colour, legend_below, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class CostedNetwork:
    """A trained network: its test perplexity, its costs by axis label, and validation over the hours of training.

    ``costs`` leaves out what was not measured. ``hours`` and ``valid_perplexities`` are the curve of the run.
    """

    label: str
    test_perplexity: float
    costs: Mapping[str, float]
    hours: Sequence[float] = ()
    valid_perplexities: Sequence[float] = ()


@styled
def perplexity_against_cost(networks: Sequence[CostedNetwork], *, dark: bool = False) -> Figure:
    """Draw a panel for every cost with one point for each network, and a panel with the curves over training time.

    Lower and further left is better.

    Example::

        network = CostedNetwork("dense, 512 units", 84.0, {"next word, int8 (ms)": 0.25})
        perplexity_against_cost([network])
    """
    if not networks:
        raise ValueError("there are no networks to draw")
    costs = list(dict.fromkeys(cost for network in networks for cost in network.costs))
    curves = any(network.hours for network in networks)
    figure = new_figure(PAGE, 2.6)
    panels = figure.subplots(1, len(costs) + curves, squeeze=False)[0]
    for axes, cost in zip(panels, costs, strict=False):
        for index, network in enumerate(networks):
            if cost in network.costs:
                marker = MARKERS[index % len(MARKERS)]
                axes.plot(
                    [network.costs[cost]], [network.test_perplexity], marker, color=colour(index), label=network.label
                )
        axes.set_xlabel(cost)
    panels[0].set_ylabel("test perplexity")
    if curves:
        for index, network in enumerate(networks):
            if network.hours:
                panels[-1].plot(network.hours, network.valid_perplexities, color=colour(index), label=network.label)
        # The first epochs would flatten the differences that matter.
        best = min(min(network.valid_perplexities) for network in networks if network.hours)
        panels[-1].set_ylim(0.95 * best, 1.6 * best)
        panels[-1].set_xlabel("core-hours of training")
        panels[-1].set_ylabel("validation perplexity")
    legend_below(figure, panels[-1] if curves else panels[0], 3)
    return figure


@dataclass(frozen=True)
class RatioLine:
    """Ratios over the dense network at several sparsities, with their lowest and highest values where known."""

    label: str
    sparsities: Sequence[float]
    values: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None

    def __post_init__(self) -> None:
        if {len(self.values), len(self.low or self.values), len(self.high or self.values)} != {len(self.sparsities)}:
            raise ValueError(f"{self.label}: values and their ends must be as many as sparsities")


@dataclass(frozen=True)
class RatioPanel:
    """A quantity of the dense network as a line at 1, and how sparse networks compare with it."""

    title: str
    lines: Sequence[RatioLine]
    logarithmic: bool = False


@styled
def ratios_against_sparsity(panels: Sequence[RatioPanel], *, dark: bool = False) -> Figure:
    """Panels side by side, the dense network a dashed line at 1 in each of them.

    Sparsities are spaced by how many weights are left: 0.8, 0.9 and 0.95 are equally far apart.

    Example::

        line = RatioLine("Selfish", [0.5, 0.9], [0.97, 1.06])
        ratios_against_sparsity([RatioPanel("test perplexity over dense", [line])])
    """
    panels = [panel for panel in panels if panel.lines]
    if not panels:
        raise ValueError("there are no ratios to draw")
    figure = new_figure(PAGE, 2.6)
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        _ratio_panel(axes, panel)
    return figure


def _ratio_panel(axes: Axes, panel: RatioPanel) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

    ticks = sorted({sparsity for line in panel.lines for sparsity in line.sparsities})
    axes.set_xscale("log")
    axes.set_xlim(0.9 / (1 - ticks[0]), 1.1 / (1 - ticks[-1]))
    if panel.logarithmic:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.axhline(1, color=GREY, linestyle="--", linewidth=1, zorder=1, label="dense")
    for index, line in enumerate(panel.lines):
        # Bars reach from the lowest to the highest value, so their lengths are counted from the value itself.
        bars = None
        if line.low is not None and line.high is not None:
            below = [value - low for value, low in zip(line.values, line.low, strict=True)]
            bars = [below, [high - value for value, high in zip(line.values, line.high, strict=True)]]
        axes.errorbar(
            [1 / (1 - sparsity) for sparsity in line.sparsities],
            line.values,
            yerr=bars,
            color=colour(index),
            marker=MARKERS[index % len(MARKERS)],
            capsize=2,
            elinewidth=0.8,
            label=line.label,
        )
    axes.set_xticks([1 / (1 - tick) for tick in ticks], [f"{tick:g}" for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_title(panel.title)
    axes.set_xlabel("sparsity")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.27))


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
        _estimate_panel(axes, rows, colours)
        axes.set_xlabel(unit)
    return figure


def _estimate_panel(axes: Axes, rows: Sequence[Estimate], colours: Mapping[str, str]) -> None:
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
