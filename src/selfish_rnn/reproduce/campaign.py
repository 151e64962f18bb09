"""The campaign: all runs of the evidence in stages, in an order fixed before the first run, tuning included."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from selfish_rnn.errors import UserError, unknown
from selfish_rnn.reproduce.case import Case, Item
from selfish_rnn.reproduce.execution import Executor
from selfish_rnn.reproduce.paper import comparisons, figures, tables
from selfish_rnn.reproduce.paper.comparisons import CORE, PARETO, PARETO_TUNING, TUNING
from selfish_rnn.reproduce.paper.tables import LSTM, MOS, ON_LSTM, RHN
from selfish_rnn.reproduce.plan import PlannedRun, matching, seeds_of, seeds_of_scale, unique
from selfish_rnn.reproduce.results import Results
from selfish_rnn.reproduce.scales import Scale
from selfish_rnn.reproduce.tuning import GRIDS, TUNING_SEED, Grid
from selfish_rnn.scheduling.scheduler import Outcome

ADAM = tuple(Case(LSTM, method, "adam") for method in ("selfish", "set", "dsr", "snfs", "rigl"))


@dataclass(frozen=True)
class Stage:
    """Group of runs, trained with first seeds first.

    Attributes:
        name: Name on the command line.
        title: Purpose of the stage.
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
        "remaining tables and figures of the stacked LSTM",
        _of([tables.STACKED_LSTM, tables.ABLATIONS, tables.GATE_RULES, figures.LARGE_WEIGHTS, comparisons.AVERAGES]),
    ),
    Stage(
        "pareto-more",
        "three times as long, equal weights, and S = 0.8",
        comparisons.PARETO.planned_cases,
        _grids("pareto-more"),
    ),
)
"""Stages in their order."""


def stages_named(names: Sequence[str]) -> tuple[Stage, ...]:
    """Return the stages with these names in the order of the campaign; all stages if there are no names."""
    by_name = {stage.name: stage for stage in STAGES}
    for name in names:
        if name not in by_name:
            raise UserError(unknown("stage", name, by_name))
    return tuple(stage for stage in STAGES if not names or stage.name in names)


def stage_runs(stage: Stage, scale: Scale) -> list[PlannedRun]:
    """Return the runs of the cases of a stage, first seeds first."""
    by_case = [[PlannedRun(scale, case, seed) for seed in _seeds(case, scale)] for case in stage.cases]
    rounds = max(map(len, by_case), default=0)
    return unique(runs[index].trained_run for index in range(rounds) for runs in by_case if index < len(runs))


def _seeds(case: Case, scale: Scale) -> tuple[int, ...]:
    """Return the seeds of a case; the runs of the pareto figure take hours and have one."""
    return seeds_of(PARETO, case, scale) if case in PARETO.cases else seeds_of_scale(case, scale)


def tuning_run(grid: Grid, value: float, scale: Scale) -> PlannedRun:
    """Return the run of a candidate."""
    return PlannedRun(scale, grid.case_of(value), TUNING_SEED)


def grid_perplexities(grid: Grid, scale: Scale, results: Results) -> dict[float, float]:
    """Return the validation perplexity of every trained candidate of a grid."""
    trained = {value: results.get(tuning_run(grid, value, scale)) for value in grid.values}
    return {value: result.summary["valid_perplexity"] for value, result in trained.items() if result is not None}


def missing_runs(grid: Grid, scale: Scale, results: Results) -> list[PlannedRun]:
    """Return the runs that a grid asks for next; none once its best value is bracketed."""
    return [tuning_run(grid, value, scale) for value in grid.missing(grid_perplexities(grid, scale, results))]


def tuned_value(grid: Grid, scale: Scale, results: Results) -> float | None:
    """Return the chosen value of a grid, or None while runs are missing."""
    perplexities = grid_perplexities(grid, scale, results)
    return None if grid.missing(perplexities) else grid.best(perplexities)


def check_choices(names: Sequence[str], scale: Scale, results: Results) -> None:
    """Raise if a finished tuning chooses a value that the scale does not use."""
    problems = []
    for grid in _grids_named(names):
        used, choice = scale.chosen.get(grid.name), tuned_value(grid, scale, results)
        if choice is not None and scale.chosen and choice != used:
            problems.append(f"{grid.name} is {'unset' if used is None else f'{used:g}'}, the tuning chooses {choice:g}")
    if problems:
        raise UserError(
            f"scale {scale.name} uses other settings than its tuning chooses: {'; '.join(problems)}. "
            "Change CHOSEN in src/selfish_rnn/reproduce/tuning.py, then run the command again"
        )


def grids_of(items: Sequence[Item]) -> tuple[str, ...]:
    """Return the names of the grids that items show."""
    networks = {case.network for item in items if item in (TUNING, PARETO_TUNING) for case in item.cases}
    return tuple(grid.name for grid in GRIDS if grid.case.network in networks)


def _grids_named(names: Sequence[str]) -> list[Grid]:
    return [grid for grid in GRIDS if grid.name in names]


def train_grids(names: Sequence[str], executor: Executor, only: Sequence[str] = ()) -> list[Outcome]:
    """Train grids until their best values are bracketed, or until a run fails or is stopped.

    Args:
        names: Names of the grids.
        executor: Trainer of the runs.
        only: Texts of which a run must have one in its name; empty: all runs.
    """
    outcomes: list[Outcome] = []
    while runs := matching(_missing_of(names, executor.scale, executor.results), only):
        outcomes += executor.train(runs).outcomes
        if any(outcome.state in ("stopped", "failed") for outcome in outcomes):
            break
    return outcomes


def _missing_of(names: Sequence[str], scale: Scale, results: Results) -> list[PlannedRun]:
    return unique(run for grid in _grids_named(names) for run in missing_runs(grid, scale, results))


def campaign_runs(
    stages: Sequence[Stage], scale: Scale, results: Results, only: Sequence[str] = ()
) -> list[tuple[Stage, PlannedRun]]:
    """Return every run of stages in its order, each once.

    A grid contributes its finished runs and those that it asks for next.
    """
    runs: dict[str, tuple[Stage, PlannedRun]] = {}
    for stage in stages:
        tuning = [
            run
            for grid in _grids_named(stage.grids)
            for run in (
                *(tuning_run(grid, value, scale) for value in grid_perplexities(grid, scale, results)),
                *missing_runs(grid, scale, results),
            )
        ]
        for run in matching((*tuning, *stage_runs(stage, scale)), only):
            runs.setdefault(run.name, (stage, run))
    return list(runs.values())


def train_campaign(stages: Sequence[Stage], executor: Executor, only: Sequence[str] = ()) -> list[Outcome]:
    """Train all runs of stages in their order.

    Raises:
        UserError: If a tuning chooses a value that the scale does not use.
    """
    outcomes: list[Outcome] = []
    grids: list[str] = []
    for group in _groups(stages):
        names = [name for stage in group for name in stage.grids]
        grids += names
        outcomes += train_grids(names, executor, only)
        if any(outcome.state == "stopped" for outcome in outcomes):
            break
        runs = [run for stage in group for run in stage_runs(stage, executor.scale)]
        if runs:
            check_choices(grids, executor.scale, executor.results)
            outcomes += executor.train(unique(matching(runs, only))).outcomes
    return outcomes


def _groups(stages: Sequence[Stage]) -> list[list[Stage]]:
    """Return stages in groups that are trained together, so that no process waits between two of them."""
    groups: list[list[Stage]] = []
    for stage in stages:
        if not groups or stage.grids or (groups[-1][-1].grids and not groups[-1][-1].cases):
            groups.append([])
        groups[-1].append(stage)
    return groups
