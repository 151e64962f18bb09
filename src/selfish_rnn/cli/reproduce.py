"""The command ``reproduce``: the paper's tables, figures and claims."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from selfish_rnn.cli.console import output
from selfish_rnn.cli.many_runs import JobsOption, RayOption, RunsDisplay, finish, workers
from selfish_rnn.errors import UserError
from selfish_rnn.text import plain_table, say

if TYPE_CHECKING:  # torch takes a second to import, which --help should not need
    from selfish_rnn.reproduce.campaign import Stage
    from selfish_rnn.reproduce.case import Item
    from selfish_rnn.reproduce.execution import Executor
    from selfish_rnn.reproduce.plan import PlannedRun
    from selfish_rnn.reproduce.results import Results
    from selfish_rnn.reproduce.scales import Scale

CAMPAIGN = "campaign"
"""First argument that selects stages of the campaign instead of items."""


def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ITEM]...", help="Tables and figures (default: list them), or campaign and names of its stages."
        ),
    ] = None,
    scale: Annotated[
        str, typer.Option(metavar="NAME", help="Size of the networks: tiny (a check), small, medium or paper.")
    ] = "small",
    jobs: JobsOption = None,
    ray: RayOption = None,
    runs: Annotated[Path, typer.Option(metavar="DIR", help="Parent of the run folders.")] = Path("runs/reproduce"),
    results: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the results.")] = Path("results"),
    seeds: Annotated[str | None, typer.Option(metavar="1,2,...", help="Seeds (default: those of the scale).")] = None,
    only: Annotated[
        str | None,
        typer.Option(metavar="TEXT,...", help="Only runs with one of these texts in their names (see --dry-run)."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the commands of the runs and exit.")] = False,
    seconds: Annotated[
        float | None,
        typer.Option(min=0.1, metavar="SECONDS", help="Time limit of timed runs (default: the scale's).", hidden=True),
    ] = None,
    adopt: Annotated[
        bool, typer.Option("--adopt", help="Store finished run folders as results (needs --commit).", hidden=True)
    ] = False,
    commit: Annotated[
        str | None, typer.Option(metavar="COMMIT", help="With --adopt: commit that trained the runs.", hidden=True)
    ] = None,
    render: Annotated[
        bool, typer.Option("--render", help="Update README.md, docs/results.md and their figures.", hidden=True)
    ] = False,
) -> None:
    """Reproduce tables and figures of the paper.

    Finished runs are skipped and interrupted runs resume, so the same command continues.

    Example: selfish-rnn reproduce gate-rules --jobs 2
    """
    from selfish_rnn.reproduce.campaign import campaign_runs, stages_named
    from selfish_rnn.reproduce.paper import items_named
    from selfish_rnn.reproduce.plan import matching, plan
    from selfish_rnn.reproduce.results import Results
    from selfish_rnn.reproduce.scales import scale_named

    console = output()
    size = scale_named(scale)
    stored = Results(results, size.name)
    texts = tuple(only.split(",")) if only else ()
    request = _Request(console, size, stored, runs, jobs, ray, numbers(seeds), texts, seconds or size.budget)
    if render:
        _render(console, results)
    elif adopt:
        _import(request, [Path(name) for name in names or []], commit)
    elif not names:
        _list(request)
    elif size.superseded and not dry_run:
        raise UserError(f"scale {size.name} is superseded: its results can be read and rendered; use --scale small")
    elif names[0] == CAMPAIGN:
        if seeds or seconds:
            raise UserError("the campaign has its own seeds and times: remove --seeds and --seconds")
        stages = stages_named(names[1:])
        if dry_run:
            _print_campaign(request, campaign_runs(stages, size, stored, texts))
        else:
            _train_campaign(request, stages)
    else:
        items = items_named(names, size.name)
        planned = matching(plan(items, size, request.seeds), texts)
        if not planned:
            raise UserError(f"no run of {', '.join(names)} has {only} in its name; --dry-run lists the names")
        if dry_run:
            _print_commands(request, planned)
        else:
            _train(request, items)


@dataclass(frozen=True)
class _Request:
    """Options of the command."""

    console: Console
    scale: Scale
    results: Results
    runs: Path
    jobs: int | None
    ray: str | None
    seeds: tuple[int, ...]
    only: tuple[str, ...]
    budget: float

    @contextmanager
    def executor(self) -> Iterator[Executor]:
        """Open the workers and the display of the runs."""
        from selfish_rnn.reproduce.execution import Executor

        with workers(self.jobs, self.ray) as (number, launch), RunsDisplay(self.console) as display:
            yield Executor(self.scale, self.runs, self.results, number, display, launch)

    def planned(self, items: Sequence[Item], timed: bool) -> list[PlannedRun]:
        """Return the runs of timed or of other items."""
        from selfish_rnn.reproduce.plan import matching, plan

        return matching(
            plan([item for item in items if (item.kind == "time") == timed], self.scale, self.seeds), self.only
        )


def numbers(seeds: str | None) -> tuple[int, ...]:
    """Return the seeds of an option."""
    try:
        return tuple(int(seed) for seed in seeds.split(",")) if seeds else ()
    except ValueError:
        raise UserError(f"--seeds must be integers separated by commas, such as 1,2,3, got {seeds!r}") from None


def _render(console: Console, results: Path) -> None:
    from selfish_rnn.reproduce.rendering.documents import render_documents

    changed = [str(path) for path in render_documents(Path(), results)]
    for line in changed or ["everything is up to date"]:
        say(console, line)


def _import(request: _Request, folders: Sequence[Path], commit: str | None) -> None:
    from selfish_rnn.reproduce.results import import_run

    if not folders or commit is None:
        raise UserError("--adopt needs run folders, and --commit with the commit that trained them")
    refused = 0
    for folder in folders:
        try:
            run, path = import_run(folder, request.scale, request.results, commit)
        except UserError as error:
            refused += 1
            say(request.console, f"refused: {error}")
        else:
            say(request.console, f"{folder} is {run.name}: {path}")
    if refused:
        raise typer.Exit(1)


def _list(request: _Request) -> None:
    """Print every item of the scale with its progress and cost."""
    from selfish_rnn.reproduce.paper import items_at
    from selfish_rnn.reproduce.results import item_status

    scale, console = request.scale, request.console
    table = plain_table(("item", "title", "in the paper"), ("runs", "finished", "core-hours", "remaining"))
    for item in items_at(scale.name):
        status = item_status(item, scale, request.results, request.seeds, request.budget)
        numbers = (str(status.runs), str(status.finished), f"{status.hours:.3g}", f"{status.hours_left:.3g}")
        table.add_row(item.name, item.title, item.source, *numbers)
    console.print(table)
    console.print(
        f"\nScale {scale.name}: {scale.about}. Runs shared by several items are trained once.", soft_wrap=True
    )


def _print_commands(request: _Request, runs: Sequence[PlannedRun]) -> None:
    for run in runs:
        state = "finished" if request.results.get(run) is not None else "to do"
        say(request.console, f"{state:8}  {run.command}  # {run.name}")


def _print_campaign(request: _Request, runs: Sequence[tuple[Stage, PlannedRun]]) -> None:
    current = None
    for stage, run in runs:
        if stage is not current:
            current = stage
            say(request.console, f"{stage.name}: {stage.title}")
        _print_commands(request, [run])


def _train(request: _Request, items: Sequence[Item]) -> None:
    """Train the runs of items, grids that they show, and timed runs; then write tables and figures."""
    from selfish_rnn.reproduce.campaign import grids_of, train_grids

    timed = [item.name for item in items if item.kind == "time"]
    if request.ray is not None and timed:
        raise UserError(f"{', '.join(timed)} measures seconds of one machine: remove --ray")
    with request.executor() as executor:
        outcomes = executor.train(request.planned(items, timed=False)).outcomes
        if not any(outcome.state in ("stopped", "failed") for outcome in outcomes):
            outcomes += train_grids(grids_of(items), executor, request.only)
        if not any(outcome.state == "stopped" for outcome in outcomes):
            outcomes += executor.train_timed(request.planned(items, timed=True), request.budget).outcomes
    _show(request, items, executor)
    finish(request.console, outcomes)


def _train_campaign(request: _Request, stages: Sequence[Stage]) -> None:
    from selfish_rnn.reproduce.campaign import train_campaign
    from selfish_rnn.reproduce.paper import items_at

    with request.executor() as executor:
        outcomes = train_campaign(stages, executor, request.only)
    _show(request, [item for item in items_at(request.scale.name) if item.kind != "time"], executor)
    finish(request.console, outcomes)


def _show(request: _Request, items: Sequence[Item], executor: Executor) -> None:
    """Measure distances, print the choices of a tuning, and write the tables and figures of items."""
    from selfish_rnn.reproduce.campaign import grids_of, tuned_value
    from selfish_rnn.reproduce.distances import distances_over_time, measure_missing
    from selfish_rnn.reproduce.plan import pairs_of
    from selfish_rnn.reproduce.rendering.documents import render_item
    from selfish_rnn.reproduce.rendering.tables import ResultView
    from selfish_rnn.reproduce.tuning import GRIDS

    scale, results, console = request.scale, request.results, request.console
    measure = partial(distances_over_time, start=scale.distances_from)
    for item in items:
        if item.kind == "distances":
            for run, _ in measure_missing(pairs_of(item, scale, request.seeds), results, executor.folder, measure):
                if results.get(run) is not None:
                    say(console, f"distances of {run.name} are not measured")
        for path in render_item(item, ResultView(scale, results, request.seeds)):
            say(console, f"{item.name}: {path}")
    for grid in GRIDS if grids_of(items) else ():
        choice = tuned_value(grid, scale, results)
        say(console, f"tuning of {grid.name}: {'open' if choice is None else f'{choice:g}'}")
