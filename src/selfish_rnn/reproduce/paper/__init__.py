"""Tables, figures and claims of the paper, as data."""

from collections.abc import Iterable

from selfish_rnn.errors import UserError, unknown
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
"""Every table and figure, in the order of listings and of execution."""


def items_at(scale: str) -> list[Item]:
    """Return the items that a scale has."""
    return [item for item in ITEMS.values() if not item.scales or scale in item.scales]


def items_named(names: Iterable[str], scale: str | None = None) -> list[Item]:
    """Return the items with these names.

    Raises:
        UserError: If a name is unknown, or if the scale does not have the item.
    """
    items = []
    for name in dict.fromkeys(names):
        if name not in ITEMS:
            raise UserError(unknown("item", name, ITEMS))
        item = ITEMS[name]
        if scale is not None and item.scales and scale not in item.scales:
            raise UserError(f"scale {scale} does not have {name}; the scales that have it: {', '.join(item.scales)}")
        items.append(item)
    return items
