"""The topology itself: where a matrix is dense, and how many weights its units have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from selfish_rnn.analysis.connectivity import degree_shares, density_map
from selfish_rnn.analysis.figures.style import COLUMN, GREY, PAGE, colour, legend_below, new_figure, styled
from selfish_rnn.analysis.networks import gate_name, short_names
from selfish_rnn.topology import Topology

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Topologies = Mapping[str, Topology]
"""By the names of the matrices, as :meth:`RunRecord.topologies` and :attr:`Sparsifier.topologies` give them."""


@styled
def density_maps(topologies: Topologies, *, bins: int = 24) -> Figure:
    """A map of every gate, a line for each matrix: the darker a place, the more of its positions exist.

    Rows are receiving units and columns sending ones. All maps share one scale, and a gate is divided into at most
    ``bins`` x ``bins`` places, so the figure stays small whatever the size of the matrix.
    """
    _refuse_none(topologies)
    maps = {
        (name, gate): density_map(topology, gate, bins)
        for name, topology in topologies.items()
        for gate in topology.gates.names
    }
    across = max(len(topology.gates) for topology in topologies.values())
    figure = new_figure(COLUMN if across <= 4 else PAGE, 0.82 * len(topologies) + 0.55)
    panels = figure.subplots(len(topologies), across, squeeze=False)
    highest = max(float(found.max()) for found in maps.values())
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
    """How many units of each gate have how many weights, against the random start, a line of panels for each matrix.

    Left: weights a unit receives (in-degree); right: weights a unit sends (out-degree). The grey area is ``start`` or,
    without it, what a uniformly random topology of the same density has on average.
    """
    _refuse_none(topologies)
    gates = list(dict.fromkeys(gate for topology in topologies.values() for gate in topology.gates.names))
    figure = new_figure(COLUMN, 1.05 * len(topologies) + 0.4)
    panels = figure.subplots(len(topologies), 2, squeeze=False)
    for line, (name, topology), short in zip(panels, topologies.items(), short_names(list(topologies)), strict=True):
        for axes, sent in zip(line, (False, True), strict=True):
            shares = degree_shares(topology, sent=sent, start=None if start is None else start[name])
            axes.stairs(shares.random, shares.edges, fill=True, color=GREY, alpha=0.3, linewidth=0)
            for gate, found in shares.gates.items():
                axes.stairs(found, shares.edges, color=colour(gates.index(gate)), linewidth=1.1, baseline=None)
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


def _refuse_none(topologies: Topologies) -> None:
    if not topologies:
        raise ValueError("there is no topology to draw; a folder without model.safetensors has none")
