"""Timing side by side, and what was measured: rows, and groups of rows that have one baseline.

On a shared machine only what is measured in turns can be compared.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from selfish_rnn.bench.engines import ENGINES

WARM_UPS = 2

SHORTEST = 0.05
"""Seconds below which one timing consists of several calls."""

Row = dict[str, Any]
"""What was measured of all engines at one sparsity: an entry of ``rows`` in ``bench.json``.

Its ``engines`` has for each the ``seconds`` of its rounds, or what :func:`~selfish_rnn.bench.memory.measure` says;
:func:`completed` adds what follows from the other rows.
"""


def interleaved(
    calls: Mapping[str, Callable[[], Any]],
    rounds: int,
    limit: float | None = None,
    told: Callable[[int], None] = lambda done: None,
) -> dict[str, list[float]]:
    """Seconds of each call in every round.

    In every round each call has its turn, in an order that rotates from round to round. After ``limit`` seconds no new
    round starts, but there is always one. ``told`` hears the number of rounds done.
    """
    repeats = {name: _warm_up(call) for name, call in calls.items()}
    order = list(calls)
    seconds = {name: list[float]() for name in order}
    start = time.perf_counter()
    for done in range(rounds):
        told(done)
        first = done % len(order)
        for name in order[first:] + order[:first]:
            if repeats[name] > 1:
                calls[name]()  # with caches cold, and threads of the one before still looking for work
            seconds[name].append(_seconds(calls[name], repeats[name]))
        if limit is not None and time.perf_counter() - start > limit:
            break
    return seconds


def _warm_up(call: Callable[[], Any]) -> int:
    """How many calls make a timing long enough."""
    *_, last = (_seconds(call, 1) for _ in range(WARM_UPS))
    return max(1, math.ceil(SHORTEST / max(last, 1e-9)))


def _seconds(call: Callable[[], Any], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


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
