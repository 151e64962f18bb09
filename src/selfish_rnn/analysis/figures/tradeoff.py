"""Gains and costs of sparsity: several quantities against sparsity, each relative to the dense network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from selfish_rnn.analysis.figures.style import GREY, MARKERS, PAGE, colour, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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
        _panel(axes, panel)
    return figure


def _panel(axes: Axes, panel: RatioPanel) -> None:
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
