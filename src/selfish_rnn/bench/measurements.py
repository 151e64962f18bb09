"""Measurements of time and memory."""

from __future__ import annotations

import contextlib
import gc
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from selfish_rnn.bench.engines import ENGINES
from selfish_rnn.bench.options import read
from selfish_rnn.bench.workloads import Workload
from selfish_rnn.system import peak_memory, trim_memory

STEPS = 3
"""Enough that optimizers have their state, and that memory is reused as it will be ever after."""


def measure(workload: Workload, engine: str) -> dict[str, float]:
    """Peaks in MiB of a fresh process that trains a few steps.

    ``training``: during the steps; ``process``: in its whole life, building the network included; ``imports``: before
    it built anything. Nothing is subtracted from anything.
    """
    task = {"engine": engine, "hidden": workload.hidden, "sparsity": workload.sparsity}
    task |= {"threads": torch.get_num_threads(), "options": workload.options.to_json()}
    command = [sys.executable, "-m", "selfish_rnn.bench.measurements", json.dumps(task)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise RuntimeError(f"the process that measures the memory of {engine} failed ({done.returncode}): {last}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main(task: dict[str, Any]) -> None:
    """In the fresh process: build, train, and print the peaks as JSON."""
    torch.set_num_threads(task["threads"])
    workload = Workload(read(task["options"]), task["hidden"], task["sparsity"])
    torch.optim.SGD([torch.zeros(1, requires_grad=True)])  # the first one imports much
    imports = _peak()
    engine = task["engine"]
    # A dense network needs no topology, and to make one would take memory.
    step = workload.training_step(engine, workload.dense_model() if engine == "dense" else None)
    building = _peak()
    gc.collect()
    trim_memory()
    with contextlib.suppress(OSError):  # only Linux sets the mark to what is resident now
        Path("/proc/self/clear_refs").write_text("5")
    for _ in range(STEPS):
        step()
    training = _peak()
    print(json.dumps({"training": training, "process": max(building, training), "imports": imports}))


def _peak() -> float:
    found = peak_memory()
    if found is None:
        raise RuntimeError("this system does not tell how much memory a process took")
    return found


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))


WARM_UPS = 2

SHORTEST = 0.05
"""Seconds below which one timing consists of several calls."""

Row = dict[str, Any]
"""What was measured of all engines at one sparsity: an entry of ``rows`` in ``bench.json``.

Its ``engines`` has for each the ``seconds`` of its rounds, or the result of
:func:`~selfish_rnn.bench.measurements.measure`; :func:`completed` adds what follows from the other rows.
"""


def interleaved(
    calls: Mapping[str, Callable[[], Any]],
    rounds: int,
    limit: float | None = None,
    told: Callable[[int], None] = lambda done: None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of each call in every round.

    In every round each call has its turn, in an order that rotates from round to round. After ``limit`` seconds no new
    round starts, but there is always one. ``told`` hears the number of rounds done.
    """
    repeats = {name: _warm_up(call, clock) for name, call in calls.items()}
    order = list(calls)
    seconds = {name: list[float]() for name in order}
    start = time.perf_counter()
    for done in range(rounds):
        told(done)
        first = done % len(order)
        for name in order[first:] + order[:first]:
            if repeats[name] > 1:
                calls[name]()  # with caches cold, and threads of the one before still looking for work
            seconds[name].append(_seconds(calls[name], repeats[name], clock))
        if limit is not None and time.perf_counter() - start > limit:
            break
    return seconds


def _warm_up(call: Callable[[], Any], clock: Callable[[], float]) -> int:
    """How many calls make a timing long enough."""
    *_, last = (_seconds(call, 1, clock) for _ in range(WARM_UPS))
    return max(1, math.ceil(SHORTEST / max(last, 1e-9)))


def _seconds(call: Callable[[], Any], repeats: int, clock: Callable[[], float]) -> float:
    start = clock()
    for _ in range(repeats):
        call()
    return (clock() - start) / repeats


def compared(seconds: Mapping[str, list[float]], baseline: str) -> dict[str, dict[str, Any]]:
    """For each name the times, and how many times as fast as the baseline it was in the same round.

    ``ratio`` is the median over the rounds, ``lowest`` and ``highest`` their spread.
    """
    found = {}
    for name, own in seconds.items():
        ratios = [base / time for base, time in zip(seconds[baseline], own, strict=True)]
        found[name] = {
            "median_ms": 1000 * statistics.median(own),
            "ratio": statistics.median(ratios),
            "lowest": min(ratios),
            "highest": max(ratios),
            "ratios": ratios,
            "seconds": own,
        }
    return found


def grouped(rows: Iterable[Row]) -> list[list[Row]]:
    """The rows of one kind, network and size together: a table, a panel of the figure.

    Rows of different widths belong together only if they have the same number of weights.
    """
    found = dict[tuple[Any, ...], list[Row]]()
    for row in rows:
        weights = row["sparsity"] if row["kind"] == "width" else None
        found.setdefault((row["kind"], row["network"], row["hidden"], weights), []).append(row)
    return list(found.values())


def completed(rows: Iterable[Row]) -> list[Row]:
    """The rows, group by group, with the ``ideal`` of each, the ``baseline`` of its group, and the ratios to that.

    The ideal is the speed-up if time were proportional to the number of weights. Widths are compared with the first.
    """
    found = list[Row]()
    for group in grouped(rows):
        baseline = _baseline(group)
        for row in group:
            engines = row["engines"]
            if row["kind"] == "width":
                seconds = {"first": group[0]["engines"]["packed"]["seconds"], "packed": engines["packed"]["seconds"]}
                engines = {"packed": {**engines["packed"], **compared(seconds, "first")["packed"]}}
            elif baseline is not None:
                engines = compared({engine: own["seconds"] for engine, own in engines.items()}, baseline)
            found.append({**row, "engines": engines, "ideal": 1 / (1 - row["sparsity"]), "baseline": baseline})
    return found


def _baseline(group: Sequence[Row]) -> str | None:
    """The engine that ratios are over: of those that are one for this kind, the one that took the least time."""
    kind, seconds = group[0]["kind"], dict[str, float]()
    for name, one in ENGINES.items():
        if kind in one.baseline_of and all(name in row["engines"] for row in group):
            seconds[name] = sum(statistics.median(row["engines"][name]["seconds"]) for row in group)
    return min(seconds, key=seconds.__getitem__, default=None)
