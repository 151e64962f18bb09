"""Execution of planned runs: jobs for the scheduler, and results as runs finish."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from selfish_rnn.files import write_atomically
from selfish_rnn.reproduce.plan import PlannedRun
from selfish_rnn.reproduce.results import Results, collect, provenance
from selfish_rnn.reproduce.scales import Scale
from selfish_rnn.runs.folder import RunFolder
from selfish_rnn.scheduling.jobs import check_begun, is_finished, run_command
from selfish_rnn.scheduling.scheduler import SELFISH_RNN, Job, Launch, OnProgress, Progress, launch, run


@dataclass(frozen=True)
class Executor:
    """Trainer of planned runs, a few at a time.

    Attributes:
        scale: Scale of the runs.
        runs: Parent of the run folders.
        results: Destination of the results.
        jobs: Number of processes at a time.
        listener: Function that is called with the progress.
        launch: Function that starts a process.
    """

    scale: Scale
    runs: Path
    results: Results
    jobs: int = 1
    listener: OnProgress = field(default=lambda progress: None)
    launch: Launch = launch

    def folder(self, planned: PlannedRun) -> Path:
        """Return the folder of a run."""
        return self.runs / self.scale.name / planned.name

    def train(self, planned: Sequence[PlannedRun]) -> Progress:
        """Train every run that has no result yet. Each result is saved as soon as its run is finished."""
        results = self.results
        for entry in planned:
            if results.get(entry) is None:
                check_begun(self.folder(entry), entry.stored_experiment)
        by_name = {entry.name: entry for entry in planned}
        saved: set[str] = set()

        def save_finished(progress: Progress) -> None:
            for outcome in progress.outcomes:
                name = outcome.job.name
                if name not in saved and outcome.state.startswith("finished") and results.get(by_name[name]) is None:
                    results.save(collect(outcome.job.folder, by_name[name], provenance(), []), by_name[name])
                saved.add(name)
            self.listener(progress)

        jobs = [
            Job(
                name=entry.name,
                folder=self.folder(entry),
                command=partial(self._command, entry),
                done=partial(self._is_done, entry),
            )
            for entry in planned
        ]
        progress = run(jobs, self.jobs, save_finished, self.launch)
        save_finished(progress)
        return progress

    def train_timed(self, planned: Sequence[PlannedRun], budget: float) -> Progress:
        """Train every run for `budget` seconds of wall-clock time, and measure its best model at equal intervals.

        At the end of an interval a run is stopped with a checkpoint, evaluated, and resumed. All runs have the same
        number of threads: the number of cores divided by the number of processes.
        """
        total = Progress(waiting=[])
        threads = max((os.cpu_count() or 1) // self.jobs, 1)
        remaining = [entry for entry in planned if self.results.get(entry) is None]
        marks = self.scale.marks
        for mark in range(1, marks + 1):
            # Train every run up to the next mark.
            target = budget * mark / marks
            clocks = {entry.name: _Clock(self.folder(entry)) for entry in remaining}
            jobs = [
                Job(
                    name=entry.name,
                    folder=self.folder(entry),
                    command=partial(self._command, entry, threads),
                    done=partial(is_finished, self.folder(entry)),
                    limit=target - clocks[entry.name].seconds,
                )
                for entry in remaining
                if clocks[entry.name].seconds < target
            ]
            training = run(jobs, self.jobs, self.listener, self.launch)
            failures = [outcome for outcome in total.outcomes if outcome.state == "failed"]
            total.outcomes = failures + training.outcomes
            for outcome in training.outcomes:
                if outcome.seconds:  # zero for a process that never started
                    clocks[outcome.job.name].add(outcome.seconds)
            if any(outcome.state == "stopped" for outcome in training.outcomes):
                return total
            # Evaluate the best models so far, and write the measurements down.
            failed = {outcome.job.name for outcome in training.failed}
            remaining = [entry for entry in remaining if entry.name not in failed]
            jobs = [job for entry in remaining if (job := self._evaluation(entry, target)) is not None]
            evaluation = run(jobs, self.jobs, self.listener, self.launch)
            for outcome in evaluation.outcomes:
                clocks[outcome.job.name].note(target, outcome.job.log)
            total.outcomes += evaluation.failed
        for entry in remaining:
            folder = self.folder(entry)
            if RunFolder(folder).metrics.read():  # empty if the time was too short for one epoch
                self.results.save(collect(folder, entry, provenance(), _Clock(folder).points), entry)
        return total

    def _command(self, planned: PlannedRun, threads: int = 1) -> list[str]:
        """Return the command that trains or resumes a run."""
        arguments = [*planned.arguments, f"threads={threads}"]
        return run_command(self.folder(planned), arguments, planned.stored_experiment)

    def _is_done(self, planned: PlannedRun) -> bool:
        return self.results.get(planned) is not None or is_finished(self.folder(planned))

    def _evaluation(self, planned: PlannedRun, target: float) -> Job | None:
        """Return a job that measures the best model so far; None before the first epoch is finished."""
        folder = self.folder(planned)
        if not RunFolder(folder).metrics.read():
            return None
        job = Job(
            name=planned.name,
            folder=folder.with_name(f"{folder.name}.after-{target:g}s"),
            command=lambda: [*SELFISH_RNN, "evaluate", str(folder)],
            done=lambda: bool(_perplexities(job.log)),
        )
        return job


def _perplexities(log: Path) -> dict[str, float]:
    """Return the perplexities in the output of ``selfish-rnn evaluate``."""
    if not log.exists():
        return {}
    matches = re.findall(r"^(valid|test) perplexity ([\d.,]+)$", log.read_text(), re.MULTILINE)
    return {f"{split}_perplexity": float(number.replace(",", "")) for split, number in matches}


class _Clock:
    """Training time and measurements of a run, in a file next to its folder."""

    def __init__(self, folder: Path) -> None:
        self._path = folder.with_name(f"{folder.name}.clock.json")
        state: dict[str, Any] = json.loads(self._path.read_text()) if self._path.exists() else {}
        self.points: list[dict[str, float]] = state.get("points", [])
        records = RunFolder(folder).metrics.read()
        # A killed scheduler could not store the time of its runs; the runs themselves did.
        self.seconds: float = max(state.get("seconds", 0.0), records[-1].seconds if records else 0.0)

    def add(self, seconds: float) -> None:
        self.seconds += seconds
        self._write()

    def note(self, seconds: float, log: Path) -> None:
        """Store the perplexities in a log as those after `seconds` of training."""
        perplexities = _perplexities(log)
        if perplexities and all(point["seconds"] != seconds for point in self.points):
            self.points.append({"seconds": seconds, **perplexities})
            self._write()

    def _write(self) -> None:
        content = json.dumps({"seconds": self.seconds, "points": self.points})
        write_atomically(self._path, content.encode())
