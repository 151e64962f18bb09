"""``selfish-rnn reproduce``: the paper's tables, figures and claims."""

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

if TYPE_CHECKING:  # torch takes a second to import, which --help should not
    from selfish_rnn.reproduce.campaign import Campaign
    from selfish_rnn.reproduce.case import Item
    from selfish_rnn.reproduce.making import Workshop
    from selfish_rnn.reproduce.plan import Selection
    from selfish_rnn.reproduce.results import Results
    from selfish_rnn.reproduce.scales import Scale

CAMPAIGN = "campaign"
"""Name that stands for every stage of the campaign in its order, or for the stages named after it."""


def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ITEM]...",
            help="Tables and figures (none: list them), or campaign and some of its stages; with --adopt, run folders.",
        ),
    ] = None,
    scale: Annotated[str, typer.Option(help="tiny, small, small-first (results only), medium or paper.")] = "small",
    jobs: JobsOption = None,
    ray: RayOption = None,
    runs: Annotated[Path, typer.Option(help="Folder for the run folders.")] = Path("runs/reproduce"),
    results: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("results"),
    seeds: Annotated[str | None, typer.Option(help="Such as 1,2,3 (default: the scale's).")] = None,
    only: Annotated[
        str | None, typer.Option(help="Only runs with one of these in their names, such as adam,s0.9 (see --dry-run).")
    ] = None,
    seconds: Annotated[float | None, typer.Option(min=0.1, help="Of a timed run (default: the scale's).")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the commands of the runs.")] = False,
    adopt: Annotated[bool, typer.Option("--adopt", help="Take finished run folders as results.")] = False,
    commit: Annotated[str | None, typer.Option(help="With --adopt: the commit that made the runs.")] = None,
    render: Annotated[
        bool, typer.Option("--render", help="Bring README.md, docs/results.md and their figures up to date.")
    ] = False,
) -> None:
    """Reproduce tables and figures of the paper.

    For example: selfish-rnn reproduce gate-rules --jobs 2
    """
    from selfish_rnn.reproduce.campaign import Campaign, stages_named
    from selfish_rnn.reproduce.overview import items_named
    from selfish_rnn.reproduce.plan import Selection
    from selfish_rnn.reproduce.results import Results
    from selfish_rnn.reproduce.scales import scale_named

    console = output()
    size = scale_named(scale)
    kept = Results(results, size.name)
    budget = seconds or size.budget
    if render:
        _render(console, results)
    elif adopt:
        _adopt(console, [Path(name) for name in names or []], size, kept, commit)
    elif not names:
        _list(console, size, kept, _numbers(seeds), budget)
    else:
        wanted = tuple(only.split(",")) if only else ()
        if size.superseded and not dry_run:
            raise UserError(f"scale {size.name} is superseded: its results can be read and rendered; use --scale small")
        made = _Made(console, size, kept, runs, results, jobs, ray)
        if names[0] == CAMPAIGN:
            if seeds or seconds:
                raise UserError("the campaign has its own seeds and times: leave out --seeds and --seconds")
            campaign = Campaign(size, kept, stages_named(names[1:]), wanted)
            _print_campaign(console, campaign) if dry_run else _make_campaign(campaign, made)
            return
        selection = Selection(items_named(names, size.name), size, _numbers(seeds), wanted)
        if not selection.runs():
            raise UserError(f"--only {only} is in the name of no run of {', '.join(names)}; --dry-run shows the names")
        if dry_run:
            _commands(console, selection, kept)
        else:
            _make(selection, budget, made)


def _numbers(seeds: str | None) -> tuple[int, ...]:
    try:
        return tuple(int(seed) for seed in seeds.split(",")) if seeds else ()
    except ValueError:
        raise UserError(
            f"--seeds must be whole numbers with commas between them, such as 1,2,3, got {seeds!r}"
        ) from None


def _render(console: Console, results: Path) -> None:
    from selfish_rnn.reproduce.rendering.documents import render_documents

    changed = [str(path) for path in render_documents(Path(), results)]
    for line in changed or ["everything is up to date"]:
        say(console, line)


def _adopt(console: Console, folders: Sequence[Path], scale: Scale, results: Results, commit: str | None) -> None:
    from selfish_rnn.reproduce.adoption import adopt

    if not folders or commit is None:
        raise UserError("--adopt needs run folders, and --commit with the commit that made them")
    refused = 0
    for folder in folders:
        try:
            run, path = adopt(folder, scale, results, commit)
        except UserError as error:
            refused += 1
            say(console, f"refused: {error}")
        else:
            say(console, f"{folder} is {run.name}: {path}")
    if refused:
        raise typer.Exit(1)


def _list(console: Console, scale: Scale, results: Results, seeds: Sequence[int], budget: float) -> None:
    from selfish_rnn.reproduce.overview import standing
    from selfish_rnn.reproduce.paper import items_at

    table = plain_table(("item", "what", "in the paper"), ("runs", "finished", "core-hours", "left"))
    for item in items_at(scale.name):
        found = standing(item, scale, results, seeds, budget)
        numbers = (str(found.runs), str(found.finished), f"{found.hours:.3g}", f"{found.hours_left:.3g}")
        table.add_row(item.name, item.title, item.source, *numbers)
    console.print(table)
    console.print(f"\nscale {scale.name}: {scale.about}. Items share runs; a run is made once.", soft_wrap=True)


def _commands(console: Console, selection: Selection, results: Results) -> None:
    for run in selection.runs():
        state = "finished" if results.of(run) is not None else "to do"
        say(console, f"{state:8}  {run.command}  # {run.name}")


def _print_campaign(console: Console, campaign: Campaign) -> None:
    stage = None
    for here, run in campaign.runs():
        if here is not stage:
            stage = here
            say(console, f"{stage.name}: {stage.title}")
        state = "finished" if campaign.results.of(run) is not None else "to do"
        say(console, f"{state:8}  {run.command}  # {run.name}")


@dataclass(frozen=True)
class _Made:
    """Where and by what runs are made, and where their results, distances and tables go."""

    console: Console
    scale: Scale
    results: Results
    runs: Path
    root: Path
    jobs: int | None
    ray: str | None

    @contextmanager
    def workshop(self) -> Iterator[Workshop]:
        from selfish_rnn.reproduce.making import Workshop

        with workers(self.jobs, self.ray) as (number, launch), RunsDisplay(self.console) as display:
            yield Workshop(self.scale, self.runs, self.results, number, display, launch)

    def show(self, items: Sequence[Item], workshop: Workshop, seeds: Sequence[int] = ()) -> None:
        """Measure distances, tell what a tuning chooses, and write the tables and figures of items."""
        from selfish_rnn.reproduce.analysis import distances_over_time
        from selfish_rnn.reproduce.campaign import grids_of, tuned
        from selfish_rnn.reproduce.distances import Distances, pairs_of
        from selfish_rnn.reproduce.rendering.documents import render_item
        from selfish_rnn.reproduce.rendering.tables import Findings
        from selfish_rnn.reproduce.tuning import GRIDS

        distances = Distances(self.root, self.scale.name)
        measure = partial(distances_over_time, start=self.scale.distances_from)
        for item in items:
            if item.shows == "distances":
                for run, _ in distances.measure(pairs_of(item, self.scale, seeds), workshop.folder, measure):
                    if self.results.of(run) is not None:
                        say(self.console, f"distances of {run.name} are not measured")
            for path in render_item(item, Findings(self.scale, self.results, distances, seeds)):
                say(self.console, f"{item.name}: {path}")
        for grid in GRIDS if grids_of(items) else ():
            chosen = tuned(grid, self.scale, self.results).choice
            say(self.console, f"tuning of {grid.name}: {'open' if chosen is None else f'{chosen:g}'}")


def _make(selection: Selection, budget: float, made: _Made) -> None:
    from selfish_rnn.reproduce.campaign import grids_of, make_tuning
    from selfish_rnn.reproduce.making import make
    from selfish_rnn.reproduce.timed import make_timed

    timed = [item.name for item in selection.items if item.shows == "time"]
    if made.ray is not None and timed:
        raise UserError(f"{', '.join(timed)} measures seconds of one machine: leave out --ray")
    with made.workshop() as workshop:
        outcomes = make(selection.runs(timed=False), workshop).outcomes
        if not any(outcome.state in ("stopped", "failed") for outcome in outcomes):
            outcomes += make_tuning(grids_of(selection.items), workshop, selection.only)
        if not any(outcome.state == "stopped" for outcome in outcomes):
            outcomes += make_timed(selection.runs(timed=True), workshop, budget).outcomes
    made.show(selection.items, workshop, selection.seeds)
    finish(made.console, outcomes)


def _make_campaign(campaign: Campaign, made: _Made) -> None:
    from selfish_rnn.reproduce.paper import items_at

    with made.workshop() as workshop:
        outcomes = campaign.make(workshop)
    made.show([item for item in items_at(campaign.scale.name) if item.shows != "time"], workshop)
    finish(made.console, outcomes)
