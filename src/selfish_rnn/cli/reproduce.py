"""``selfish-rnn reproduce``: the paper's tables, figures and claims."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from selfish_rnn.cli.console import output
from selfish_rnn.cli.many_runs import JobsOption, RayOption, RunsDisplay, finish, workers
from selfish_rnn.errors import UserError
from selfish_rnn.text import plain_table, say

if TYPE_CHECKING:  # torch takes a second to import, which --help should not
    from selfish_rnn.reproduce.plan import Selection
    from selfish_rnn.reproduce.results import Results
    from selfish_rnn.reproduce.scales import Scale


def reproduce(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ITEM]...", help="Tables and figures (none: list them); with --adopt, run folders."),
    ] = None,
    scale: Annotated[str, typer.Option(help="tiny, small, medium or paper.")] = "small",
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
    render: Annotated[bool, typer.Option("--render", help="Bring README.md and docs/results.md up to date.")] = False,
) -> None:
    """Make a table or figure of the paper again.

    For example: selfish-rnn reproduce gate-rules --jobs 2
    """
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
        selection = Selection(items_named(names), size, _numbers(seeds), tuple(only.split(",")) if only else ())
        if not selection.runs():
            raise UserError(f"--only {only} is in the name of no run of {', '.join(names)}; --dry-run shows the names")
        if dry_run:
            _commands(console, selection, kept)
        else:
            _make(console, selection, kept, budget, jobs, ray, runs, results)


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
    from selfish_rnn.reproduce.paper import ITEMS

    table = plain_table(("item", "what", "in the paper"), ("runs", "finished", "core-hours", "left"))
    for item in ITEMS.values():
        found = standing(item, scale, results, seeds, budget)
        numbers = (str(found.runs), str(found.finished), f"{found.hours:.3g}", f"{found.hours_left:.3g}")
        table.add_row(item.name, item.title, item.source, *numbers)
    console.print(table)
    console.print(f"\nscale {scale.name}: {scale.about}. Items share runs; a run is made once.", soft_wrap=True)


def _commands(console: Console, selection: Selection, results: Results) -> None:
    for run in selection.runs():
        state = "finished" if results.of(run) is not None else "to do"
        say(console, f"{state:8}  {run.command}  # {run.name}")


def _make(
    console: Console,
    selection: Selection,
    results: Results,
    budget: float,
    jobs: int | None,
    ray: str | None,
    runs: Path,
    root: Path,
) -> None:
    from selfish_rnn.reproduce.analysis import distances_over_time
    from selfish_rnn.reproduce.distances import Distances, pairs_of
    from selfish_rnn.reproduce.making import Workshop, make
    from selfish_rnn.reproduce.rendering.documents import render_item
    from selfish_rnn.reproduce.rendering.tables import Findings
    from selfish_rnn.reproduce.timed import make_timed

    items, scale, seeds = selection.items, selection.scale, selection.seeds
    distances = Distances(root, scale.name)
    timed = [item.name for item in items if item.shows == "time"]
    if ray is not None and timed:
        raise UserError(f"{', '.join(timed)} measures seconds of one machine: leave out --ray")
    with workers(jobs, ray) as (number, launch), RunsDisplay(console) as display:
        workshop = Workshop(scale, runs, results, number, display, launch)
        outcomes = make(selection.runs(timed=False), workshop).outcomes
        if not any(outcome.state == "stopped" for outcome in outcomes):
            outcomes += make_timed(selection.runs(timed=True), workshop, budget).outcomes
    for item in items:
        if item.shows == "distances":
            missing = distances.measure(pairs_of(item, scale, seeds), workshop.folder, distances_over_time)
            for run, _ in missing:
                say(console, f"distances of {run.name} are not measured")
        for path in render_item(item, Findings(scale, results, distances, seeds)):
            say(console, f"{item.name}: {path}")
    finish(console, outcomes)
