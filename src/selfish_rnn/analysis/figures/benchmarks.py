"""The figure of a benchmark: speed, memory and widths, a panel for each kind of measurement and size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from selfish_rnn.analysis.figures.style import GREY, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANEL = 3.1
"""Side length of a panel in inches."""


@dataclass(frozen=True)
class EngineLine:
    """Line of an engine: a value at each sparsity, with the lowest and the highest.

    ``is_baseline`` draws a horizontal line at 1 instead, and ``annotated`` writes the values next to the points.
    """

    label: str
    sparsities: Sequence[float]
    values: Sequence[float]
    lowest: Sequence[float] = ()
    highest: Sequence[float] = ()
    colour: str | None = None
    marker: str = "o"
    is_baseline: bool = False
    annotated: bool = False


@dataclass(frozen=True)
class SpeedPanel:
    """Speed relative to the baseline, by sparsity."""

    title: str
    lines: Sequence[EngineLine]


@dataclass(frozen=True)
class MemoryPanel:
    """Peak memory in MiB by sparsity, with that of the imports alone."""

    title: str
    lines: Sequence[EngineLine]
    imports: EngineLine


@dataclass(frozen=True)
class WidthSeries:
    """Step time, peak memory and positions of networks with a common number of weights, relative to the first width."""

    weights: int
    widths: Sequence[int]
    times: Sequence[float]
    peaks: Sequence[float]
    positions: Sequence[float]


@dataclass(frozen=True)
class WidthPanel:
    """Costs by width, for several numbers of weights."""

    title: str
    series: Sequence[WidthSeries]
    colour: str | None = None


Panel = SpeedPanel | MemoryPanel | WidthPanel


@styled
def benchmark(rows: Sequence[Sequence[Panel | None]], about: str) -> Figure:
    """Draw the panels of a benchmark.

    Args:
        rows: Panels of every size, in the same columns; None for a missing measurement.
        about: Machine and versions, written below the panels.
    """
    columns = max(map(len, rows), default=0)
    figure = new_figure(max(PANEL * columns, 3.6), PANEL * len(rows) + 0.3)
    figure.set_layout_engine("constrained", w_pad=0.12)
    grid = figure.subplots(len(rows), columns, squeeze=False)
    for line, panels in zip(grid, rows, strict=True):
        for axes, panel in zip(line, panels, strict=True):
            if panel is None:
                axes.set_visible(False)
                continue
            axes.set_title(panel.title)
            if isinstance(panel, WidthPanel):
                _draw_widths(axes, panel)
            elif isinstance(panel, MemoryPanel):
                _draw_memory(axes, panel)
            else:
                _draw_speed(axes, panel)
    figure.supxlabel(about, fontsize=7, color=GREY)
    return figure


def _ideals(sparsities: Sequence[float]) -> list[float]:
    """Return the speed-ups if time were proportional to the number of weights."""
    return [1 / (1 - sparsity) for sparsity in sparsities]


def _look(line: EngineLine) -> dict[str, Any]:
    return {"color": line.colour or GREY, "marker": line.marker, "label": line.label}


def _draw_speed(axes: Any, panel: SpeedPanel) -> None:
    """Draw speed with logarithmic axes, so that the ideal is a straight line."""
    from matplotlib.patheffects import withStroke
    from matplotlib.ticker import LogLocator, NullFormatter

    sparsities = sorted({sparsity for line in panel.lines for sparsity in line.sparsities})
    ideals = _ideals(sparsities)
    _sparsity_axis(axes, sparsities)
    axes.plot(ideals, ideals, linestyle=(0, (4, 3)), color=GREY, marker="_", label="ideal: 1/(1-S)", zorder=1)
    outline = [withStroke(linewidth=3, foreground="white")]  # readable where lines cross it
    bounds = [0.9, 2.5, *ideals]
    for line in panel.lines:
        look = _look(line)
        if line.is_baseline:
            axes.axhline(1, color=look["color"], linewidth=1, label=line.label, zorder=1)
            continue
        xs = _ideals(line.sparsities)
        bounds += [*line.lowest, *line.highest]
        axes.plot(xs, line.values, zorder=3, **look)
        axes.vlines(xs, line.lowest, line.highest, color=look["color"], linewidth=1.2, zorder=2)
        for point in zip(xs, line.values, strict=True) if line.annotated else ():
            text = {"color": look["color"], "path_effects": outline, "zorder": 4, "fontsize": 7}
            axes.annotate(f"{point[1]:.1f}", point, (5, -10), textcoords="offset points", **text)
    axes.set_yscale("log")
    # Leave space for the legend above the lines.
    axes.set_ylim(min(bounds) / 1.15, max(bounds) * (max(bounds) / min(bounds)) ** 0.45)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel("times as fast as the baseline")
    axes.legend(loc="upper left")


def _draw_memory(axes: Any, panel: MemoryPanel) -> None:
    _sparsity_axis(axes, panel.imports.sparsities)
    for line in panel.lines:
        axes.plot(_ideals(line.sparsities), line.values, **_look(line))
    imports = panel.imports
    axes.plot(_ideals(imports.sparsities), imports.values, linestyle=":", color=GREY, marker=".", label=imports.label)
    axes.set_ylim(0, 1.15 * max(value for line in panel.lines for value in line.values))
    axes.set_ylabel("MiB")
    axes.legend(loc="lower left")


def _draw_widths(axes: Any, panel: WidthPanel) -> None:
    """Draw time, memory and positions of every number of weights, relative to those of the first width."""
    for index, series in enumerate(panel.series):
        look = {"color": panel.colour, "alpha": 1.0 if index == 0 else 0.5}
        weights = f"{series.weights / 1e6:.1f} M weights"
        axes.plot(series.widths, series.times, marker="o", label=f"step time, {weights}", **look)
        axes.plot(series.widths, series.peaks, marker="s", linestyle=":", label=f"peak memory, {weights}", **look)
        if index == 0:
            axes.plot(series.widths, series.positions, linestyle=(0, (4, 3)), color=GREY, label="positions", zorder=1)
    widths = panel.series[0].widths
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(widths, [f"{width}" for width in widths], rotation=45, fontsize=7)
    axes.minorticks_off()
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("hidden size")
    axes.set_ylabel(f"times that of {widths[0]} units")
    axes.legend(loc="upper left")


def _sparsity_axis(axes: Any, sparsities: Sequence[float]) -> None:
    """Space sparsities by the logarithm of 1/(1-S), with space for a number after the last point."""
    ideals = _ideals(sparsities)
    axes.set_xscale("log")
    axes.set_xlim(ideals[0] / 1.2, ideals[-1] * (1.25 if len(ideals) == 1 else 1.55))
    axes.set_xticks(ideals, [f"{sparsity:g}" for sparsity in sparsities])
    axes.minorticks_off()
    axes.set_xlabel("sparsity")
