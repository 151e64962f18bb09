"""Kills or stops schedulers of sweeps, and kills runs under way, at random moments; the same sweep then goes on.

In the end every run is finished, and has left what it leaves in a sweep that nobody disturbed.
"""

from __future__ import annotations

import os
import random
import signal
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml
from drill import SCRATCH, FailedError, Outcome, Patience, quiet, source, wait_for

from forked_runs import fork, warm
from selfish_rnn.engine import available
from selfish_rnn.scheduling.scheduler import run
from selfish_rnn.scheduling.sweep import Sweep
from tiny_runs import result_of, tiny_settings, write_corpus

WORKERS = 2
KILLS_PER_SWEEP = 8
GRID = {"engine": ["masked", "packed"] if available() else ["masked"], "seed": [1, 2]}
METHODS = ("selfish", "rigl", "dsr", "snfs", "gmp")


def drill(tries: int, seed: int) -> Outcome:
    """Each try is one kill."""
    outcome, started, number = Outcome("sweep", seed), time.monotonic(), 0
    with tempfile.TemporaryDirectory(prefix="drill-", dir=SCRATCH) as name, warm(Path(name) / "warm"):
        folder = Path(name)
        texts = write_corpus(folder / "texts", train_lines=40)
        while outcome.tried < tries and not Patience.over():
            settings = tiny_settings(texts, epochs=2, checkpoint_every=1e-9, method=METHODS[number % len(METHODS)])
            kills: list[str] = []
            most = min(tries - outcome.tried, KILLS_PER_SWEEP)
            try:
                _one_sweep(folder / str(number), settings, most, source(seed, number), kills)
            except FailedError as failure:
                outcome.fail(f"sweep {number} after {', '.join(kills)}: {failure}")
            for kill in kills:
                outcome.count(kill)
            outcome.kinds["sweeps"] += 1
            number += 1
    outcome.seconds = time.monotonic() - started
    return outcome


def _one_sweep(folder: Path, settings: dict[str, Any], most: int, draw: random.Random, kills: list[str]) -> None:
    folder.mkdir()
    grid = folder / "sweep.yaml"
    grid.write_text(yaml.safe_dump({"settings": settings, "grid": GRID}))
    alone, disturbed = (Sweep.read(grid, folder / name) for name in ("alone", "disturbed"))
    before = time.monotonic()
    _finish(alone)
    length = time.monotonic() - before
    while len(kills) < most and len(disturbed.results()) < len(disturbed.runs):
        scheduler = _start(disturbed)
        while len(kills) < most:
            time.sleep(draw.uniform(0, length / 2))
            if os.waitpid(scheduler, os.WNOHANG)[0]:
                break
            workers = _children(scheduler)
            what = draw.choice(
                ("a run killed", "a run killed", "the scheduler killed", "the scheduler stopped by Ctrl-C")
            )
            if what == "a run killed" and not workers:
                continue
            with suppress(ProcessLookupError):
                target = draw.choice(workers) if what == "a run killed" else scheduler
                os.kill(target, signal.SIGINT if what.endswith("Ctrl-C") else signal.SIGKILL)
                kills.append(what)
            if target == scheduler:
                wait_for(scheduler)
                break
        else:
            wait_for(scheduler)
    _finish(disturbed)
    for one in alone.runs:
        if result_of(alone.path(one)) != result_of(disturbed.path(one)):
            raise FailedError(f"{one.name} came to another result")


def _start(sweep: Sweep) -> int:
    """The scheduler, in a process of its own."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        quiet()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        run(sweep.jobs(), WORKERS, launch=fork)
        code = 0
    finally:
        os._exit(code)


def _finish(sweep: Sweep) -> None:
    """The same sweep again, left alone until it ends; what was left over of a killed one may be killed no more."""
    code = wait_for(_start(sweep))
    left = len(sweep.runs) - len(sweep.results())
    if code or left:
        raise FailedError(f"the scheduler ended with {code}, {left} runs are not finished")


def _children(process: int) -> list[int]:
    with suppress(OSError):
        return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    return []
