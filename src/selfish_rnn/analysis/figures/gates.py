"""How the weights of a run are spread over the gates: at its end, and on the way there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from selfish_rnn.analysis.figures.style import COLOURS, COLUMN, GREY, PAGE, legend_below, new_figure, styled
from selfish_rnn.analysis.gates import with_gates
from selfish_rnn.analysis.networks import gate_name, short_names
from selfish_rnn.analysis.records import Densities, RunRecord
from selfish_rnn.topology.gates import WHOLE

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@styled
def gate_breakdown(record: RunRecord) -> Figure:
    """The sparsity of every gate at the end of a run, as bars; a black line across them is that of the whole matrix."""
    density = _gated(record.epochs[-1].density, record.name)
    gates = list(dict.fromkeys(gate for gates in density.values() for gate in gates if gate != WHOLE))
    figure = new_figure(COLUMN if len(density) <= 6 else PAGE, 1.8)
    axes = figure.subplots()
    width = 0.8 / len(gates)
    for index, gate in enumerate(gates):
        places = [place for place, found in enumerate(density.values()) if gate in found]
        heights = [1 - found[gate] for found in density.values() if gate in found]
        left = (index - (len(gates) - 1) / 2) * width
        axes.bar([place + left for place in places], heights, width * 0.9, color=COLOURS[index], label=gate_name(gate))
    whole = [1 - found[WHOLE] for found in density.values()]
    axes.hlines(whole, [place - 0.45 for place in range(len(whole))], [place + 0.45 for place in range(len(whole))],
                color="black", linewidth=1, label="whole matrix")  # fmt: skip
    axes.set_xticks(range(len(density)), short_names(list(density)))
    axes.grid(axis="x", visible=False)
    axes.set(ylabel="sparsity", ylim=(0, 1))
    legend_below(figure, axes, 3 if figure.get_figwidth() == COLUMN else 6, last="whole matrix")
    return figure


@styled
def gate_history(record: RunRecord) -> Figure:
    """The density of every gate over the epochs, a panel for each matrix; the whole matrix is dotted."""
    from matplotlib.ticker import MaxNLocator

    density = _gated(record.epochs[-1].density, record.name)
    epochs = [epoch.epoch for epoch in record.epochs]
    across = 2 if len(density) <= 4 else 4
    down = -(-len(density) // across)
    figure = new_figure(COLUMN if across == 2 else PAGE, 1.25 * down + 0.25)
    panels = list(figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).flat)
    gates = list(dict.fromkeys(gate for gates in density.values() for gate in gates if gate != WHOLE))
    for axes, (name, found), title in zip(panels, density.items(), short_names(list(density)), strict=False):
        for gate in found:
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
    """The matrices that have gates."""
    found = with_gates(density)
    if not found:
        raise ValueError(f"run {run} tells of no matrix with gates")
    return found
