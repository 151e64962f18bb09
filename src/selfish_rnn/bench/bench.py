"""The benchmark: measure row by row, tell, write."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

import torch
from rich.console import Console

from selfish_rnn import __version__
from selfish_rnn.bench import memory, report
from selfish_rnn.bench.measurements import Row, grouped, interleaved
from selfish_rnn.bench.options import MEASURED, BenchOptions
from selfish_rnn.bench.products import PRODUCTS, Products, products_of, sparse_matrix, sparseprop
from selfish_rnn.bench.workloads import SEED, Workload
from selfish_rnn.engine import library
from selfish_rnn.files import clear_write_errors
from selfish_rnn.system import duration, keep_freed_memory, machine

BUSY = 0.1
"""The share of the cores that others may take: waiting for each other, threads are hit harder than that."""

SAME = 1e-3
"""How far the first losses of two engines may differ, as a fraction, before it is worth a note."""

Measured = tuple[str, dict[str, Any], dict[str, float]]
"""The title of a row, what was measured of each engine, and the losses."""


def bench(console: Console, options: BenchOptions, command: str) -> bool:
    """Measure everything, print it, and write ``bench.json`` and ``bench.png`` into ``options.out``.

    Returns whether it came to its end: Ctrl-C stops it, and what was measured until then is kept.
    """
    if options.keep_memory:
        keep_freed_memory()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    path, rows, complete, start = options.out / "bench.json", list[Row](), False, time.monotonic()
    with clear_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    about = _about(options, command)
    found = about["machine"]
    _say(
        console,
        f"{found['processor']}, {found['cores']} cores, threads: {found['threads']}, "
        f"kernels for {found['kernels'] or 'no processor (not built)'}, torch {found['torch']}",
    )
    with _status(console) as told:
        benchmark = Benchmark(options, lambda note: _say(console, note), told)
        if found["busy"] is not None and found["busy"] > BUSY:
            benchmark.note(f"other programs take {100 * found['busy']:.0f} % of the cores: do not trust these figures")
        undrawn = report.no_figure(options.what)
        if undrawn:
            _say(console, undrawn)
        try:
            for row in benchmark.rows():
                rows.append(row)
                _say(console, report.line(row, grouped(rows)[-1]))
                report.write(path, rows, **about, complete=False, notes=benchmark.notes)
            complete = True
        except KeyboardInterrupt:
            pass
    report.write(path, rows, **about, complete=complete, notes=benchmark.notes)
    report.show(console, rows, options)
    console.print()
    if not undrawn and not report.no_figure([row.kind for row in rows]):
        _say(console, f"The figure is {report.draw(path)}.")
    if complete:
        _say(console, f"Measured in {duration(time.monotonic() - start)}; everything is in {path}.")
    else:
        _say(console, f"Stopped; what was measured until then ({len(rows)} rows) is in {path}.")
    return complete


def _about(options: BenchOptions, command: str) -> dict[str, Any]:
    """What was asked for, and on what it is measured."""
    return {
        "command": command,
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
        "machine": {
            **machine(),
            "threads": torch.get_num_threads(),
            "kernels": library.target() if library.available() else None,
            "torch": torch.__version__,
            "selfish_rnn": __version__,
        },
        "settings": options.model_dump(mode="json"),
    }


@contextlib.contextmanager
def _status(console: Console) -> Iterator[Callable[[str], None]]:
    """What is being done, where there is a terminal to show it; a log gets the rows only."""
    if not console.is_terminal:
        yield _unheard
        return
    with console.status("starting") as status:
        yield status.update


def _unheard(text: str) -> None:
    pass


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, soft_wrap=True)


class Benchmark:
    """Measures what the options ask for.

    ::

        for row in Benchmark(read({"hidden": "512", "what": "step"})).rows():
            ...

    ``notes`` tells what was left out and why; ``said`` hears each note, ``told`` what is being done.
    """

    def __init__(
        self, options: BenchOptions, said: Callable[[str], None] = _unheard, told: Callable[[str], None] = _unheard
    ) -> None:
        self.options = options
        self.notes: list[str] = []
        self._said, self._told = said, told
        missing = {}
        if not library.available():
            missing["packed"] = (
                "its kernels were not built when selfish-rnn was installed, which takes a C++ compiler (g++ or clang++)"
            )
        if sparseprop() is None:
            missing["sparseprop"] = "it is not installed"
        self._engines = [engine for engine in options.engines if engine not in missing]
        for engine, reason in missing.items():
            if engine in options.engines:
                self.note(f"{engine} is left out: {reason}")

    def note(self, text: str) -> None:
        """Say something that belongs to the results."""
        self.notes.append(text)
        self._said(text)

    def rows(self) -> Iterator[Row]:
        """Everything, in the order of the options."""
        options = self.options
        for hidden in options.hidden:
            workload = Workload.of(options, hidden)
            for kind in options.what:
                engines = tuple(engine for engine in self._engines if engine in MEASURED[kind])
                for sparsity in options.sparsity:
                    self._now = f"{report.DRAWN.get(kind, kind)}, {options.network} {hidden}, sparsity {sparsity:g}"
                    self._told(f"{self._now}: building")
                    for title, found, losses in self._measure(kind, workload, sparsity, engines):
                        yield Row(kind, title, options.network, hidden, sparsity, found, losses)
                    gc.collect()  # before the next networks are built

    def _measure(self, kind: str, workload: Workload, sparsity: float, engines: tuple[str, ...]) -> Iterator[Measured]:
        if kind == "operators":
            yield from self._operators(workload, sparsity, engines)
        elif kind == "memory":
            found = dict[str, Any]()
            for engine in engines:
                self._told(f"{self._now}: {engine}")
                found[engine] = memory.measure(workload, engine, sparsity, torch.get_num_threads())
            yield report.DRAWN[kind], found, {}
        elif kind == "inference":
            yield report.DRAWN[kind], self._time(workload.next_tokens(engines, sparsity)), {}
        else:
            steps = workload.steps(engines, sparsity)
            seconds = self._time(steps)
            losses = {engine: step.first_loss or 0.0 for engine, step in steps.items()}
            if max(losses.values()) - min(losses.values()) > SAME * abs(losses["dense"]):
                self.note(f"{self._now}: the engines do not compute the same loss: {losses}")
            yield report.DRAWN[kind], seconds, losses

    def _operators(self, workload: Workload, sparsity: float, engines: tuple[str, ...]) -> Iterator[Measured]:
        generator = torch.Generator().manual_seed(SEED)
        rows, columns = 4 * workload.hidden, workload.hidden
        matrix = sparse_matrix(rows, columns, sparsity, generator)
        for n in dict.fromkeys((workload.batch * workload.window, workload.batch)):
            x, gradient = (torch.randn(n, width, generator=generator) for width in (columns, rows))
            calls: dict[str, Products] = {engine: products_of(engine, matrix, x, gradient) for engine in engines}
            for name in PRODUCTS:
                found = self._time({engine: own[name] for engine, own in calls.items() if name in own})
                yield f"{name}, {n} columns", found, {}

    def _time(self, calls: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
        rounds = self.options.rounds

        def round_done(done: int) -> None:
            self._told(f"{self._now}: round {done + 1} of {rounds}")

        seconds = interleaved(calls, rounds, self.options.limit, round_done)
        return {engine: {"seconds": own} for engine, own in seconds.items()}
