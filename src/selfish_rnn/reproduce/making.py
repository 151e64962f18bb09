"""Making the runs of items: jobs for the scheduler, results as they come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from selfish_rnn.errors import UserError
from selfish_rnn.experiment.presets import build_experiment, read_config
from selfish_rnn.reproduce.case import Item
from selfish_rnn.reproduce.plan import PlannedRun, differences, plan
from selfish_rnn.reproduce.results import Results, collect, is_finished, made_here, vocabulary_of
from selfish_rnn.reproduce.scales import Scale
from selfish_rnn.reproduce.scheduling.scheduler import SELFISH_RNN, Job, Launch, Listener, Progress, launch, run


@dataclass(frozen=True)
class Workshop:
    """Where runs are made and results kept, and by how many processes at a time."""

    scale: Scale
    runs: Path
    results: Results
    jobs: int = 1
    listener: Listener = field(default=lambda progress: None)
    launch: Launch = launch

    def folder(self, planned: PlannedRun) -> Path:
        return self.runs / self.scale.name / planned.name

    def command(self, planned: PlannedRun, threads: int = 1) -> list[str]:
        """What makes a run, or continues it if it was begun."""
        folder = self.folder(planned)
        if not (folder / "config.yaml").is_file():
            return [*SELFISH_RNN, "train", *planned.words, f"threads={threads}", "--run", str(folder)]
        self.check(planned)
        return [*SELFISH_RNN, "resume", str(folder)]

    def check(self, planned: PlannedRun) -> None:
        """Refuse to go on with a run that was begun with other settings, under an older recipe for example."""
        folder = self.folder(planned)
        if not (folder / "vocabulary.json").is_file():  # killed right after its start
            return
        found = build_experiment(read_config(folder / "config.yaml"), str(folder / "config.yaml"))
        different = differences(found, planned.trained(vocabulary_of(folder)))
        if different:
            raise UserError(f"{folder} was begun with {'; '.join(different)}; delete it, or give another --runs")

    def work(self, jobs: Sequence[Job], listener: Listener | None = None) -> Progress:
        return run(jobs, self.jobs, listener or self.listener, self.launch)


def wanted(items: Sequence[Item], scale: Scale, seeds: Sequence[int], timed: bool) -> list[PlannedRun]:
    """The runs of the items that end by themselves, or of those that end by the clock."""
    return plan([item for item in items if (item.shows == "time") == timed], scale, seeds)


def make(planned: Sequence[PlannedRun], workshop: Workshop) -> Progress:
    """Make all runs that have no result; each result is kept as soon as its run is finished."""
    results = workshop.results
    for one in planned:
        if results.of(one) is None and (workshop.folder(one) / "config.yaml").is_file():
            workshop.check(one)
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
            command=_later(workshop.command, one),
            done=_done(one, workshop),
        )
        for one in planned
    ]
    progress = workshop.work(jobs, keep_finished)
    keep_finished(progress)
    return progress


def _later(command: Callable[[PlannedRun], list[str]], planned: PlannedRun) -> Callable[[], list[str]]:
    return lambda: command(planned)


def _done(planned: PlannedRun, workshop: Workshop) -> Callable[[], bool]:
    return lambda: workshop.results.of(planned) is not None or is_finished(workshop.folder(planned))
