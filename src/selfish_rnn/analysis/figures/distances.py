"""How far topologies are from each other: over the epochs of one run, and between runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from selfish_rnn.analysis.figures.style import COLUMN, DASHES, GREY, PAGE, colour, legend_below, new_figure, styled
from selfish_rnn.analysis.networks import short_names

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class DistanceSeries:
    """The distance of the topology of one matrix from another, at the end of several epochs."""

    matrix: str
    epochs: Sequence[int]
    distances: Sequence[float]
    growth: str = "random"

    def __post_init__(self) -> None:
        if len(self.epochs) != len(self.distances):
            raise ValueError(f"{len(self.epochs)} epochs need as many distances, got {len(self.distances)}")


@styled
def distances(panels: Mapping[str, Sequence[DistanceSeries]], *, density: float | None = None) -> Figure:
    """A panel for each title, a colour for each matrix, a kind of line for each way to grow.

    Args:
        panels: for example ``{"within a run": [...], "between two runs": [...]}``.
        density: draws the distance of two independent random topologies of that density, ``1 - d / (2 - d)``.
    """
    if not panels:
        raise ValueError("there is no panel to draw")
    series = [one for several in panels.values() for one in several]
    matrices = list(dict.fromkeys(one.matrix for one in series))
    growths = list(dict.fromkeys(one.growth for one in series))
    if len(growths) > len(DASHES):
        raise ValueError(f"at most {len(DASHES)} ways to grow can be told apart by their lines, got {len(growths)}")
    figure = new_figure(COLUMN if len(panels) == 1 else PAGE, 2.0)
    line = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (title, several) in zip(line, panels.items(), strict=True):
        for one in several:
            axes.plot(
                one.epochs,
                one.distances,
                color=colour(matrices.index(one.matrix)),
                linestyle=DASHES[growths.index(one.growth)],
            )
        if density is not None:
            axes.axhline(1 - density / (2 - density), color=GREY, linestyle=":", linewidth=0.8)
        axes.set(xlabel="epoch", title=title, ylim=(0, 1))
    for index, name in enumerate(short_names(matrices)):
        line[0].plot([], [], color=colour(index), label=name)
    if len(growths) > 1:
        for growth, dashes in zip(growths, DASHES, strict=False):
            line[0].plot([], [], color=GREY, linestyle=dashes, label=f"{growth} growth")
    if density is not None:
        line[0].plot([], [], color=GREY, linestyle=":", linewidth=0.8, label="independent topologies")
    line[0].set_ylabel("topological distance")
    legend_below(figure, line[0], 3 if len(panels) == 1 else 7)
    return figure
