"""Comparisons that the paper lacks: core cases, tuning, averages, equal cost, and the other networks by method."""

from __future__ import annotations

from selfish_rnn.reproduce.case import Case, Item, Row
from selfish_rnn.reproduce.paper.tables import LSTM, MOS, ON_LSTM, RHN
from selfish_rnn.reproduce.tuning import GRIDS, LONG, TUNING_SEED, Grid

NOT_IN_PAPER = "not in the paper"

CORE: tuple[Case, ...] = (
    Case(LSTM, "dense", "nt-asgd"),
    Case(LSTM),
    Case(LSTM, "static"),
    Case(LSTM, "by-matrix"),
    Case(LSTM, "set"),
    Case(LSTM, "rigl"),
    Case(LSTM, "gmp"),
    Case(LSTM, "no-gate-redistribution"),
    Case(LSTM, "gradient-growth"),
    Case(LSTM, average="nt"),
    Case(LSTM, "small-dense", "nt-asgd"),
    Case(LSTM, "dsr"),
    Case(LSTM, "snfs"),
)
"""The core comparisons, which have all seeds of the scale; other cases have fewer."""


def _candidate(grid: Grid, value: float) -> Row:
    setting = grid.keys[0].partition(".")[2]
    return Row(f"{setting} = {value:g}", grid.case_of(value), grid.name, x=value, on_demand=value not in grid.first)


def _candidates(pareto: bool) -> tuple[Row, ...]:
    grids = [grid for grid in GRIDS if grid.case.network.startswith("pareto") == pareto]
    return tuple(_candidate(grid, value) for grid in grids for value in grid.values)


TUNING = Item(
    name="tuning",
    title="Dropout, learning rates and starting ranges, chosen by validation perplexity on one seed",
    source=NOT_IN_PAPER,
    rows=_candidates(False),
    seeds=(TUNING_SEED,),
    scales=("tiny", "small"),
)

PARETO_TUNING = Item(
    name="pareto-tuning",
    title="Dropout of the networks of the pareto figure, by validation perplexity after few epochs",
    source=NOT_IN_PAPER,
    rows=_candidates(True),
    seeds=(TUNING_SEED,),
    scales=("tiny", "small"),
)

WIDE, MIDDLE, NARROW = "pareto-1500", "pareto-512", "pareto-272"

PARETO = Item(
    name="pareto",
    title="Large sparse against small dense networks, whole Penn Treebank: perplexity against cost",
    source=NOT_IN_PAPER,
    rows=(
        Row("Selfish, 1500 units, S = 0.9", Case(WIDE, sparsity=0.9), "33 epochs"),
        Row("dense, 512 units", Case(MIDDLE, "dense", "nt-asgd"), "33 epochs"),
        Row("Selfish, 1500 units, S = 0.9", Case(WIDE + LONG, sparsity=0.9), "100 epochs"),
        Row("dense, 512 units", Case(MIDDLE + LONG, "dense", "nt-asgd"), "100 epochs"),
        Row("dense, 272 units", Case(NARROW, "dense", "nt-asgd"), "33 epochs"),
        Row("Selfish, 1500 units, S = 0.8", Case(WIDE, sparsity=0.8), "33 epochs"),
    ),
    kind="pareto",
    max_seeds=1,
    scales=("tiny", "small"),
)

AVERAGES = Item(
    name="averages",
    title="Kinds of averages and their start, compared within one run",
    source=NOT_IN_PAPER,
    rows=(
        *(
            Row(label, case, heading)
            for network, heading in ((LSTM, "stacked LSTM"), (RHN, "RHN"), (ON_LSTM, "ON-LSTM"), (MOS, "AWD-LSTM-MoS"))
            for label, case in (
                ("SNT-ASGD, common restarts", Case(network)),
                ("NT-ASGD, common restarts", Case(network, average="nt")),
                ("SNT-ASGD from the first start to the end", Case(network, average="snt-start")),
                ("NT-ASGD from the first start to the end", Case(network, average="nt-start")),
                ("SNT-ASGD from the non-monotone trigger", Case(network, average="snt-trigger")),
                ("NT-ASGD from the non-monotone trigger", Case(network, average="nt-trigger")),
            )
        ),
        Row("common restarts", Case(LSTM, "dense", "nt-asgd"), "stacked LSTM, dense"),
        Row(
            "from the non-monotone trigger", Case(LSTM, "dense", "nt-asgd", average="nt-trigger"), "stacked LSTM, dense"
        ),
    ),
    scales=("tiny", "small"),
)


def _narrow(units: int) -> Case:
    return Case(LSTM, "dense", "nt-asgd", changes=(f"model.embedding={units}", f"model.hidden={units}"))


EQUAL_COST = Item(
    name="equal-cost",
    title="Sparse networks of 256 units against dense networks of equal weights and equal bytes",
    source=NOT_IN_PAPER,
    rows=(
        Row("Selfish", Case(LSTM), "S = 0.67"),
        Row("dense, as many weights (117 units)", Case(LSTM, "small-dense", "nt-asgd"), "S = 0.67"),
        Row("dense, as many bytes in float32 (158 units)", _narrow(158), "S = 0.67"),
        Row("dense, as many bytes in int8 (196 units)", _narrow(196), "S = 0.67"),
        Row("Selfish", Case(LSTM, sparsity=0.9), "S = 0.9"),
        Row("dense, as many bytes in int8 (92 units)", _narrow(92), "S = 0.9"),
        Row("dense, 256 units", Case(LSTM, "dense", "nt-asgd"), "for comparison"),
    ),
    scales=("tiny", "small"),
)

NETWORKS = Item(
    name="networks",
    title="RHN, ON-LSTM and AWD-LSTM-MoS by method",
    source=NOT_IN_PAPER,
    rows=tuple(
        Row(label, Case(network, method, optimizer), heading)
        for network, heading in ((RHN, "RHN"), (ON_LSTM, "ON-LSTM"), (MOS, "AWD-LSTM-MoS"))
        for label, method, optimizer in (
            ("dense", "dense", "nt-asgd"),
            ("static", "static", "snt-asgd"),
            ("Selfish", "selfish", "snt-asgd"),
            ("without gate redistribution", "no-gate-redistribution", "snt-asgd"),
            ("RigL", "rigl", "snt-asgd"),
        )
    ),
    scales=("tiny", "small"),
)
