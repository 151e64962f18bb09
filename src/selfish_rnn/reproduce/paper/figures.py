"""The paper's figures as cases, with its conclusions. The paper prints figures without numbers, so points have none."""

from __future__ import annotations

from selfish_rnn.reproduce.case import Case, Item, Row
from selfish_rnn.reproduce.paper.tables import LSTM, MOS, ON_LSTM, RHN

NETWORKS = ((LSTM, "stacked LSTM"), (RHN, "RHN"), (ON_LSTM, "ON-LSTM"), (MOS, "AWD-LSTM-MoS"))
SPARSITIES = (0.5, 0.55, 0.6, 0.7, 0.8, 0.9)
PRUNE_RATES = (0.3, 0.5, 0.7)
INTERVALS = (0.1, 0.25, 0.5, 1.0, 2.0)
"""Intervals between rewirings, in intervals of the scale. The paper plots several without naming them."""

SLOW = ("prune_rate=0.1",)
"""Override with the prune rate of the paper's distance measurements."""

SAME_START = (*SLOW, "start_seed=1")

LARGE_WEIGHTS = Item(
    name="large-weights",
    title="Weights above 0.1 in magnitude, epoch by epoch",
    source="Figure 3",
    rows=tuple(
        Row(optimizer.upper(), Case(network, "selfish", optimizer), heading)
        for network, heading in ((ON_LSTM, "ON-LSTM"), (LSTM, "stacked LSTM"))
        for optimizer in ("snt-asgd", "nt-asgd")
    ),
    kind="large-weights",
    conclusion="Their number goes on rising under SNT-ASGD; under NT-ASGD it falls once averaging starts (ON-LSTM).",
)

GROWTH_INTERVAL = Item(
    name="growth-interval",
    title="Random against gradient growth, by the interval between rewirings",
    source="Figure 5",
    rows=tuple(
        Row(
            f"{label} growth, {interval:g} times the usual interval",
            Case(LSTM, method, optimizer, rewire_every=interval),
            heading,
            x=interval,
        )
        for optimizer, heading in (("snt-asgd", "SNT-ASGD"), ("momentum-sgd", "SGD with momentum"))
        for method, label in (("selfish", "random"), ("gradient-growth", "gradient"))
        for interval in INTERVALS
    ),
    conclusion="Random growth is better in most cases.",
)

SPARSITY = Item(
    name="sparsity",
    title="Selfish at several sparsities",
    source="Figure 6a",
    rows=tuple(
        row
        for network, heading in NETWORKS
        for row in (
            Row("dense", Case(network, "dense", "nt-asgd"), heading),
            *(Row(f"S = {sparsity:g}", Case(network, sparsity=sparsity), heading, x=sparsity)
              for sparsity in SPARSITIES),
        )
    ),
    conclusion="The four networks reach their dense counterparts with about 25, 40, 45 and 40 % of the weights.",
)  # fmt: skip

PRUNE_RATE = Item(
    name="prune-rate",
    title="Selfish with several prune rates",
    source="Figure 6b",
    rows=tuple(
        Row(f"prune rate {rate:g}", Case(network, changes=(f"prune_rate={rate:g}",)), heading, x=rate)
        for network, heading in NETWORKS
        for rate in PRUNE_RATES
    ),
    conclusion="The result hardly depends on the prune rate.",
)

PRUNING = Item(
    name="pruning",
    title="Selfish, RigL, gradual pruning and a static topology of a stacked LSTM, by sparsity",
    source="Figure 7",
    rows=tuple(
        Row(f"S = {sparsity:g}", Case(LSTM, method, sparsity=sparsity), label, x=sparsity)
        for method, label in (("selfish", "Selfish"), ("rigl", "RigL"), ("gmp", "GMP"), ("static", "static"))
        for sparsity in (0.5, 0.6, 0.67, 0.7, 0.8, 0.9, 0.95)
    ),
    conclusion=(
        "Selfish is better than pruning at most sparsities, by less as sparsity rises; at 0.95 pruning is better."
    ),
)

GATES = Item(
    name="gates",
    title="Sparsity of every gate at the end of training",
    source="Figure 10",
    rows=tuple(Row("Selfish", Case(network), heading) for network, heading in NETWORKS),
    kind="gates",
    conclusion="Forget gates end sparser than the others; in RHNs the two gates differ little.",
)


def _distances(name: str, title: str, source: str, conclusion: str, rows: tuple[Row, ...], min_seeds: int = 2) -> Item:
    return Item(name, title, source, rows, "distances", conclusion, min_seeds)


_RANDOM, _GRADIENT = "random growth", "gradient growth"

DISTANCES = (
    _distances(
        "distance-from-start",
        "Distance of the topology of one run from an early one",
        "Figure 4, left",
        "It moves to about 0.8.",
        (Row(_RANDOM, Case(LSTM, changes=SLOW)),),
        min_seeds=1,
    ),
    _distances(
        "distance-same-start",
        "Distance between two runs from one start",
        "Figure 4, right",
        "They end far apart, and equally good.",
        (Row(_RANDOM, Case(LSTM, changes=SAME_START)),),
    ),
    _distances(
        "distance-growth",
        "Distance between two runs, random against gradient growth",
        "Figure 8",
        "With random growth the distance stays; with gradient growth it falls steadily.",
        (
            Row(_RANDOM, Case(LSTM, changes=SLOW)),
            Row(_GRADIENT, Case(LSTM, "gradient-growth", changes=SLOW)),
        ),
    ),
    _distances(
        "distance-growth-same-start",
        "Distance between two runs from one start, random against gradient growth",
        "Figure 9",
        "With gradient growth they end closer together.",
        (
            Row(_RANDOM, Case(LSTM, changes=SAME_START)),
            Row(_GRADIENT, Case(LSTM, "gradient-growth", changes=SAME_START)),
        ),
    ),
)

UNTIL_STOPPED = ("epochs=1000",)
"""Override for a timed run without a schedule over epochs: it trains until its time is up."""

_TIMED_EPOCHS = {650: {0.67: 11, 0.9: 25, 0.95: 35}, 1500: {0.67: 4, 0.9: 9, 0.95: 15}}
"""Epochs of timed Selfish runs by units and sparsity: about the number that two hours of one core allow, so that the
prune rate has decayed when the time is up."""

TIME_TO_QUALITY = Item(
    name="time-to-quality",
    title="Test perplexity against seconds of a CPU, whole Penn Treebank",
    source="not in the paper",
    rows=(
        Row("dense, 1500 units", Case("wide-lstm", "dense", "nt-asgd", changes=UNTIL_STOPPED)),
        Row("dense, 650 units", Case("narrow-lstm", "dense", "nt-asgd", changes=UNTIL_STOPPED)),
        Row(
            "small dense (as many weights as 1500 units at S = 0.9)",
            Case("wide-lstm", "small-dense", "nt-asgd", 0.9, UNTIL_STOPPED),
        ),
        *(
            Row(
                f"Selfish, {units} units, S = {sparsity:g}",
                Case(network, sparsity=sparsity, changes=(f"epochs={epochs}",)),
            )
            for network, units in (("narrow-lstm", 650), ("wide-lstm", 1500))
            for sparsity, epochs in _TIMED_EPOCHS[units].items()
        ),
    ),
    kind="time",
    max_seeds=1,
)
