"""Figures for a paper, each a function from records to a matplotlib figure.

Example::

    from selfish_rnn.analysis.figures import learning_curves, save
    from selfish_rnn.analysis.records import read_run

    save(learning_curves([read_run("runs/quickstart-1")]), "curves")    # curves.svg and curves.png

matplotlib is imported when a figure is drawn: ``pip install 'selfish-rnn[analysis]'``.
"""

from selfish_rnn.analysis.figures.cost import CostedNetwork, perplexity_against_cost
from selfish_rnn.analysis.figures.curves import learning_curves, time_against_perplexity, weights_above_threshold
from selfish_rnn.analysis.figures.distances import DistanceSeries, distances
from selfish_rnn.analysis.figures.estimates import Estimate, forest_plot
from selfish_rnn.analysis.figures.gates import gate_breakdown, gate_history
from selfish_rnn.analysis.figures.sensitivity import (
    Outcomes,
    growth_interval,
    outcomes_by_setting,
    prune_rate_sensitivity,
    pruning_comparison,
    sparsity_sensitivity,
)
from selfish_rnn.analysis.figures.style import save
from selfish_rnn.analysis.figures.topology import degree_distributions, density_maps
from selfish_rnn.analysis.figures.tradeoff import RatioLine, RatioPanel, ratios_against_sparsity

__all__ = [
    "CostedNetwork",
    "DistanceSeries",
    "Estimate",
    "Outcomes",
    "RatioLine",
    "RatioPanel",
    "degree_distributions",
    "density_maps",
    "distances",
    "forest_plot",
    "gate_breakdown",
    "gate_history",
    "growth_interval",
    "learning_curves",
    "outcomes_by_setting",
    "perplexity_against_cost",
    "prune_rate_sensitivity",
    "pruning_comparison",
    "ratios_against_sparsity",
    "save",
    "sparsity_sensitivity",
    "time_against_perplexity",
    "weights_above_threshold",
]
