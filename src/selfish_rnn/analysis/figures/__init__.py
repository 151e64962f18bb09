"""Figures for a paper, each a function from records to a matplotlib figure.

Example::

    from selfish_rnn.analysis.figures import learning_curves, save
    from selfish_rnn.analysis.records import read_run

    save(learning_curves([read_run("runs/quickstart-1")]), "curves")    # curves.svg and curves.png

matplotlib is imported when a figure is drawn: ``pip install 'selfish-rnn[analysis]'``.
"""

from selfish_rnn.analysis.figures.comparisons import (
    CostedNetwork,
    Estimate,
    RatioLine,
    RatioPanel,
    forest_plot,
    perplexity_against_cost,
    ratios_against_sparsity,
)
from selfish_rnn.analysis.figures.runs import (
    Outcomes,
    growth_interval,
    learning_curves,
    outcomes_by_setting,
    prune_rate_sensitivity,
    pruning_comparison,
    sparsity_sensitivity,
    time_against_perplexity,
    weights_above_threshold,
)
from selfish_rnn.analysis.figures.style import save
from selfish_rnn.analysis.figures.topologies import (
    DistanceSeries,
    degree_distributions,
    density_maps,
    distances,
    gate_breakdown,
    gate_history,
)

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
