"""``selfish-rnn sweep``: every combination of settings in a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from selfish_rnn.cli.console import output
from selfish_rnn.cli.many_runs import JobsOption, RayOption, RunsDisplay, finish, workers
from selfish_rnn.text import plain_table, say, spread

if TYPE_CHECKING:
    from selfish_rnn.scheduling.sweep import SeedGroup


def sweep(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="YAML: preset, settings, and a grid of values.")],
    jobs: JobsOption = None,
    ray: RayOption = None,
    runs: Annotated[
        Path | None, typer.Option(help="Folder for the run folders (default: runs/ and the name of the file).")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the commands of the runs.")] = False,
) -> None:
    """Train every combination of settings in a file.

    For example: selfish-rnn sweep methods.yaml --jobs 2
    """
    import shlex

    from selfish_rnn.scheduling.scheduler import run
    from selfish_rnn.scheduling.sweep import Sweep, seeds_together

    console = output()
    found = Sweep.read(file, runs or Path("runs") / file.stem)
    if dry_run:
        for one in found.runs:
            state = "finished" if (found.path(one) / "summary.json").is_file() else "to do"
            say(console, f"{state:8}  {shlex.join(['selfish-rnn', 'train', *one.words])}")
        return
    work = found.jobs()
    with workers(jobs, ray) as (number, launch), RunsDisplay(console) as display:
        outcomes = run(work, number, display, launch).outcomes
    results = found.results()
    if results:
        console.print(_table(seeds_together(results)))
        path = found.write_results()
        say(console, f"{len(results)} of {len(found.runs)} runs: {path}")
        command = f"selfish-rnn report {shlex.quote(str(found.folder))}/*/ --out {shlex.quote(file.stem + '.html')}"
        say(console, f"  {command}")
    finish(console, outcomes)


def _table(groups: list[SeedGroup]) -> Table:
    """The best first, seeds averaged."""
    keys = list(dict.fromkeys(key for group in groups for key in group.settings))
    table = plain_table(keys, ("valid", "test", "seeds", "weights", "seconds"))
    for group in groups:
        values = (_text(group.settings.get(key)) for key in keys)
        perplexities = (spread(group.values(f"{split}_perplexity")) for split in ("valid", "test"))
        rest = (f"{group.mean('active_weights'):,.0f}", f"{group.mean('seconds'):.0f}")
        table.add_row(*values, *perplexities, str(len(group.results)), *rest)
    return table


def _text(value: Any) -> str:
    return "-" if value is None else str(value)
