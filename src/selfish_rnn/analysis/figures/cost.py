"""Perplexity against what a network costs, and against the time of its training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from selfish_rnn.analysis.figures.style import MARKERS, PAGE, colour, legend_below, new_figure, styled

if TYPE_CHECKING:
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
