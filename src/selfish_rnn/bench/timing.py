"""Timing side by side: on a shared machine only what is measured in turns can be compared."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

WARM_UPS = 2

SHORTEST = 0.05
"""Seconds below which one timing consists of several calls."""


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
            seconds[name].append(_seconds(calls[name], repeats[name]))
        if limit is not None and time.perf_counter() - start > limit:
            break
    return seconds


def _warm_up(call: Callable[[], Any]) -> int:
    """How many calls make a timing long enough."""
    taken = [_seconds(call, 1) for _ in range(WARM_UPS)]
    return max(1, math.ceil(SHORTEST / max(taken[-1], 1e-9))) if taken[-1] < SHORTEST else 1


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
            "seconds": list(own),
        }
    return found
