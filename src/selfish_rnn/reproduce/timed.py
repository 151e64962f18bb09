"""Runs that end by the clock: test perplexity against seconds."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from selfish_rnn.files import write_atomically
from selfish_rnn.reproduce.making import Workshop
from selfish_rnn.reproduce.plan import PlannedRun
from selfish_rnn.reproduce.results import collect, made_here
from selfish_rnn.runs.folder import RunFolder
from selfish_rnn.scheduling.jobs import is_finished
from selfish_rnn.scheduling.scheduler import SELFISH_RNN, Job, Progress


def make_timed(planned: Sequence[PlannedRun], workshop: Workshop, budget: float) -> Progress:
    """Train every run for ``budget`` seconds of the wall clock, and measure its best model at equal parts of them.

    A run is stopped with a checkpoint when its time is up, evaluated, and continued. All have the same number of
    threads: the cores there are, divided by the processes that work at a time.
    """
    together = Progress(waiting=[])
    threads = max((os.cpu_count() or 1) // workshop.jobs, 1)
    left = [one for one in planned if workshop.results.of(one) is None]
    marks = workshop.scale.marks
    for mark in range(1, marks + 1):
        target = budget * mark / marks
        clocks = {one.name: _Clock(workshop.folder(one)) for one in left}
        jobs = [
            Job(
                name=one.name,
                folder=workshop.folder(one),
                command=partial(workshop.command, one, threads),
                done=partial(is_finished, workshop.folder(one)),
                limit=target - clocks[one.name].seconds,
            )
            for one in left
            if clocks[one.name].seconds < target
        ]
        trained = workshop.work(jobs)
        together.outcomes = [outcome for outcome in together.outcomes if outcome.state == "failed"] + trained.outcomes
        for outcome in trained.outcomes:
            if outcome.seconds:  # else it never started
                clocks[outcome.job.name].add(outcome.seconds)
        if any(outcome.state == "stopped" for outcome in trained.outcomes):
            return together
        failed = {outcome.job.name for outcome in trained.failed}
        left = [one for one in left if one.name not in failed]
        measured = workshop.work([job for one in left if (job := _evaluation(one, workshop, target)) is not None])
        for outcome in measured.outcomes:
            clocks[outcome.job.name].note(target, outcome.job.log)
        together.outcomes += measured.failed
    for one in left:
        folder = workshop.folder(one)
        if RunFolder(folder).metrics.read():  # else the time was too short for even one epoch
            workshop.results.keep(collect(folder, one, made_here(), _Clock(folder).points), one)
    return together


def _evaluation(planned: PlannedRun, workshop: Workshop, target: float) -> Job | None:
    """A job that measures the best model so far; none before the first epoch is finished."""
    folder = workshop.folder(planned)
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
    """What ``selfish-rnn evaluate`` printed."""
    if not log.exists():
        return {}
    found = re.findall(r"^(valid|test) perplexity ([\d.,]+)$", log.read_text(), re.MULTILINE)
    return {f"{split}_perplexity": float(number.replace(",", "")) for split, number in found}


class _Clock:
    """How long a run has worked, and what was measured of it, in a file beside its folder."""

    def __init__(self, folder: Path) -> None:
        self._path = folder.with_name(f"{folder.name}.clock.json")
        state: dict[str, Any] = json.loads(self._path.read_text()) if self._path.exists() else {}
        self.points: list[dict[str, float]] = state.get("points", [])
        records = RunFolder(folder).metrics.read()
        # A scheduler that was killed could not write down how long its runs had worked; they themselves did.
        self.seconds: float = max(state.get("seconds", 0.0), records[-1].seconds if records else 0.0)

    def add(self, seconds: float) -> None:
        self.seconds += seconds
        self._write()

    def note(self, seconds: float, log: Path) -> None:
        perplexities = _perplexities(log)
        if perplexities and all(point["seconds"] != seconds for point in self.points):
            self.points.append({"seconds": seconds, **perplexities})
            self._write()

    def _write(self) -> None:
        content = json.dumps({"seconds": self.seconds, "points": self.points})
        write_atomically(self._path, content.encode())
