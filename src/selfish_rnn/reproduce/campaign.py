"""The campaign: all stages of the evidence in their order, and the grids of the tuning until they are bracketed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from selfish_rnn.errors import UserError, unknown
from selfish_rnn.reproduce.case import Case, Item
from selfish_rnn.reproduce.making import Workshop, make
from selfish_rnn.reproduce.paper.comparisons import PARETO, PARETO_TUNING, TUNING
from selfish_rnn.reproduce.paper.stages import STAGES, Stage
from selfish_rnn.reproduce.plan import PlannedRun, seeds_of, seeds_of_scale
from selfish_rnn.reproduce.results import Results
from selfish_rnn.reproduce.scales import Scale
from selfish_rnn.reproduce.tuning import GRIDS, TUNING_SEED, Grid
from selfish_rnn.scheduling.scheduler import Outcome


def stage_runs(stage: Stage, scale: Scale) -> list[PlannedRun]:
    """Return the runs of the cases of a stage, first seeds first."""
    by_case = [[PlannedRun(scale, case, seed) for seed in _seeds(case, scale)] for case in stage.cases]
    rounds = max(map(len, by_case), default=0)
    runs = [runs[number].trained_run for number in range(rounds) for runs in by_case if number < len(runs)]
    return list({run.name: run for run in runs}.values())


def _seeds(case: Case, scale: Scale) -> tuple[int, ...]:
    """Return the seeds of a case; the runs of the pareto figure take hours, and have one."""
    return seeds_of(PARETO, case, scale) if case in PARETO.cases else seeds_of_scale(case, scale)


@dataclass(frozen=True)
class Tuned:
    """A grid with the results of a scale so far."""

    grid: Grid
    scale: Scale
    perplexities: Mapping[float, float]

    @property
    def missing(self) -> list[PlannedRun]:
        """Runs that the grid asks for next; none once the best value is bracketed."""
        return [tuning_run(self.grid, value, self.scale) for value in self.grid.missing(self.perplexities)]

    @property
    def choice(self) -> float | None:
        """The chosen value, or None while runs are missing."""
        return None if self.missing else self.grid.best(self.perplexities)

    @property
    def problem(self) -> str | None:
        """The difference between the choice and the scale's constant, or None."""
        used = self.scale.chosen.get(self.grid.name)
        if self.choice is None or not self.scale.chosen or self.choice == used:
            return None
        return f"{self.grid.name} is {'unset' if used is None else f'{used:g}'}, the tuning chooses {self.choice:g}"


def tuning_run(grid: Grid, value: float, scale: Scale) -> PlannedRun:
    """Return the run of a candidate."""
    return PlannedRun(scale, grid.case_of(value), TUNING_SEED)


def tuned(grid: Grid, scale: Scale, results: Results) -> Tuned:
    """Read the results of a grid."""
    found = {value: results.of(tuning_run(grid, value, scale)) for value in grid.values}
    perplexities = {value: result.summary["valid_perplexity"] for value, result in found.items() if result is not None}
    return Tuned(grid, scale, perplexities)


def missing_tuning(names: Sequence[str], scale: Scale, results: Results) -> list[PlannedRun]:
    """Return the runs that grids ask for next, each once."""
    runs = [run for grid in GRIDS if grid.name in names for run in tuned(grid, scale, results).missing]
    return list({run.name: run for run in runs}.values())


def check_choices(names: Sequence[str], scale: Scale, results: Results) -> None:
    """Refuse to go on where a tuning chooses another value than the scale uses."""
    problems = [tuned(grid, scale, results).problem for grid in GRIDS if grid.name in names]
    if any(problems):
        raise UserError(
            f"scale {scale.name} uses other settings than its tuning chooses: {'; '.join(filter(None, problems))}. "
            "Change CHOSEN in src/selfish_rnn/reproduce/tuning.py, then give the command again"
        )


def grids_of(items: Sequence[Item]) -> tuple[str, ...]:
    """Return the names of the grids that items show."""
    networks = {case.network for item in items if item in (TUNING, PARETO_TUNING) for case in item.cases}
    return tuple(grid.name for grid in GRIDS if grid.case.network in networks)


def make_tuning(names: Sequence[str], workshop: Workshop, only: Sequence[str] = ()) -> list[Outcome]:
    """Train grids until their best values are bracketed, or until a run fails or is stopped.

    Args:
        names: Names of the grids.
        workshop: Where runs are made.
        only: Texts of which a run must have one in its name; empty: all runs.
    """
    outcomes: list[Outcome] = []
    while runs := _matching(missing_tuning(names, workshop.scale, workshop.results), only):
        outcomes += make(runs, workshop).outcomes
        if any(outcome.state in ("stopped", "failed") for outcome in outcomes):
            break
    return outcomes


def stages_named(names: Sequence[str]) -> tuple[Stage, ...]:
    """Return the stages of these names in the order of the campaign; all of them for no names."""
    known = {stage.name: stage for stage in STAGES}
    for name in names:
        if name not in known:
            raise UserError(unknown("stage", name, known))
    return tuple(stage for stage in STAGES if not names or stage.name in names)


@dataclass(frozen=True)
class Campaign:
    """Stages at a scale, of which only the runs with one of some texts in their names, where texts are given."""

    scale: Scale
    results: Results
    stages: Sequence[Stage] = STAGES
    only: Sequence[str] = ()

    def runs(self) -> list[tuple[Stage, PlannedRun]]:
        """Return every run in its order, each once. Of grids it is what they have and what they ask for next."""
        runs: dict[str, tuple[Stage, PlannedRun]] = {}
        for stage in self.stages:
            for run in _matching((*self._tuning_so_far(stage), *stage_runs(stage, self.scale)), self.only):
                runs.setdefault(run.name, (stage, run))
        return list(runs.values())

    def make(self, workshop: Workshop) -> list[Outcome]:
        """Make all runs in their order; stop at a tuning that disagrees with the settings of the scale."""
        outcomes: list[Outcome] = []
        grids: list[str] = []
        for group in self._groups():
            names = [name for stage in group for name in stage.grids]
            grids += names
            outcomes += make_tuning(names, workshop, self.only)
            if any(outcome.state == "stopped" for outcome in outcomes):
                break
            runs = [run for stage in group for run in stage_runs(stage, self.scale)]
            if runs:
                check_choices(grids, self.scale, self.results)
                unique = {run.name: run for run in _matching(runs, self.only)}
                outcomes += make(list(unique.values()), workshop).outcomes
        return outcomes

    def _groups(self) -> list[list[Stage]]:
        """Return the stages in groups that are made together, so that no process waits between two of them."""
        groups: list[list[Stage]] = []
        for stage in self.stages:
            if not groups or stage.grids or (groups[-1][-1].grids and not groups[-1][-1].cases):
                groups.append([])
            groups[-1].append(stage)
        return groups

    def _tuning_so_far(self, stage: Stage) -> list[PlannedRun]:
        """Return the runs of the grids of a stage that are finished, and those that they ask for next."""
        grids = [tuned(grid, self.scale, self.results) for grid in GRIDS if grid.name in stage.grids]
        return [
            run
            for each in grids
            for run in (*(tuning_run(each.grid, value, self.scale) for value in each.perplexities), *each.missing)
        ]


def _matching(runs: Sequence[PlannedRun], only: Sequence[str]) -> list[PlannedRun]:
    return [run for run in runs if not only or any(text in run.name for text in only)]
