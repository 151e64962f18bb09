"""The campaign: every run of the evidence in the order in which they are made, decided before the first of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from selfish_rnn.reproduce.case import Case, Item
from selfish_rnn.reproduce.paper import comparisons, figures, tables
from selfish_rnn.reproduce.paper.tables import LSTM, MOS, ON_LSTM, RHN
from selfish_rnn.reproduce.tuning import GRIDS

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

ADAM = tuple(Case(LSTM, method, "adam") for method in ("selfish", "set", "dsr", "snfs", "rigl"))


@dataclass(frozen=True)
class Stage:
    """Runs that are made together, first seeds first.

    Attributes:
        name: Name on the command line.
        title: What the stage is for.
        cases: Cases in their order, with the seeds of the scale; those of the pareto figure with its first one.
        grids: Names of the grids that are trained before the cases.
    """

    name: str
    title: str
    cases: tuple[Case, ...] = ()
    grids: tuple[str, ...] = ()


def _grids(stage: str) -> tuple[str, ...]:
    return tuple(grid.name for grid in GRIDS if grid.stage == stage)


def _of(items: Iterable[Item], networks: Sequence[str] = (LSTM,)) -> tuple[Case, ...]:
    return tuple(dict.fromkeys(case for item in items for case in item.planned_cases if case.network in networks))


STAGES: tuple[Stage, ...] = (
    Stage("tuning", "dropout, learning rates and starting ranges of the stacked LSTM", grids=_grids("tuning")),
    Stage("core", "the core comparisons", CORE),
    Stage("adam", "Adam for five methods", ADAM),
    Stage("sparsities", "Selfish, RigL, GMP and static by sparsity", _of([figures.PRUNING, figures.SPARSITY])),
    Stage("prune-rates", "prune rates", _of([figures.PRUNE_RATE])),
    Stage("distances", "distances between topologies", _of(figures.DISTANCES)),
    Stage("equal-cost", "dense networks of equal weights and equal bytes", _of([comparisons.EQUAL_COST])),
    Stage(
        "pareto",
        "a large sparse against a small dense network, whole Penn Treebank",
        (
            Case(comparisons.WIDE, sparsity=0.9),
            Case(comparisons.MIDDLE, "dense", "nt-asgd"),
        ),
        _grids("pareto"),
    ),
    Stage(
        "other-networks",
        "RHN, ON-LSTM and AWD-LSTM-MoS",
        (*_of([comparisons.NETWORKS], (RHN, ON_LSTM, MOS)), Case(RHN, "static-er")),
        _grids("other-networks"),
    ),
    Stage("growth", "intervals between rewirings", _of([figures.GROWTH_INTERVAL])),
    Stage("momentum", "SGD with momentum", _of([tables.OPTIMIZERS])),
    Stage(
        "rest",
        "what else the tables and figures of the stacked LSTM show",
        _of([tables.STACKED_LSTM, tables.ABLATIONS, tables.GATE_RULES, figures.LARGE_WEIGHTS, comparisons.AVERAGES]),
    ),
    Stage(
        "pareto-more",
        "three times as long, equal weights, and S = 0.8",
        comparisons.PARETO.planned_cases,
        _grids("pareto-more"),
    ),
)
"""The stages in their order."""
