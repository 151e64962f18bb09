"""What the paper reports: tables, figures and claims, as data."""

from selfish_rnn.reproduce.case import Item
from selfish_rnn.reproduce.paper import figures, tables

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
    figures.TIME_TO_QUALITY,
)

ITEMS: dict[str, Item] = {item.name: item for item in _ALL}
"""Every table and figure, in the order in which they are listed and made."""
