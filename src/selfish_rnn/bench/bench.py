"""Benchmark: measurement, output and result file, row by row."""

from __future__ import annotations

import contextlib
import gc
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import torch
from rich.console import Console
from rich.status import Status
from torch import Tensor

from selfish_rnn import __version__
from selfish_rnn.bench import measurements, report, streams
from selfish_rnn.bench.engines import ENGINES, KINDS, measured
from selfish_rnn.bench.measurements import Row, completed, interleaved
from selfish_rnn.bench.options import BenchOptions
from selfish_rnn.bench.products import PRODUCTS, PRODUCTS_OF, sparse_matrix
from selfish_rnn.bench.rivals import computes_in
from selfish_rnn.bench.workloads import SEED, Workload
from selfish_rnn.engine import library
from selfish_rnn.engine.packed_weight import packed_weights
from selfish_rnn.engine.precision import bfloat16_target
from selfish_rnn.errors import UserError
from selfish_rnn.files import clear_write_errors
from selfish_rnn.system import machine, retain_freed_memory
from selfish_rnn.text import counted, duration, say

BUSY = 0.1
"""Share of the cores that other programs may take. Threads that wait for each other lose more than that."""

Measured = tuple[str, dict[str, Any], dict[str, float]]
"""Title of a row, measurements by engine, and losses by engine."""


def bench(console: Console, options: BenchOptions, command: str) -> bool:
    """Measure everything, print it, and write ``bench.json`` and ``bench.png`` into ``options.out``.

    Returns False if Ctrl-C stopped it; the finished rows are kept.
    """
    if options.keep_memory:
        retain_freed_memory()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    path, start = options.out / "bench.json", time.monotonic()
    with clear_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    environment = {
        **machine(),
        "threads": torch.get_num_threads(),
        "kernels": library.target() if library.available() else None,
        "torch": torch.__version__,
        "selfish_rnn": __version__,
    }
    date = datetime.now().astimezone().isoformat(timespec="seconds")
    settings = options.to_json()
    content: dict[str, Any] = {"command": command, "date": date, "machine": environment, "settings": settings}
    kernels = environment["kernels"] or "no processor (not built)"
    processor = f"{environment['processor']}, {environment['cores']} cores, threads: {environment['threads']}"
    say(console, f"{processor}, kernels for {kernels}, torch {environment['torch']}")
    # A log gets the rows only.
    with console.status("starting") if console.is_terminal else contextlib.nullcontext() as status:
        benchmark = Benchmark(options, console, status)
        if environment["busy"] is not None and environment["busy"] > BUSY:
            benchmark.note(
                f"other programs take {100 * environment['busy']:.0f} % of the cores: do not trust these numbers"
            )
        undrawn = report.no_figure(options.what)
        if undrawn:
            say(console, undrawn)
        content |= {"complete": False, "notes": benchmark.notes, "rows": []}
        try:
            for row in benchmark.rows():
                content["rows"] = completed([*content["rows"], row])
                say(console, report.line(content["rows"][-1]))
                report.write(path, content)
            content["complete"] = True
        except KeyboardInterrupt:
            pass
    report.write(path, content)
    rows = content["rows"]
    report.show(console, rows, options)
    console.print()
    if not undrawn and not report.no_figure([row["kind"] for row in rows]):
        say(console, f"Figure: {report.draw(path)}.")
    if content["complete"]:
        say(console, f"Measured in {duration(time.monotonic() - start)}; results: {path}.")
    else:
        say(console, f"Stopped; {counted(len(rows), 'finished row')}: {path}.")
    return bool(content["complete"])


class Benchmark:
    """Measurements of some options. Engines that cannot run are reported.

    ::

        for row in Benchmark(read({"hidden": "512", "what": "step"}), Console()).rows():
            ...

    ``notes`` has the remarks that are stored with the results; ``status`` shows the progress.
    """

    def __init__(self, options: BenchOptions, console: Console, status: Status | None = None) -> None:
        self.options, self.console, self.status = options, console, status
        self.notes: list[str] = []
        self._reusable: dict[str, Callable[[], Any]] = {}
        absent = {name: _reason_to_skip(name) for name in options.engines}
        self._engines = [name for name, reason in absent.items() if reason is None]
        for name, reason in absent.items():
            if reason is not None:
                self._skip(name, reason)

    def note(self, text: str) -> None:
        """Print a remark and store it with the results, once."""
        if text not in self.notes:
            self.notes.append(text)
            say(self.console, text)

    def rows(self) -> Iterator[Row]:
        """Yield all rows in the order of the options."""
        options = self.options
        for hidden, kind, sparsity in itertools.product(options.hidden, options.what, options.sparsity):
            self._now = f"{KINDS[kind]}, {options.network} {hidden}, sparsity {sparsity:g}"
            self._show_status("building")
            engines = [engine for engine in measured(kind, options.network) if engine in self._engines]
            size = {"network": options.network, "hidden": hidden, "sparsity": sparsity}
            if kind == "width":
                yield from ({"kind": kind, **size, **row} for row in self._widths(Workload(options, hidden, sparsity)))
                continue
            for title, engine_results, losses in self._measure(kind, Workload(options, hidden, sparsity), engines):
                yield {"kind": kind, "title": title, **size, "engines": engine_results, "losses": losses}
            if sparsity == options.sparsity[-1]:
                self._reusable.clear()
            gc.collect()  # before building the next networks

    def _measure(self, kind: str, workload: Workload, engines: Sequence[str]) -> Iterator[Measured]:
        results_by_engine, losses = dict[str, Any](), dict[str, float]()
        if kind == "operators":
            yield from self._operators(workload, engines)
            return
        if kind == "memory":
            for engine in engines:
                self._show_status(engine)
                results_by_engine[engine] = measurements.measure(workload, engine)
        else:
            calls, results = self._built(kind, workload, engines)
            self._check(results)
            losses = {engine: float(loss) for engine, loss in results.items()} if kind == "step" else {}
            # On one thread, steps of microseconds are timed by the thread's clock, which excludes other programs.
            alone = kind == "stream" and torch.get_num_threads() == 1
            results_by_engine = self._time(calls, time.thread_time if alone else time.perf_counter)
        yield KINDS[kind], results_by_engine, losses

    def _widths(self, workload: Workload) -> Iterator[Row]:
        """Yield networks of all widths with equal numbers of weights. Steps take turns, memory does not."""
        if "packed" not in self._engines:
            raise UserError("--what width measures the packed engine, which is skipped")
        wide = {f"width {width}": workload.at_width(width) for width in self.options.widths}
        peaks, steps, weights = dict[str, dict[str, float]](), dict[str, Callable[[], float]](), dict[str, int]()
        for name, workload_at_width in wide.items():
            self._show_status(f"memory at {name}")
            peaks[name] = measurements.measure(workload_at_width, "packed")
        for name, workload_at_width in wide.items():
            self._show_status(f"building {name}")
            model = workload_at_width.model("packed")
            weights[name] = sum(len(weight.values) for weight in packed_weights(model).values())
            steps[name] = workload_at_width.training_step("packed", model)
        for name, timing in self._time(steps).items():
            workload_at_width = wide[name]
            about = {
                "width": workload_at_width.hidden,
                "weights": weights[name],
                "positions": workload_at_width.positions(),
            }
            yield {"title": name, **about, "engines": {"packed": {**timing, **peaks[name]}}}

    def _built(
        self, kind: str, workload: Workload, engines: Sequence[str]
    ) -> tuple[dict[str, Callable[[], Any]], dict[str, Tensor]]:
        """Return the calls of all engines with their first results. Rivals that fail are reported and skipped.

        Dense rivals are equally fast at any sparsity and slow to build, so they are reused for the next word.
        """
        calls, results = dict[str, Callable[[], Any]](), dict[str, Tensor]()
        for engine in engines:
            if engine in self._reusable:
                calls[engine] = self._reusable[engine]
                continue
            self._show_status(f"building {engine}")
            try:
                call = _call(kind, workload, engine)
                results[engine] = torch.as_tensor(call()).flatten().float()
            except Exception as error:
                if engine in ("dense", "masked") or ENGINES[engine].kernels:
                    raise
                reason = (str(error).strip().splitlines() or ["no message"])[0]
                self._skip(engine, f"{type(error).__name__}: {reason[:100]}")
            else:
                calls[engine] = call
                if kind in ("inference", "stream") and engine != "dense" and ENGINES[engine].baseline_of:
                    self._reusable[engine] = call
        return calls, results

    def _check(self, results: Mapping[str, Tensor]) -> None:
        """Report engines whose results differ from dense torch by more than their precision."""
        for engine, result in results.items():
            error, tolerance = difference(result, results["dense"]), ENGINES[engine].tolerance
            if not error <= tolerance:
                self.note(f"{self._now}: {engine} differs from dense by {error:.2g}, more than {tolerance:g}")

    def _skip(self, engine: str, reason: str) -> None:
        self.note(f"{engine} is skipped: {reason}")

    def _operators(self, workload: Workload, engines: Sequence[str]) -> Iterator[Measured]:
        generator = torch.Generator().manual_seed(SEED)
        rows, columns = 4 * workload.hidden, workload.hidden
        matrix = sparse_matrix(rows, columns, workload.sparsity, generator)
        batch, window = self.options.batch, self.options.window
        for n in dict.fromkeys((batch * window, batch)):
            x, gradient = (torch.randn(n, width, generator=generator) for width in (columns, rows))
            calls = {engine: PRODUCTS_OF[engine](matrix, x, gradient) for engine in engines}
            for name in PRODUCTS:
                timings = self._time({engine: products[name] for engine, products in calls.items() if name in products})
                yield f"{name}, {n} columns", timings, {}

    def _time(
        self, calls: Mapping[str, Callable[[], Any]], clock: Callable[[], float] = time.perf_counter
    ) -> dict[str, Any]:
        rounds, limit = self.options.rounds, self.options.limit
        seconds = interleaved(
            calls, rounds, limit, lambda done: self._show_status(f"round {done + 1} of {rounds}"), clock
        )
        return {engine: {"seconds": times} for engine, times in seconds.items()}

    def _show_status(self, text: str) -> None:
        if self.status is not None:
            self.status.update(f"{self._now}: {text}")


def _call(kind: str, workload: Workload, engine: str) -> Callable[[], Any]:
    """Return the call that a kind of measurement times."""
    if kind == "stream":
        return streams.step(engine, workload.options.network, workload.hidden, workload.sparsity)
    return workload.next_word(engine) if kind == "inference" else workload.training_step(engine)


def difference(result: Tensor, expected: Tensor) -> float:
    """Return the largest difference of two lists of scores in standard deviations, or of two losses."""
    scale = expected.std() if expected.numel() > 1 else expected.abs()
    return float((result - expected).abs().max() / scale)


def _reason_to_skip(engine: str) -> str | None:
    """Return the reason why an engine cannot run here, or None."""
    if ENGINES[engine].kernels and not library.available():
        return "its kernels were not built during the installation, which needs a C++ compiler (g++ or clang++)"
    if ENGINES[engine].precision == "bfloat16" and bfloat16_target() != "avx512_bf16":
        return "the processor has no AVX512_BF16"
    if engine in ("bfloat16", "bfloat16-hand"):
        if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return "torch has no bfloat16 arithmetic on this processor"
        if not computes_in(torch.bfloat16):
            return "torch fails in bfloat16 on this machine"
    missing = ENGINES[engine].missing
    if not missing:
        return None
    install = "" if engine == "sparseprop" else " (pip install 'selfish-rnn[rivals]')"
    return f"it needs {' and '.join(missing)}{install}"
