"""What all drills share: a number of tries from a seed, each in a process that may die, and a count of what failed."""

from __future__ import annotations

import collections
import gc
import json
import os
import platform
import random
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from selfish_rnn import system

LONGEST_MESSAGE = 2000
"""Characters of an error that is printed for a person to read."""

SCRATCH = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""Where runs are made: thousands of syncs are not for a disk."""

MOST_FAILURES = 50
"""Failures that are described; all are counted."""


class Patience:
    """Until when a drill goes on: one that is not done by then counts what it has tried."""

    end = float("inf")

    @classmethod
    def over(cls) -> bool:
        return time.monotonic() > cls.end


@dataclass
class Outcome:
    """How often something was tried, what it came to, and what should not have happened."""

    name: str
    seed: int
    tried: int = 0
    failed: int = 0
    seconds: float = 0.0
    kinds: collections.Counter[str] = field(default_factory=collections.Counter)
    failures: list[str] = field(default_factory=list)

    def count(self, kind: str) -> None:
        self.tried += 1
        self.kinds[kind] += 1

    def fail(self, what: str) -> None:
        self.tried += 1
        self.failed += 1
        if len(self.failures) < MOST_FAILURES:
            self.failures.append(what)

    def write(self, path: Path, command: str) -> None:
        """What the documentation quotes."""
        record = {
            "drill": self.name,
            "command": command,
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "machine": system.processor(),
            "software": f"Python {platform.python_version()}, torch {torch.__version__}",
            "seed": self.seed,
            "tried": self.tried,
            "failed": self.failed,
            "seconds": round(self.seconds, 1),
            "kinds": dict(sorted(self.kinds.items())),
            "failures": self.failures,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record, indent=1) + "\n")


class FailedError(AssertionError):
    """A try came to what a drill does not allow."""


def source(seed: int, number: int) -> random.Random:
    """The random numbers of one try: a failed one can be repeated alone."""
    return random.Random(f"{seed}:{number}")


def in_children(
    name: str, tries: int, seed: int, attempt: Callable[[int], str], *, batch: int = 200, patience: int = 60
) -> Outcome:
    """Try ``attempt(number)`` in forked processes; it returns what it came to in a word, or raises.

    A process that dies, or works on one try for longer than ``patience`` seconds of the processor's time, or waits ten
    times as long, is a failure, and the next goes on.
    """
    outcome = Outcome(name, seed)
    settle()
    started, next_try = time.monotonic(), 0
    while next_try < tries and not Patience.over():
        stop = min(next_try + batch, tries)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            _work(attempt, range(next_try, stop), writer, patience)
        os.close(writer)
        for line in _lines(reader, child, 10 * patience):
            report: dict[str, Any] = json.loads(line)
            next_try += 1
            if "failed" in report:
                outcome.fail(report["failed"])
            else:
                outcome.count(report["kind"])
        status = os.waitpid(child, 0)[1]
        if next_try < stop:
            outcome.fail(f"try {next_try}: {_death(status)}")
            next_try += 1
    outcome.seconds = time.monotonic() - started
    return outcome


def _lines(reader: int, child: int, longest: int) -> Iterator[bytes]:
    """What a child writes, line by line; it is ended if it writes nothing for so many seconds.

    They are counted one by one, here and in :func:`wait_for`, so that a drill may be stopped and continued as a whole.
    """
    unread, waited = b"", 0
    with os.fdopen(reader, "rb", buffering=0) as pipe:
        while True:
            if not select.select([pipe], [], [], 1.0)[0]:
                waited += 1
                if waited > longest:
                    os.kill(child, signal.SIGALRM)
                continue
            waited = 0
            found = pipe.read(1 << 16)
            if not found:
                return
            *lines, unread = (unread + found).split(b"\n")
            yield from lines


def _work(attempt: Callable[[int], str], numbers: range, writer: int, patience: int) -> None:
    """In the child: one line for each try."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    for number in numbers:
        signal.setitimer(signal.ITIMER_PROF, patience)
        try:
            report = {"kind": attempt(number)}
        except FailedError as failure:
            report = {"failed": f"try {number}: {failure}"[:LONGEST_MESSAGE]}
        except BaseException:
            report = {"failed": f"try {number}: {traceback.format_exc()[-LONGEST_MESSAGE:]}"}
        os.write(writer, json.dumps(report).encode() + b"\n")
    os._exit(0)


def settle() -> None:
    """Before processes are forked: runs collect garbage, and need not look at all that is imported each time."""
    gc.collect()
    gc.freeze()


def wait_for(child: int, longest: float = 900.0) -> int:
    """The code a process ends with; one that does not end is killed. On a busy machine a small run takes a minute."""
    waited, pause = 0.0, 0.005
    while waited < longest:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(pause)
        waited += pause
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -signal.SIGALRM


def _death(status: int) -> str:
    if not os.WIFSIGNALED(status):
        return f"the process ended with {os.WEXITSTATUS(status)}"
    number = os.WTERMSIG(status)
    return (
        "no end" if number in (signal.SIGALRM, signal.SIGPROF) else f"the process died of {signal.Signals(number).name}"
    )


def quiet() -> None:
    """No output of a try where a drill reports."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
