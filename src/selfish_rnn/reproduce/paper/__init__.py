"""What the paper reports: tables, figures and claims, as data."""

from selfish_rnn.reproduce.case import Item
from selfish_rnn.reproduce.paper import comparisons, figures, tables

_ALL = (
    tables.STACKED_LSTM,
    tables.RHN_TABLE,
    tables.OPTIMIZERS,
    tables.ABLATIONS,
    tables.GATE_RULES,
    tables.ON_LSTM_TABLE,
    tables.MOS_TABLE,
    tables.FLOPS,
    figures.LARGE_WEIGHTS,
    figures.GROWTH_INTERVAL,
    figures.SPARSITY,
    figures.PRUNE_RATE,
    figures.PRUNING,
    figures.GATES,
    *figures.DISTANCES,
    comparisons.AVERAGES,
    comparisons.EQUAL_COST,
    comparisons.NETWORKS,
    figures.TIME_TO_QUALITY,
    comparisons.TUNING,
    comparisons.PARETO,
    comparisons.PARETO_TUNING,
)

ITEMS: dict[str, Item] = {item.name: item for item in _ALL}
"""Every table and figure, in the order in which they are listed and made."""


def items_at(scale: str) -> list[Item]:
    """Return the items that a scale has."""
    return [item for item in ITEMS.values() if not item.scales or scale in item.scales]
