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


SAY_SECONDS = 60.0
"""How often a plain log tells where the running runs stand."""

JobsOption = Annotated[
    int | None, typer.Option(min=1, help="Runs at a time, each with one thread (default: 1, or what the cluster has).")
]
RayOption = Annotated[
    str | None, typer.Option(metavar="ADDRESS|local", help="Make the runs on a Ray cluster instead of here.")
]


@contextmanager
def workers(jobs: int | None, ray: str | None) -> Iterator[tuple[int, Launch]]:
    """How many runs are made at a time, and what starts one: here, or on a Ray cluster."""
    from selfish_rnn.scheduling.scheduler import launch

    if ray is None:
        yield jobs or 1, launch
        return
    from selfish_rnn.scheduling.ray_cluster import RayCluster

    with RayCluster(ray) as cluster:
        yield jobs or cluster.processors, cluster.launch


class RunsDisplay:
    """A live table of all runs on a terminal; elsewhere a line for what happens."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        self._told: set[tuple[str, str]] = set()
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
            self._tell(outcome.job.name, outcome.state)
        for job in progress.running:
            self._tell(job.name, "started")
        for place, job in enumerate(progress.killed, start=1):
            time_of_job = progress.killed[:place].count(job)
            self._tell(
                job.name, f"killed ({time_of_job} of {job.retries} times it may be), goes on from its checkpoint"
            )
        if self._live is not None:
            self._live.update(runs_table(progress, self.console.height), refresh=True)
        elif time.monotonic() - self._last > SAY_SECONDS:
            self._last = time.monotonic()
            for job in (*progress.running, *progress.elsewhere):
                epoch, perplexity, left = _standing(job)
                told = f"epoch {epoch}  valid perplexity {perplexity}  {left} left" if epoch else "first epoch"
                say(self.console, f"{job.name}  {told}")
            say(self.console, counts(progress))

    def _tell(self, name: str, state: str) -> None:
        if (name, state) not in self._told:
            self._told.add((name, state))
            say(self.console, f"{name}  {state}")


def runs_table(progress: Progress, height: int) -> Table:
    """Every run with its state, epoch, perplexity and time left; as many as fit, those that are trained first."""
    headings = ("run", "state"), ("epoch", "perplexity", "left")
    table = plain_table(*headings, caption=counts(progress), caption_justify="left")
    working = [(job, "running") for job in progress.running] + [(job, "elsewhere") for job in progress.elsewhere]
    ended = [(outcome.job, outcome.state) for outcome in reversed(progress.outcomes)]
    waiting = [(job, "waiting") for job in progress.waiting if job not in progress.elsewhere]
    for job, state in (*working, *ended, *waiting)[: max(height - 4, 1)]:
        table.add_row(job.name, state, *_standing(job))
    return table


def counts(progress: Progress) -> str:
    """How many runs are done, running, failed and waiting."""
    done = sum(outcome.state.startswith("finished") for outcome in progress.outcomes)
    waiting = len(progress.waiting) - len(progress.elsewhere)
    running = len(progress.running) + len(progress.elsewhere)
    return f"{done} done, {running} running, {len(progress.failed)} failed, {waiting} waiting"


def finish(console: Console, outcomes: Sequence[Outcome]) -> None:
    """Tell what failed, with the end of its log; leave with a code other than zero if not all runs are finished."""
    for outcome in outcomes:
        if outcome.state == "failed":
            console.print(f"\n{outcome.job.name} failed with code {outcome.code}; the end of {outcome.job.log}:")
            for line in outcome.tail():
                say(console, f"  {line}")
    if any(outcome.state == "failed" for outcome in outcomes):
        raise typer.Exit(1)
    if any(outcome.state == "stopped" for outcome in outcomes):
        console.print("Stopped; the same command continues.")
        raise typer.Exit(130)


def _standing(job: Job) -> tuple[str, str, str]:
    """Epoch, validation perplexity and time left of a run, as far as they are known."""
    from selfish_rnn.scheduling.jobs import read_progress
    from selfish_rnn.text import duration

    found = read_progress(job.folder)
    if found.perplexity is None:
        return "", "", ""
    left = duration(found.seconds_left) if found.seconds_left else ""
    return f"{found.epoch}/{found.epochs}", f"{found.perplexity:.2f}", left


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
    from selfish_rnn.scheduling.sweep import Sweep, group_by_seed

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
        console.print(_table(group_by_seed(results)))
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
