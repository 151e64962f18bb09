"""Runs that are killed, signalled or stopped by a full disk at random moments, and continued until they end.

What they leave is compared bit by bit with what the same run leaves that nobody disturbed.
"""

from __future__ import annotations

import itertools
import os
import random
import resource
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from drill import SCRATCH, Outcome, Patience, quiet, settle, source, wait_for

from selfish_rnn.engine import available
from selfish_rnn.errors import UserError
from selfish_rnn.runs.recording import Interrupted
from selfish_rnn.runs.run import Run
from tiny_runs import OPTIMIZERS, TINY_MODELS, result_of, tiny_experiment, write_corpus

ENDED, CLEAR_ERROR, STOPPED = 0, 2, 130
SIGNALS = (
    (signal.SIGINT,),
    (signal.SIGTERM,),
    (signal.SIGINT, signal.SIGINT),
    (signal.SIGTERM, signal.SIGINT, signal.SIGTERM),
    (signal.SIGINT,) * 5,
    (signal.SIGHUP,),
    (signal.SIGQUIT,),
    (signal.SIGSTOP, signal.SIGCONT),
    (signal.SIGSTOP, signal.SIGKILL),
)


def configurations() -> Iterator[dict[str, Any]]:
    """Every model with both engines, and one after the other the methods and optimizers."""
    methods = itertools.cycle(("selfish", "rigl", "set", "dsr", "snfs", "gmp", "static"))
    optimizers = itertools.cycle(OPTIMIZERS.values())
    for name, options in itertools.cycle(TINY_MODELS.items()):
        for engine in ("masked", "packed") if available() else ("masked",):
            changes: dict[str, Any] = {"model": {"name": name, **options}, "engine": engine, "method": next(methods)}
            optimizer = next(optimizers)
            yield {**changes, "optimizer": optimizer, "rewire_every": random.Random(name).choice((None, 7))}


def kill_drill(tries: int, seed: int) -> Outcome:
    """As many kills at random moments."""
    return _disturbed("kill", tries, seed, lambda chosen: (signal.SIGKILL,))


def signal_drill(tries: int, seed: int) -> Outcome:
    """As many sequences of other signals."""
    return _disturbed("signal", tries, seed, lambda chosen: chosen.choice(SIGNALS))


def disk_drill(tries: int, seed: int) -> Outcome:
    """As many full disks: a tmpfs with little room left, or where none can be mounted a limit of the files' size."""
    outcome, started = Outcome("disk", seed), time.monotonic()
    with _folder() as folder, _small_disk(folder / "disk") as disk:
        _warm(folder)
        outcome.kinds["tmpfs" if disk else "file-size limit"] = 0
        for number, changes in zip(range(tries), configurations(), strict=False):
            if Patience.over():
                break
            chosen = source(seed, number)
            reference, texts = _reference(folder, number, changes)
            path = (disk or folder) / f"run-{number}"
            filler = None if disk is None else disk / "filler"
            if filler is not None:
                free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
                filler.write_bytes(b"x" * max(free - chosen.randrange(4_000, 120_000), 0))
            limit = chosen.randrange(500, 40_000) if disk is None else None
            code = wait_for(_start(path, texts, changes, limit))
            if filler is not None:
                filler.unlink()
            if code not in (ENDED, CLEAR_ERROR):
                outcome.fail(f"try {number}: ended with {code} on a full disk: {changes}")
                continue
            _finish(path, texts, changes)
            _compare(outcome, number, path, reference, "fitted" if code == ENDED else "full", changes)
            shutil.rmtree(path)
    outcome.seconds = time.monotonic() - started
    return outcome


def _disturbed(
    name: str, tries: int, seed: int, sequence: Callable[[random.Random], tuple[signal.Signals, ...]]
) -> Outcome:
    outcome, started = Outcome(name, seed), time.monotonic()
    with _folder() as folder:
        _warm(folder)
        for number, changes in enumerate(configurations()):
            if outcome.tried >= tries or Patience.over():
                break
            chosen = source(seed, number)
            before = time.monotonic()
            reference, texts = _reference(folder, number, changes)
            length = time.monotonic() - before
            path, sent = folder / f"run-{number}", 0
            most = min(tries - outcome.tried, 12)
            while sent < most:
                child = _start(path, texts, changes)
                time.sleep(chosen.uniform(0, length))
                ended, _ = os.waitpid(child, os.WNOHANG)
                if ended:
                    break
                sent += 1
                partial = _is_writing(path, patience=0.3 if chosen.random() < 0.3 else 0.0)
                outcome.kinds["while a file was being written" if partial else "between writes"] += 1
                for number_of_signal in sequence(chosen):
                    with suppress(ProcessLookupError):
                        os.kill(child, number_of_signal)
                    time.sleep(chosen.choice((0, 0.01, 0.05)))
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGCONT)
                wait_for(child)
            else:
                _finish(path, texts, changes)
            outcome.kinds["runs"] += 1
            outcome.tried += sent
            if not path.exists() or result_of(path) != reference:
                outcome.failed += 1
                outcome.failures.append(f"run {number}: {sent} times disturbed, another result: {changes}")
            shutil.rmtree(path, ignore_errors=True)
    outcome.seconds = time.monotonic() - started
    return outcome


def _is_writing(path: Path, patience: float) -> bool:
    """Whether a file of a run is half-written now, or is within so many seconds."""
    end = time.monotonic() + patience
    while True:
        with suppress(OSError):
            if any(name.endswith(".partial") for folder in (path, path / "checkpoints") for name in os.listdir(folder)):
                return True
        if time.monotonic() >= end:
            return False


def _compare(
    outcome: Outcome, number: int, path: Path, reference: dict[str, Any], kind: str, changes: dict[str, Any]
) -> None:
    if result_of(path) == reference:
        outcome.count(kind)
    else:
        outcome.fail(f"try {number}: another result after a {kind} disk: {changes}")


def _reference(folder: Path, number: int, changes: dict[str, Any]) -> tuple[dict[str, Any], Path]:
    path = folder / f"reference-{number}"
    _finish(path, folder / "texts", changes)
    result: dict[str, Any] = result_of(path)
    shutil.rmtree(path)
    return result, folder / "texts"


def _warm(folder: Path) -> None:
    """Run once in this process: what is imported on the way, forked processes then have."""
    _train(folder / "warm", write_corpus(folder / "texts", train_lines=40), {})
    settle()


def _finish(path: Path, texts: Path, changes: dict[str, Any]) -> None:
    code = wait_for(_start(path, texts, changes))
    if code != ENDED:
        raise RuntimeError(f"an undisturbed run ended with {code}: {changes}")


def _start(path: Path, texts: Path, changes: dict[str, Any], file_limit: int | None = None) -> int:
    """Start or continue a run in a forked process: that takes no time, and it dies as any other does."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        quiet()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if file_limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, resource.RLIM_INFINITY))
        code = _train(path, texts, changes)
    finally:
        os._exit(code)


def _train(path: Path, texts: Path, changes: dict[str, Any]) -> int:
    torch.set_num_threads(1)
    try:
        if (path / "config.yaml").exists():
            Run.open(path).train()
        else:  # killed before there was anything to continue
            shutil.rmtree(path, ignore_errors=True)
            experiment = tiny_experiment(texts, epochs=2, checkpoint_every=1e-9, **changes)
            Run.start(experiment, path).train()
    except UserError:
        return CLEAR_ERROR
    except (Interrupted, KeyboardInterrupt):
        return STOPPED
    return ENDED


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="drill-", dir=SCRATCH) as folder:
        yield Path(folder)


@contextmanager
def _small_disk(path: Path) -> Iterator[Path | None]:
    """A tmpfs of 4 MiB; nothing where mounting is not allowed."""
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(path)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        yield None
        return
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=False)
