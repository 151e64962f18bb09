"""Making the runs of items: jobs for the scheduler, results as they come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from selfish_rnn.reproduce.plan import PlannedRun
from selfish_rnn.reproduce.results import Results, collect, made_here
from selfish_rnn.reproduce.scales import Scale
from selfish_rnn.scheduling.jobs import check_begun, is_finished, run_command
from selfish_rnn.scheduling.scheduler import Job, Launch, OnProgress, Progress, launch, run


@dataclass(frozen=True)
class Workshop:
    """Where runs are made and results kept, and by how many processes at a time."""

    scale: Scale
    runs: Path
    results: Results
    jobs: int = 1
    listener: OnProgress = field(default=lambda progress: None)
    launch: Launch = launch

    def folder(self, planned: PlannedRun) -> Path:
        return self.runs / self.scale.name / planned.name

    def command(self, planned: PlannedRun, threads: int = 1) -> list[str]:
        """What makes a run, or continues it if it was begun."""
        return run_command(self.folder(planned), [*planned.words, f"threads={threads}"], planned.trained)

    def is_done(self, planned: PlannedRun) -> bool:
        """Whether a run has a result, or is about to have one."""
        return self.results.of(planned) is not None or is_finished(self.folder(planned))

    def work(self, jobs: Sequence[Job], listener: OnProgress | None = None) -> Progress:
        return run(jobs, self.jobs, listener or self.listener, self.launch)


def make(planned: Sequence[PlannedRun], workshop: Workshop) -> Progress:
    """Make all runs that have no result; each result is kept as soon as its run is finished."""
    results = workshop.results
    for one in planned:
        if results.of(one) is None:
            check_begun(workshop.folder(one), one.trained)
    by_name = {one.name: one for one in planned}
    kept: set[str] = set()

    def keep_finished(progress: Progress) -> None:
        for outcome in progress.outcomes:
            name = outcome.job.name
            if name not in kept and outcome.state.startswith("finished") and results.of(by_name[name]) is None:
                results.keep(collect(outcome.job.folder, by_name[name], made_here(), []), by_name[name])
            kept.add(name)
        workshop.listener(progress)

    jobs = [
        Job(
            name=one.name,
            folder=workshop.folder(one),
            command=partial(workshop.command, one),
            done=partial(workshop.is_done, one),
        )
        for one in planned
    ]
    progress = workshop.work(jobs, keep_finished)
    keep_finished(progress)
    return progress
