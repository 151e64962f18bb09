"""The campaign: all stages of the evidence in their order, and the grids of the tuning until they are bracketed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from selfish_rnn.errors import UserError
from selfish_rnn.reproduce.case import Item
from selfish_rnn.reproduce.paper.comparisons import TUNING
from selfish_rnn.reproduce.paper.stages import STAGES, Stage
from selfish_rnn.reproduce.plan import PlannedRun, seeds_of_scale
from selfish_rnn.reproduce.results import Results
from selfish_rnn.reproduce.scales import Scale
from selfish_rnn.reproduce.tuning import GRIDS, TUNING_SEED, Grid


def stage_runs(stage: Stage, scale: Scale, seeds: Sequence[int] = ()) -> list[PlannedRun]:
    """Return the runs of the cases of a stage, first seeds first."""
    by_case = [[PlannedRun(scale, case, seed) for seed in seeds or seeds_of_scale(case, scale)] for case in stage.cases]
    rounds = max(map(len, by_case), default=0)
    runs = [runs[number].trained_run for number in range(rounds) for runs in by_case if number < len(runs)]
    return list({run.name: run for run in runs}.values())


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
        if self.choice is None or used is None or self.choice == used:
            return None
        return f"{self.grid.name} is {used:g} and the tuning chooses {self.choice:g}"


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
    return tuple(grid.name for grid in GRIDS) if TUNING in items else ()


def campaign_runs(scale: Scale, results: Results, stages: Sequence[Stage] = STAGES) -> list[tuple[Stage, PlannedRun]]:
    """Return every run of the campaign in its order, as far as the tuning so far tells; each run once."""
    runs: dict[str, tuple[Stage, PlannedRun]] = {}
    for stage in stages:
        for run in (*_tuning_so_far(stage, scale, results), *stage_runs(stage, scale)):
            runs.setdefault(run.name, (stage, run))
    return list(runs.values())


def _tuning_so_far(stage: Stage, scale: Scale, results: Results) -> list[PlannedRun]:
    """Return the runs of the grids of a stage that are finished, and those that they ask for next."""
    grids = [tuned(grid, scale, results) for grid in GRIDS if grid.name in stage.grids]
    return [
        run
        for each in grids
        for run in (*(tuning_run(each.grid, value, scale) for value in each.perplexities), *each.missing)
    ]
