"""Many runs, a few at a time, each in a process of its own.

A job is a command that makes or continues a run, and a question whether the run is finished. The scheduler knows no
more of runs than that, so that whoever has many of them can use it.
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
"""The command line of this very installation, in another process."""

STOPPED_CODES = (130, -signal.SIGINT)
"""What a process that was asked to stop ends with: by itself, or before it could listen."""

KILLED_CODES = (130, 137, 143)
"""What a process ends with that somebody else ended, where it is not the negative number of a signal."""

POLL_SECONDS = 0.2
TAIL_LINES = 15


@dataclass(frozen=True)
class Job:
    """A run to be made.

    ``command`` is asked when the job's turn comes, because it is another one for a run that was interrupted. ``limit``
    is for how many seconds it may work before it is asked to stop with a checkpoint, ``retries`` how often it is
    started again after its process was killed.
    """

    name: str
    folder: Path
    command: Callable[[], Sequence[str]]
    done: Callable[[], bool]
    limit: float | None = None
    retries: int = 3

    @property
    def log(self) -> Path:
        """What the process prints, beside the folder, which the run itself creates. While it works it is locked."""
        return self.folder.with_name(f"{self.folder.name}.log")


@dataclass(frozen=True)
class Outcome:
    """How a job ended: ``finished``, ``finished before`` it was started, ``out of time``, ``stopped`` or ``failed``."""

    job: Job
    state: str
    seconds: float = 0.0
    code: int | None = None

    def tail(self) -> list[str]:
        """The last lines of the job's log."""
        with suppress(OSError):
            return self.job.log.read_text(errors="replace").splitlines()[-TAIL_LINES:]
        return []


@dataclass
class Progress:
    """Where all jobs stand: what a listener is told at every turn. ``killed`` has those that are started again too."""

    waiting: list[Job]
    running: list[Job] = field(default_factory=list)
    elsewhere: list[Job] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    killed: list[Job] = field(default_factory=list)

    @property
    def failed(self) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.state == "failed"]


class Process(Protocol):
    """What the scheduler needs of a process, here or elsewhere."""

    def poll(self) -> int | None: ...

    def send_signal(self, number: int, /) -> None: ...


Listener = Callable[[Progress], None]
Launch = Callable[[Job, IO[bytes]], Process]


def launch(job: Job, log: IO[bytes]) -> Process:
    """A process of this machine."""
    return start_process(job.command(), log)


def start_process(
    command: Sequence[str], log: IO[bytes], in_child: Callable[[], None] | None = None
) -> subprocess.Popen[bytes]:
    """A process in a session of its own: Ctrl-C reaches it once, from the scheduler, and not from the terminal too."""
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        preexec_fn=in_child,
    )


def run(jobs: Sequence[Job], workers: int, listener: Listener | None = None, launch: Launch = launch) -> Progress:
    """Do all jobs that are not done, ``workers`` at a time, and tell how each ended.

    Ctrl-C and SIGTERM are passed on once, so that runs stop with a checkpoint, and nothing new is started. A job that
    another process works on, one left over from a scheduler that was killed for example, is waited for, and takes the
    place of a worker meanwhile. A job whose process is killed, or lost with its machine, is started again and goes on
    from its checkpoint, as often as it allows.

    Example::

        job = Job("a", Path("runs/a"), lambda: [*SELFISH_RNN, "train", "--run", "runs/a"], finished)
        run([job], workers=2).failed
    """
    return _Scheduler(jobs, workers, listener or (lambda progress: None), launch).run()


@dataclass
class _Worker:
    job: Job
    process: Process
    started: float
    told: bool = False


class _Scheduler:
    def __init__(self, jobs: Sequence[Job], workers: int, listener: Listener, launch: Launch) -> None:
        self._progress = Progress(waiting=list(jobs))
        self._most, self._listener, self._launch = workers, listener, launch
        self._workers: list[_Worker] = []

    def run(self) -> Progress:
        progress = self._progress
        with _signals() as received:
            passed_on = 0
            while progress.waiting or self._workers:
                self._collect(stopping=passed_on > 0)
                if len(received) > passed_on:
                    passed_on = len(received)
                    for worker in self._workers:
                        worker.process.send_signal(signal.SIGINT)
                if passed_on:
                    progress.outcomes += [Outcome(job, "stopped") for job in progress.waiting]
                    progress.waiting = []
                self._stop_those_out_of_time()
                self._start()
                progress.running = [worker.job for worker in self._workers]
                self._listener(progress)
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
            elif worker.told and code in STOPPED_CODES:
                state = "out of time"
            elif self._may_try_again(worker.job, code):
                self._progress.killed.append(worker.job)
                self._progress.waiting.insert(0, worker.job)
                continue
            else:
                state = "failed"
            self._progress.outcomes.append(Outcome(worker.job, state, time.monotonic() - worker.started, code))

    def _may_try_again(self, job: Job, code: int) -> bool:
        """Whether a process did not end by itself; one that did would end the same way again."""
        return (code < 0 or code in KILLED_CODES) and self._progress.killed.count(job) < job.retries

    def _stop_those_out_of_time(self) -> None:
        for worker in self._workers:
            limit = worker.job.limit
            if limit is not None and not worker.told and time.monotonic() - worker.started >= limit:
                worker.told = True
                worker.process.send_signal(signal.SIGINT)

    def _start(self) -> None:
        """Fill the free places; one pass over the waiting jobs."""
        waiting, elsewhere = [], []
        for job in self._progress.waiting:
            if job.done():
                self._progress.outcomes.append(Outcome(job, "finished before"))
            elif _is_locked(job.log):
                elsewhere.append(job)
            elif len(self._workers) + len(elsewhere) >= self._most:
                waiting.append(job)
            elif not self._started(job):
                elsewhere.append(job)
        self._progress.elsewhere = elsewhere
        self._progress.waiting = elsewhere + waiting

    def _started(self, job: Job) -> bool:
        """Start a job, unless another scheduler was faster."""
        job.log.parent.mkdir(parents=True, exist_ok=True)
        with open(job.log, "ab") as log:
            if not lock(log):
                return False
            # The process inherits the locked file, so the lock lasts as long as the process, whatever happens here.
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
    """The requests to stop that have come so far, instead of what they would do."""
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        received.append(number)

    if threading.current_thread() is not threading.main_thread():  # others may not set handlers
        yield received
        return
    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
