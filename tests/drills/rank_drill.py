"""Kills random ranks of runs that torchrun starts again, at random moments.

A run must end as if nothing had been: with the same topologies on all ranks, exactly its budget of weights, and the
losses and topologies of the same run in one process that was left alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from drill import FailedError, Outcome, source

from selfish_rnn.runs.folder import RunFolder
from tiny_runs import OPTIMIZERS, finished_run, tiny_words, write_corpus

RANKS = 2
KILLS_PER_RUN = 5
SPARE_RESTARTS = 5
"""More than kills: a rank whose partner dies while both start may be counted as lost, too."""

LONGEST_WAIT = 12.0
"""Of the kills of a run one comes some seconds after the last, at most so many, the others some epochs after it."""

PATIENCE = 600
POLL = 0.05
ROUNDING = 1e-4

EXPERIMENTS: list[dict[str, Any]] = [
    {"method": "selfish", "engine": "masked", "optimizer": OPTIMIZERS["snt-asgd"]},
    {"method": "rigl", "engine": "packed", "optimizer": OPTIMIZERS["sgd"], "rewire_every": 7},
    {"method": "dsr", "engine": "packed", "optimizer": OPTIMIZERS["snt-asgd"]},
    {"method": "snfs", "engine": "masked", "optimizer": OPTIMIZERS["momentum-sgd"]},
]


def drill(tries: int, seed: int) -> Outcome:
    """Each try is one kill."""
    outcome, started, number = Outcome("ranks", seed), time.monotonic(), 0
    with tempfile.TemporaryDirectory() as folder:
        texts = write_corpus(Path(folder) / "texts")
        while outcome.tried < tries:
            draw = source(seed, number)
            experiment = {**EXPERIMENTS[number % len(EXPERIMENTS)], "epochs": 60, "checkpoint_every": 0.005}
            kills: list[str] = []
            try:
                _one_run(
                    Path(folder) / f"run-{number}",
                    texts,
                    experiment,
                    min(tries - outcome.tried, KILLS_PER_RUN),
                    draw,
                    kills,
                )
            except FailedError as failure:
                outcome.fail(f"run {number} after {', '.join(kills)}: {failure}")
            else:
                for kill in kills:
                    outcome.count(kill)
            number += 1
    outcome.seconds = time.monotonic() - started
    return outcome


def _one_run(
    run: Path, texts: Path, experiment: dict[str, Any], most: int, draw: random.Random, kills: list[str]
) -> None:
    reports = run.with_suffix(".reports")
    reports.mkdir()
    worker = Path(__file__).parent / "rank_worker.py"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    command += [
        "--max-restarts",
        str(most + SPARE_RESTARTS),
        str(worker),
        "train",
        *tiny_words(texts, **experiment),
        "-r",
        str(run),
    ]
    log = run.with_suffix(".log")
    with log.open("wb") as output:
        launcher = subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            env={**os.environ, "DRILL_REPORTS": str(reports), "OMP_NUM_THREADS": "1"},
        )
    try:
        while len(kills) < most:
            in_training = _wait(launcher, RunFolder(run), draw, inside=len(kills) % KILLS_PER_RUN != 2)
            if launcher.poll() is not None:
                break
            workers = _workers(launcher.pid)
            if workers:
                rank, process = draw.choice(workers)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
                    kills.append(f"rank {rank} killed " + ("in training" if in_training else "soon after a kill"))
        if not _passes(PATIENCE, lambda: launcher.poll() is not None):
            raise FailedError("no end: " + log.read_text()[-1500:])
    finally:
        if launcher.poll() is None:
            launcher.terminate()
            launcher.wait(60)
    if launcher.returncode != 0:
        raise FailedError(f"exit code {launcher.returncode}: " + log.read_text()[-1500:])
    _check(run, reports, texts, experiment)


def _wait(launcher: subprocess.Popen[bytes], folder: RunFolder, draw: random.Random, inside: bool) -> bool:
    """Until a random moment: some epochs from now, or some seconds; tells whether epochs have ended since.

    A run that goes on after a kill begins with the records of its checkpoint, so more of them than there are now are
    there only once it is trained again.
    """
    now, wanted = len(folder.metrics.read()), draw.randint(1, 6)

    def over() -> bool:
        return launcher.poll() is not None or (inside and len(folder.metrics.read()) >= now + wanted)

    if _passes(PATIENCE if inside else draw.uniform(0.0, LONGEST_WAIT), over) and inside:
        time.sleep(draw.uniform(0.0, 0.5))
    return len(folder.metrics.read()) > now


def _passes(longest: float, condition: Callable[[], bool]) -> bool:
    """Whether something comes true within so many seconds; those in which the drill is stopped do not count."""
    waited = 0.0
    while not condition():
        if waited >= longest:
            return False
        time.sleep(POLL)
        waited += POLL
    return True


def _workers(launcher: int) -> list[tuple[int, int]]:
    """Rank and process of every rank that is there."""
    found = []
    for child in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
        with contextlib.suppress(OSError, KeyError):
            environment = dict(
                line.split("=", 1) for line in Path(f"/proc/{child}/environ").read_text().split("\0") if "=" in line
            )
            found.append((int(environment["RANK"]), int(child)))
    return found


def _check(run: Path, reports: Path, texts: Path, experiment: dict[str, Any]) -> None:
    ranks = [json.loads((reports / f"{rank}.json").read_text()) for rank in range(RANKS)]
    if any(report != ranks[0] for report in ranks):
        raise FailedError(f"ranks differ: {ranks}")
    if ranks[0]["weights"] != ranks[0]["budget"]:
        raise FailedError(f"{ranks[0]['weights']} weights instead of {ranks[0]['budget']}")
    alone = run.with_suffix(".alone")
    finished_run(texts, alone, **{**experiment, "sub_batches": RANKS})
    mine, other = (RunFolder(path) for path in (run, alone))
    pairs = zip(_losses(mine), _losses(other), strict=True)
    worst = max(abs(one - two) / two for one, two in pairs)
    if worst > ROUNDING:
        raise FailedError(f"losses differ by {worst:g} from those of one process that was left alone")
    if mine.topologies.read_bytes() != other.topologies.read_bytes():
        raise FailedError("topologies differ from those of one process that was left alone")


def _losses(folder: RunFolder) -> list[float]:
    return [loss for record in folder.metrics.read() for loss in (record.train_loss, record.valid_loss)]
