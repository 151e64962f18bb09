"""Figures of topologies: density maps, degrees, gates over time, and distances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from selfish_rnn.analysis.figures.style import (
    COLOURS,
    COLUMN,
    DASHES,
    GREY,
    PAGE,
    colour,
    legend_below,
    new_figure,
    styled,
)
from selfish_rnn.analysis.networks import gate_name, short_names, with_gates
from selfish_rnn.analysis.records import RunRecord
from selfish_rnn.analysis.topologies import degree_shares, density_map
from selfish_rnn.topology import Topology
from selfish_rnn.topology.gates import WHOLE
from selfish_rnn.training.records import Densities

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Topologies = Mapping[str, Topology]
"""Topologies by the names of their matrices, such as :meth:`RunRecord.topologies`."""


@styled
def density_maps(topologies: Topologies, *, bins: int = 24) -> Figure:
    """Draw a density map of every gate, with a row of panels for each matrix. Darker is denser.

    Rows are receiving units and columns sending ones. All maps share one scale, and have at most ``bins`` x ``bins``
    cells.
    """
    _check_topologies(topologies)
    maps = {
        (name, gate): density_map(topology, gate, bins)
        for name, topology in topologies.items()
        for gate in topology.gates.names
    }
    across = max(len(topology.gates) for topology in topologies.values())
    figure = new_figure(COLUMN if across <= 4 else PAGE, 0.82 * len(topologies) + 0.55)
    panels = figure.subplots(len(topologies), across, squeeze=False)
    highest = max(float(density.max()) for density in maps.values())
    image = None
    for line, (name, topology), short in zip(panels, topologies.items(), short_names(list(topologies)), strict=True):
        for axes in line:
            axes.set(xticks=[], yticks=[])
            axes.grid(visible=False)
            axes.set_visible(False)
        for axes, gate in zip(line, topology.gates.names, strict=False):
            axes.set_visible(True)
            image = axes.imshow(maps[name, gate], cmap="cividis_r", vmin=0, vmax=highest, aspect="auto")
            axes.set_title(gate_name(gate), fontsize=7, pad=2)
            axes.spines[:].set_visible(True)
        line[0].set_ylabel(short, fontsize=7)
    assert image is not None
    bar = figure.colorbar(image, ax=panels, location="bottom", aspect=40, fraction=0.05, pad=0.02)
    bar.set_label("density", labelpad=1)
    return figure


@styled
def degree_distributions(topologies: Topologies, *, start: Topologies | None = None) -> Figure:
    """Draw the distribution of weights per unit for every gate, with a row of panels for each matrix.

    Left: weights a unit receives (in-degree); right: weights a unit sends (out-degree). The grey area is ``start`` or,
    without it, the average of uniformly random topologies with the same density.
    """
    _check_topologies(topologies)
    gates = list(dict.fromkeys(gate for topology in topologies.values() for gate in topology.gates.names))
    figure = new_figure(COLUMN, 1.05 * len(topologies) + 0.4)
    panels = figure.subplots(len(topologies), 2, squeeze=False)
    for line, (name, topology), short in zip(panels, topologies.items(), short_names(list(topologies)), strict=True):
        for axes, sent in zip(line, (False, True), strict=True):
            shares = degree_shares(topology, sent=sent, start=None if start is None else start[name])
            axes.stairs(shares.random, shares.edges, fill=True, color=GREY, alpha=0.3, linewidth=0)
            for gate, values in shares.gates.items():
                axes.stairs(values, shares.edges, color=colour(gates.index(gate)), linewidth=1.1, baseline=None)
            axes.set(yticks=[], ylim=(0, None))
        line[0].set_ylabel(short)
    panels[0][0].set_title("weights received", pad=3)
    panels[0][1].set_title("weights sent", pad=3)
    for index, gate in enumerate(gates):
        panels[0][0].plot([], [], color=colour(index), label=gate_name(gate))
    panels[0][0].fill_between([], [], color=GREY, alpha=0.3, linewidth=0, label="random start")
    for axes in panels[-1]:
        axes.set_xlabel("weights of a unit")
    legend_below(figure, panels[0][0], 3, last="random start")
    return figure


def _check_topologies(topologies: Topologies) -> None:
    if not topologies:
        raise ValueError("there is no topology to draw: the folder needs model.safetensors")


@styled
def gate_breakdown(record: RunRecord) -> Figure:
    """Draw the final sparsity of every gate as bars, with a black line for the whole matrix."""
    density = _gated(record.epochs[-1].density, record.name)
    gates = list(dict.fromkeys(gate for gates in density.values() for gate in gates if gate != WHOLE))
    figure = new_figure(COLUMN if len(density) <= 6 else PAGE, 1.8)
    axes = figure.subplots()
    width = 0.8 / len(gates)
    for index, gate in enumerate(gates):
        places = [place for place, by_gate in enumerate(density.values()) if gate in by_gate]
        heights = [1 - by_gate[gate] for by_gate in density.values() if gate in by_gate]
        left = (index - (len(gates) - 1) / 2) * width
        axes.bar([place + left for place in places], heights, width * 0.9, color=COLOURS[index], label=gate_name(gate))
    whole = [1 - by_gate[WHOLE] for by_gate in density.values()]
    axes.hlines(whole, [place - 0.45 for place in range(len(whole))], [place + 0.45 for place in range(len(whole))],
                color="black", linewidth=1, label="whole matrix")  # fmt: skip
    axes.set_xticks(range(len(density)), short_names(list(density)))
    axes.grid(axis="x", visible=False)
    axes.set(ylabel="sparsity", ylim=(0, 1))
    legend_below(figure, axes, 3 if figure.get_figwidth() == COLUMN else 6, last="whole matrix")
    return figure


@styled
def gate_history(record: RunRecord) -> Figure:
    """Draw the density of every gate over the epochs, with a panel for each matrix. The whole matrix is dotted."""
    from matplotlib.ticker import MaxNLocator

    density = _gated(record.epochs[-1].density, record.name)
    epochs = [epoch.epoch for epoch in record.epochs]
    across = 2 if len(density) <= 4 else 4
    down = -(-len(density) // across)
    figure = new_figure(COLUMN if across == 2 else PAGE, 1.25 * down + 0.25)
    panels = list(figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).flat)
    gates = list(dict.fromkeys(gate for gates in density.values() for gate in gates if gate != WHOLE))
    for axes, (name, by_gate), title in zip(panels, density.items(), short_names(list(density)), strict=False):
        for gate in by_gate:
            axes.plot(
                epochs,
                [epoch.density[name][gate] for epoch in record.epochs],
                color=GREY if gate == WHOLE else COLOURS[gates.index(gate)],
                linestyle=":" if gate == WHOLE else "-",
            )
        axes.set_title(title, pad=2)
    for axes in panels[len(density) :]:
        axes.set_visible(False)
    for gate in gates:
        panels[0].plot([], [], color=COLOURS[gates.index(gate)], label=gate_name(gate))
    panels[0].plot([], [], color=GREY, linestyle=":", label="whole matrix")
    for index, axes in enumerate(panels):
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        axes.set_xlabel("epoch" if index >= len(density) - across else "")
        axes.set_ylabel("" if index % across else "density")
    legend_below(figure, panels[0], 3)
    return figure


def _gated(density: Densities, run: str) -> Densities:
    """Return the matrices with gates."""
    gated = with_gates(density)
    if not gated:
        raise ValueError(f"run {run} has no matrix with gates")
    return gated


@dataclass(frozen=True)
class DistanceSeries:
    """Distance of the topology of a matrix from another one, at the end of several epochs."""

    matrix: str
    epochs: Sequence[int]
    distances: Sequence[float]
    growth: str = "random"

    def __post_init__(self) -> None:
        if len(self.epochs) != len(self.distances):
            raise ValueError(f"{len(self.epochs)} epochs need as many distances, got {len(self.distances)}")


@styled
def distances(panels: Mapping[str, Sequence[DistanceSeries]], *, density: float | None = None) -> Figure:
    """Draw distances with a panel for each title, a colour for each matrix, and a line style for each growth rule.

    Args:
        panels: Series by title, for example ``{"within a run": [...], "between two runs": [...]}``.
        density: Density of two independent random topologies, whose distance ``1 - d / (2 - d)`` is drawn.
    """
    if not panels:
        raise ValueError("there is no panel to draw")
    series = [entry for several in panels.values() for entry in several]
    matrices = list(dict.fromkeys(entry.matrix for entry in series))
    growths = list(dict.fromkeys(entry.growth for entry in series))
    if len(growths) > len(DASHES):
        raise ValueError(f"at most {len(DASHES)} growth rules have different line styles, got {len(growths)}")
    figure = new_figure(COLUMN if len(panels) == 1 else PAGE, 2.0)
    line = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (title, several) in zip(line, panels.items(), strict=True):
        for entry in several:
            axes.plot(
                entry.epochs,
                entry.distances,
                color=colour(matrices.index(entry.matrix)),
                linestyle=DASHES[growths.index(entry.growth)],
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
