"""Timing side by side, and what was measured: rows, and groups of rows that have one baseline.

On a shared machine only what is measured in turns can be compared.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from selfish_rnn.bench.options import DENSE

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


@dataclass(frozen=True)
class Row:
    """What was measured of all engines at one sparsity.

    ``engines`` has for each the ``seconds`` of its rounds, or what :func:`~selfish_rnn.bench.memory.measure` says;
    ``losses`` those of the first training step.
    """

    kind: str
    title: str
    network: str
    hidden: int
    sparsity: float
    engines: dict[str, dict[str, Any]]
    losses: dict[str, float] = field(default_factory=dict)

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> Row:
        """A row of ``bench.json``; ratios are found again from the seconds."""
        return cls(**{field.name: saved[field.name] for field in dataclasses.fields(cls)})

    @property
    def ideal(self) -> float:
        """The speed-up if time were proportional to the number of weights."""
        return 1 / (1 - self.sparsity)

    @property
    def imports_alone(self) -> float:
        """The memory, in MiB, of a process that has imported everything and built nothing."""
        return float(min(found["imports"] for found in self.engines.values()))


@dataclass(frozen=True)
class Group:
    """The rows of one kind, network and size: a table, a panel of the figure."""

    kind: str
    network: str
    hidden: int
    rows: list[Row]

    @property
    def baseline(self) -> str | None:
        """The engine that ratios are over: of those that are dense torch, the one that took the least time."""
        if self.kind == "memory":
            return None
        measured = [engine for engine in DENSE if all(engine in row.engines for row in self.rows)]
        return min(measured, key=self._seconds)

    def _seconds(self, engine: str) -> float:
        return float(sum(statistics.median(row.engines[engine]["seconds"]) for row in self.rows))

    def engines_of(self, row: Row) -> dict[str, dict[str, Any]]:
        """What a row says of each engine: times with their ratios, or memory."""
        if self.baseline is None:
            return row.engines
        return compared({engine: found["seconds"] for engine, found in row.engines.items()}, self.baseline)

    def as_json(self, row: Row) -> dict[str, Any]:
        engines = self.engines_of(row)
        return {**dataclasses.asdict(row), "engines": engines, "ideal": row.ideal, "baseline": self.baseline}


def grouped(rows: Iterable[Row]) -> list[Group]:
    """The groups, in the order in which they were begun."""
    found = dict[tuple[str, str, int], Group]()
    for row in rows:
        key = (row.kind, row.network, row.hidden)
        found.setdefault(key, Group(*key, [])).rows.append(row)
    return list(found.values())
