"""Scheduler of many runs, several at a time, each in its own process.

A job is a command that starts or resumes a run, and a function that tells whether it is finished. The scheduler needs
no other knowledge of runs.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO, Protocol

from selfish_rnn.files import lock

SELFISH_RNN = (sys.executable, "-m", "selfish_rnn")
"""Command line of this installation, for other processes."""

STOPPED_CODES = (130, -signal.SIGINT)
"""Exit codes of a process that was asked to stop."""

KILLED_CODES = (130, 137, 143)
"""Exit codes of externally killed processes, besides negative signal numbers."""

POLL_SECONDS = 0.2
TAIL_LINES = 15


@dataclass(frozen=True)
class Job:
    """A run to execute.

    Attributes:
        name: name in progress reports.
        folder: folder of the run.
        command: function that returns the command; it is called at the start, because an interrupted run needs another.
        done: function that returns whether the run is finished.
        limit: seconds after which the run is asked to stop with a checkpoint.
        retries: number of restarts after its process was killed.
    """

    name: str
    folder: Path
    command: Callable[[], Sequence[str]]
    done: Callable[[], bool]
    limit: float | None = None
    retries: int = 3

    @property
    def log(self) -> Path:
        """Output of the process, beside the run folder; locked while the process runs."""
        return self.folder.with_name(f"{self.folder.name}.log")


@dataclass(frozen=True)
class Outcome:
    """End of a job: ``finished``, ``finished before`` its start, ``out of time``, ``stopped`` or ``failed``."""

    job: Job
    state: str
    seconds: float = 0.0
    code: int | None = None

    def tail(self) -> list[str]:
        """Return the last lines of the job's log."""
        with suppress(OSError):
            return self.job.log.read_text(errors="replace").splitlines()[-TAIL_LINES:]
        return []


@dataclass
class Progress:
    """State of all jobs. ``killed`` includes jobs that were restarted, ``elsewhere`` are jobs of other schedulers."""

    waiting: list[Job]
    running: list[Job] = field(default_factory=list)
    elsewhere: list[Job] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    killed: list[Job] = field(default_factory=list)

    @property
    def failed(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.state == "failed"]


class Process(Protocol):
    """Interface of a process, local or remote."""

    def poll(self) -> int | None: ...

    def send_signal(self, number: int, /) -> None: ...


OnProgress = Callable[[Progress], None]
Launch = Callable[[Job, IO[bytes]], Process]


def launch(job: Job, log: IO[bytes]) -> Process:
    """Start the process of a job on this machine."""
    return start_process(job.command(), log)


def start_process(
    command: Sequence[str], log: IO[bytes], in_child: Callable[[], None] | None = None
) -> subprocess.Popen[bytes]:
    """Start a process in its own session, so that Ctrl-C reaches it once, through the scheduler."""
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        preexec_fn=in_child,
    )


def run(jobs: Sequence[Job], workers: int, report: OnProgress | None = None, launch: Launch = launch) -> Progress:
    """Run all unfinished jobs, ``workers`` at a time.

    Ctrl-C and SIGTERM are passed on once, so that runs stop with a checkpoint, and no further job starts. A job whose
    log is locked by another process, such as one left over from a killed scheduler, occupies a worker until that
    process ends. A job whose process is killed, or lost with its machine, restarts from its checkpoint up to
    ``Job.retries`` times.

    Args:
        jobs: jobs in the order of their start.
        workers: number of simultaneous jobs.
        report: function that receives the progress several times per second.
        launch: function that starts the process of a job.

    Example::

        job = Job("a", Path("runs/a"), lambda: [*SELFISH_RNN, "train", "--run", "runs/a"], finished)
        run([job], workers=2).failed
    """
    return _Scheduler(jobs, workers, report or (lambda progress: None), launch).run()


@dataclass
class _Worker:
    job: Job
    process: Process
    started: float
    stop_sent: bool = False


class _Scheduler:
    def __init__(self, jobs: Sequence[Job], workers: int, report: OnProgress, launch: Launch) -> None:
        self._progress = Progress(waiting=list(jobs))
        self._worker_count, self._report, self._launch = workers, report, launch
        self._workers: list[_Worker] = []

    def run(self) -> Progress:
        progress = self._progress
        with _signals() as received:
            forwarded = 0
            # Each turn collects ended processes, forwards new stop signals, stops overdue jobs and fills free workers.
            # After a stop signal no job starts, and the loop ends with the last process.
            while progress.waiting or self._workers:
                self._collect(stopping=forwarded > 0)
                if len(received) > forwarded:
                    forwarded = len(received)
                    for worker in self._workers:
                        worker.process.send_signal(signal.SIGINT)
                if forwarded:
                    progress.outcomes += [Outcome(job, "stopped") for job in progress.waiting]
                    progress.waiting = []
                self._stop_overdue()
                self._start()
                progress.running = [worker.job for worker in self._workers]
                self._report(progress)
                if self._workers or progress.elsewhere:
                    time.sleep(POLL_SECONDS)
        progress.elsewhere = []
        return progress

    def _collect(self, stopping: bool) -> None:
        for worker in list(self._workers):
            code = worker.process.poll()
            if code is None:
                continue
            self._workers.remove(worker)
            if worker.job.done():
                state = "finished"
            elif stopping:
                state = "stopped"
            elif worker.stop_sent and code in STOPPED_CODES:
                state = "out of time"
            elif self._may_retry(worker.job, code):
                self._progress.killed.append(worker.job)
                self._progress.waiting.insert(0, worker.job)
                continue
            else:
                state = "failed"
            self._progress.outcomes.append(Outcome(worker.job, state, time.monotonic() - worker.started, code))

    def _may_retry(self, job: Job, code: int) -> bool:
        """Return whether a process was killed and may be retried; one that failed by itself would fail again."""
        return (code < 0 or code in KILLED_CODES) and self._progress.killed.count(job) < job.retries

    def _stop_overdue(self) -> None:
        for worker in self._workers:
            limit = worker.job.limit
            if limit is not None and not worker.stop_sent and time.monotonic() - worker.started >= limit:
                worker.stop_sent = True
                worker.process.send_signal(signal.SIGINT)

    def _start(self) -> None:
        """Start waiting jobs while workers are free."""
        waiting, elsewhere = [], []
        for job in self._progress.waiting:
            if job.done():
                self._progress.outcomes.append(Outcome(job, "finished before"))
            elif _is_locked(job.log):
                elsewhere.append(job)
            elif len(self._workers) + len(elsewhere) >= self._worker_count:
                waiting.append(job)
            elif not self._try_start(job):
                elsewhere.append(job)
        self._progress.elsewhere = elsewhere
        self._progress.waiting = elsewhere + waiting

    def _try_start(self, job: Job) -> bool:
        """Start a job unless another scheduler has locked its log."""
        job.log.parent.mkdir(parents=True, exist_ok=True)
        with open(job.log, "ab") as log:
            if not lock(log):
                return False
            # The process inherits the locked file, so the lock lasts as long as the process.
            self._workers.append(_Worker(job, self._launch(job, log), time.monotonic()))
            return True


def _is_locked(path: Path) -> bool:
    try:
        with open(path, "rb") as file:
            return not lock(file)
    except FileNotFoundError:
        return False


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Record stop signals in a list instead of handling them."""
    received: list[int] = []

    def record(number: int, frame: FrameType | None) -> None:
        received.append(number)

    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield received
        return
    before = {number: signal.signal(number, record) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
