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
    peaks: dict[str, float] = json.loads(done.stdout)
    return peaks


def main(task: dict[str, Any]) -> None:
    """Build and train a network in the fresh process, and print the peaks of memory as JSON."""
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
    peak = peak_memory()
    if peak is None:
        raise RuntimeError("this system does not report the peak memory of a process")
    return peak


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))


WARM_UPS = 2

SHORTEST = 0.05
"""Shortest timing in seconds. Faster calls are repeated."""

Row = dict[str, Any]
"""Measurements of all engines at one sparsity: an entry of ``rows`` in ``bench.json``.

Its ``engines`` has for each the ``seconds`` of its rounds, or the result of
:func:`~selfish_rnn.bench.measurements.measure`; :func:`completed` adds what follows from the other rows.
"""


def interleaved(
    calls: Mapping[str, Callable[[], Any]],
    rounds: int,
    limit: float | None = None,
    progress: Callable[[int], None] = lambda done: None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Return the seconds of each call in every round.

    In every round each call has its turn, in an order that rotates from round to round. After ``limit`` seconds no new
    round starts, but there is at least one. ``progress`` is called with the number of finished rounds.
    """
    repeats = {name: _warm_up(call, clock) for name, call in calls.items()}
    order = list(calls)
    seconds = {name: list[float]() for name in order}
    start = time.perf_counter()
    for done in range(rounds):
        progress(done)
        first = done % len(order)
        for name in order[first:] + order[:first]:
            if repeats[name] > 1:
                calls[name]()  # caches are cold, and threads of the previous call still look for work
            seconds[name].append(_seconds(calls[name], repeats[name], clock))
        if limit is not None and time.perf_counter() - start > limit:
            break
    return seconds


def _warm_up(call: Callable[[], Any], clock: Callable[[], float]) -> int:
    """Return the number of calls that make a timing long enough."""
    *_, last = (_seconds(call, 1, clock) for _ in range(WARM_UPS))
    return max(1, math.ceil(SHORTEST / max(last, 1e-9)))


def _seconds(call: Callable[[], Any], repeats: int, clock: Callable[[], float]) -> float:
    start = clock()
    for _ in range(repeats):
        call()
    return (clock() - start) / repeats


def compared(seconds: Mapping[str, list[float]], baseline: str) -> dict[str, dict[str, Any]]:
    """Return the times of each name, and its speed relative to the baseline in the same round.

    ``ratio`` is the median over the rounds, ``lowest`` and ``highest`` their spread.
    """
    comparison = {}
    for name, times in seconds.items():
        ratios = [base / time for base, time in zip(seconds[baseline], times, strict=True)]
        comparison[name] = {
            "median_ms": 1000 * statistics.median(times),
            "ratio": statistics.median(ratios),
            "lowest": min(ratios),
            "highest": max(ratios),
            "ratios": ratios,
            "seconds": times,
        }
    return comparison


def grouped(rows: Iterable[Row]) -> list[list[Row]]:
    """Group rows by kind, network and size: one group per table or panel of the figure.

    Rows of different widths belong together only if they have the same number of weights.
    """
    groups = dict[tuple[Any, ...], list[Row]]()
    for row in rows:
        weights = row["sparsity"] if row["kind"] == "width" else None
        groups.setdefault((row["kind"], row["network"], row["hidden"], weights), []).append(row)
    return list(groups.values())


def completed(rows: Iterable[Row]) -> list[Row]:
    """Return the rows, group by group, with their ``ideal``, the ``baseline`` of the group, and ratios to it.

    The ideal is the speed-up if time were proportional to the number of weights. Widths are compared with the first.
    """
    result = list[Row]()
    for group in grouped(rows):
        baseline = _baseline(group)
        for row in group:
            engines = row["engines"]
            if row["kind"] == "width":
                seconds = {"first": group[0]["engines"]["packed"]["seconds"], "packed": engines["packed"]["seconds"]}
                engines = {"packed": {**engines["packed"], **compared(seconds, "first")["packed"]}}
            elif baseline is not None:
                engines = compared({engine: measured["seconds"] for engine, measured in engines.items()}, baseline)
            result.append({**row, "engines": engines, "ideal": 1 / (1 - row["sparsity"]), "baseline": baseline})
    return result


def _baseline(group: Sequence[Row]) -> str | None:
    """Return the baseline engine: the fastest of the candidates for this kind, or None."""
    kind, seconds = group[0]["kind"], dict[str, float]()
    for name, candidate in ENGINES.items():
        if kind in candidate.baseline_of and all(name in row["engines"] for row in group):
            seconds[name] = sum(statistics.median(row["engines"][name]["seconds"]) for row in group)
    return min(seconds, key=seconds.__getitem__, default=None)
