"""The command ``sweep``, and the display of many runs that ``reproduce`` shares."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from selfish_rnn.cli.console import output
from selfish_rnn.text import plain_table, say, spread

if TYPE_CHECKING:
    from selfish_rnn.scheduling.scheduler import Job, Launch, Outcome, Progress
    from selfish_rnn.scheduling.sweep import SeedGroup


LOG_SECONDS = 60.0
"""Interval between progress lines in a plain log."""

JobsOption = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Runs at a time, with one thread each (default: 1, or the cluster's cores)."),
]
RayOption = Annotated[
    str | None, typer.Option(metavar="ADDRESS|local", help="Train on a Ray cluster instead of this machine.")
]


@contextmanager
def workers(jobs: int | None, ray: str | None) -> Iterator[tuple[int, Launch]]:
    """Yield the number of concurrent runs and the function that starts one, on this machine or on a Ray cluster."""
    from selfish_rnn.scheduling.scheduler import launch

    if ray is None:
        yield jobs or 1, launch
        return
    from selfish_rnn.scheduling.ray_cluster import RayCluster

    with RayCluster(ray) as cluster:
        yield jobs or cluster.processors, cluster.launch


class RunsDisplay:
    """Live table of all runs on a terminal; a line per event elsewhere."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        self._reported: set[tuple[str, str]] = set()
        self._last = time.monotonic()

    def __enter__(self) -> RunsDisplay:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, progress: Progress) -> None:
        for outcome in progress.outcomes:
            self._report(outcome.job.name, outcome.state)
        for job in progress.running:
            self._report(job.name, "started")
        for end, job in enumerate(progress.killed, start=1):
            retry = progress.killed[:end].count(job)
            self._report(job.name, f"killed, resumes from its checkpoint (retry {retry} of {job.retries})")
        if self._live is not None:
            self._live.update(runs_table(progress, self.console.height), refresh=True)
        elif time.monotonic() - self._last > LOG_SECONDS:
            self._last = time.monotonic()
            for job in (*progress.running, *progress.elsewhere):
                epoch, perplexity, left = _progress_of(job)
                status = f"epoch {epoch}  valid perplexity {perplexity}  {left} left" if epoch else "first epoch"
                say(self.console, f"{job.name}  {status}")
            say(self.console, counts(progress))

    def _report(self, name: str, state: str) -> None:
        if (name, state) not in self._reported:
            self._reported.add((name, state))
            say(self.console, f"{name}  {state}")


def runs_table(progress: Progress, height: int) -> Table:
    """Return a table of the runs that fit the terminal, running ones first."""
    headings = ("run", "state"), ("epoch", "perplexity", "left")
    table = plain_table(*headings, caption=counts(progress), caption_justify="left")
    working = [(job, "running") for job in progress.running] + [(job, "elsewhere") for job in progress.elsewhere]
    ended = [(outcome.job, outcome.state) for outcome in reversed(progress.outcomes)]
    waiting = [(job, "waiting") for job in progress.waiting if job not in progress.elsewhere]
    for job, state in (*working, *ended, *waiting)[: max(height - 4, 1)]:
        table.add_row(job.name, state, *_progress_of(job))
    return table


def counts(progress: Progress) -> str:
    """Return the numbers of runs that are done, running, failed and waiting."""
    done = sum(outcome.state.startswith("finished") for outcome in progress.outcomes)
    waiting = len(progress.waiting) - len(progress.elsewhere)
    running = len(progress.running) + len(progress.elsewhere)
    return f"{done} done, {running} running, {len(progress.failed)} failed, {waiting} waiting"


def finish(console: Console, outcomes: Sequence[Outcome]) -> None:
    """Print the failures with the end of their logs, and exit with a non-zero code unless all runs are finished."""
    for outcome in outcomes:
        if outcome.state == "failed":
            console.print(f"\n{outcome.job.name} failed with exit code {outcome.code}; the end of {outcome.job.log}:")
            for line in outcome.tail():
                say(console, f"  {line}")
    if any(outcome.state == "failed" for outcome in outcomes):
        raise typer.Exit(1)
    if any(outcome.state == "stopped" for outcome in outcomes):
        console.print("Stopped; the same command resumes.")
        raise typer.Exit(130)


def _progress_of(job: Job) -> tuple[str, str, str]:
    """Return epoch, validation perplexity and remaining time of a run; empty texts if unknown."""
    from selfish_rnn.scheduling.jobs import read_progress
    from selfish_rnn.text import duration

    progress = read_progress(job.folder)
    if progress.perplexity is None:
        return "", "", ""
    left = duration(progress.seconds_left) if progress.seconds_left else ""
    return f"{progress.epoch}/{progress.epochs}", f"{progress.perplexity:.2f}", left


def sweep(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="YAML file with a preset, settings, and a grid of values.")
    ],
    jobs: JobsOption = None,
    ray: RayOption = None,
    runs: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Parent of the run folders (default: runs/NAME_OF_FILE).")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the commands of the runs and exit.")] = False,
) -> None:
    """Train every combination of settings in a file.

    Example: selfish-rnn sweep methods.yaml --jobs 2
    """
    import shlex

    from selfish_rnn.scheduling.scheduler import run
    from selfish_rnn.scheduling.sweep import Sweep, group_by_seed

    console = output()
    grid = Sweep.read(file, runs or Path("runs") / file.stem)
    if dry_run:
        for entry in grid.runs:
            state = "finished" if (grid.path(entry) / "summary.json").is_file() else "to do"
            say(console, f"{state:8}  {shlex.join(['selfish-rnn', 'train', *entry.words])}")
        return
    work = grid.jobs()
    with workers(jobs, ray) as (number, launch), RunsDisplay(console) as display:
        outcomes = run(work, number, display, launch).outcomes
    results = grid.results()
    if results:
        console.print(_table(group_by_seed(results)))
        path = grid.write_results()
        say(console, f"{len(results)} of {len(grid.runs)} runs: {path}")
        command = f"selfish-rnn report {shlex.quote(str(grid.folder))} --out {shlex.quote(file.stem + '.html')}"
        say(console, f"  {command}")
    finish(console, outcomes)


def _table(groups: list[SeedGroup]) -> Table:
    """Return a table of settings, the best first, with means over seeds."""
    keys = list(dict.fromkeys(key for group in groups for key in group.settings))
    table = plain_table(keys, ("valid", "test", "seeds", "weights", "seconds"))
    for group in groups:
        values = (_text(group.settings.get(key)) for key in keys)
        perplexities = (spread(group.values(f"{split}_perplexity")) for split in ("valid", "test"))
        numbers = (f"{group.mean('active_weights'):,.0f}", f"{group.mean('seconds'):.0f}")
        table.add_row(*values, *perplexities, str(len(group.results)), *numbers)
    return table


def _text(value: Any) -> str:
    return "-" if value is None else str(value)
