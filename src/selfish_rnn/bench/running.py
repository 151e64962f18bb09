"""Measuring, row by row."""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from selfish_rnn.bench import memory
from selfish_rnn.bench.products import PRODUCTS, Products, products_of, sparse_matrix, sparseprop
from selfish_rnn.bench.settings import ENGINES, BenchSettings
from selfish_rnn.bench.timing import compared, interleaved
from selfish_rnn.bench.workloads import SEED, Workload
from selfish_rnn.engine import library

TITLES = {"step": "training step", "inference": "batch-1 inference", "memory": "peak memory of training"}

SAME = 1e-3
"""How far the first losses of two engines may differ, as a fraction, before it is worth a note."""


@dataclass(frozen=True)
class Row:
    """What was measured of all engines at one sparsity.

    ``engines`` has for each what :func:`~selfish_rnn.bench.timing.compared` or
    :func:`~selfish_rnn.bench.memory.measure` says; ``losses`` those of the first training step.
    """

    kind: str
    title: str
    network: str
    hidden: int
    sparsity: float
    engines: dict[str, dict[str, Any]]
    losses: dict[str, float] = field(default_factory=dict)

    @property
    def ideal(self) -> float:
        """The speed-up if time were proportional to the number of weights."""
        return 1 / (1 - self.sparsity)

    def as_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "ideal": self.ideal}


class Benchmark:
    """Measures what the settings ask for.

    ::

        for row in Benchmark(settings).rows():
            ...

    ``notes`` tells what was left out and why; ``told`` hears what is being done.
    """

    def __init__(self, settings: BenchSettings, told: Callable[[str], None] = lambda text: None) -> None:
        self.notes: list[str] = []
        self.settings = self._without_missing(settings)
        self._told = told

    def _without_missing(self, settings: BenchSettings) -> BenchSettings:
        missing = {}
        if not library.available():
            missing["packed"] = (
                "packed is left out: its kernels were not built when selfish-rnn was installed, which takes a C++ "
                "compiler (g++ or clang++)"
            )
        if sparseprop() is None:
            missing["sparseprop"] = "sparseprop is left out: it is not installed"
        elif "sparseprop" in settings.engines and "operators" in settings.kinds:
            self.notes.append("sparseprop was found")
        self.notes += [note for engine, note in missing.items() if engine in settings.engines]
        engines = tuple(engine for engine in settings.engines if engine not in missing)
        return dataclasses.replace(settings, engines=engines)

    def rows(self) -> Iterator[Row]:
        """Everything, in the order of the settings."""
        makers = {
            "step": self._step,
            "inference": self._inference,
            "operators": self._operators,
            "memory": self._memory,
        }
        for workload in self.settings.workloads():
            for kind in self.settings.kinds:
                for sparsity in self.settings.sparsity:
                    self._now = f"{TITLES.get(kind, kind)}, {workload.network} {workload.hidden}, sparsity {sparsity:g}"
                    self._told(f"{self._now}: building")
                    yield from makers[kind](workload, sparsity, self.settings.engines_for(kind))
                    gc.collect()  # before the next networks are built

    def _time(self, calls: Any) -> dict[str, dict[str, Any]]:
        rounds = self.settings.rounds
        seconds = interleaved(
            calls,
            rounds,
            self.settings.limit,
            lambda done: self._told(f"{self._now}: round {done + 1} of {rounds}"),
        )
        return compared(seconds, ENGINES[0])

    def _step(self, workload: Workload, sparsity: float, engines: tuple[str, ...]) -> Iterator[Row]:
        steps = workload.steps(engines, sparsity)
        found = self._time(steps)
        losses = {engine: step.first_loss or 0.0 for engine, step in steps.items()}
        if max(losses.values()) - min(losses.values()) > SAME * abs(losses[ENGINES[0]]):
            self.notes.append(f"{self._now}: the engines do not compute the same loss: {losses}")
        yield self._row("step", TITLES["step"], workload, sparsity, found, losses)

    def _inference(self, workload: Workload, sparsity: float, engines: tuple[str, ...]) -> Iterator[Row]:
        found = self._time(workload.next_tokens(engines, sparsity))
        yield self._row("inference", TITLES["inference"], workload, sparsity, found)

    def _operators(self, workload: Workload, sparsity: float, engines: tuple[str, ...]) -> Iterator[Row]:
        generator = torch.Generator().manual_seed(SEED)
        rows, columns = 4 * workload.hidden, workload.hidden
        matrix = sparse_matrix(rows, columns, sparsity, generator)
        for n in dict.fromkeys((workload.batch * workload.window, workload.batch)):
            x, gradient = (torch.randn(n, width, generator=generator) for width in (columns, rows))
            calls: dict[str, Products] = {engine: products_of(engine, matrix, x, gradient) for engine in engines}
            for name in PRODUCTS:
                found = self._time({engine: own[name] for engine, own in calls.items() if name in own})
                yield self._row("operators", f"{name}, {n} columns", workload, sparsity, found)

    def _memory(self, workload: Workload, sparsity: float, engines: tuple[str, ...]) -> Iterator[Row]:
        found = {}
        for engine in engines:
            self._told(f"{self._now}: {engine}")
            found[engine] = memory.measure(workload, engine, sparsity, torch.get_num_threads())
        yield self._row("memory", TITLES["memory"], workload, sparsity, found)

    def _row(
        self,
        kind: str,
        title: str,
        workload: Workload,
        sparsity: float,
        engines: dict[str, dict[str, Any]],
        losses: dict[str, float] | None = None,
    ) -> Row:
        return Row(kind, title, workload.network, workload.hidden, sparsity, engines, losses or {})
