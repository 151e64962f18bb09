"""The benchmark: measure row by row, tell, write."""

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
from selfish_rnn.text import duration, say

BUSY = 0.1
"""The share of the cores that others may take: waiting for each other, threads are hit harder than that."""

Measured = tuple[str, dict[str, Any], dict[str, float]]
"""The title of a row, what was measured of each engine, and the losses."""


def bench(console: Console, options: BenchOptions, command: str) -> bool:
    """Measure everything, print it, and write ``bench.json`` and ``bench.png`` into ``options.out``.

    Returns whether it came to its end: Ctrl-C stops it, and what was measured until then is kept.
    """
    if options.keep_memory:
        retain_freed_memory()
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    path, start = options.out / "bench.json", time.monotonic()
    with clear_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    found = {
        **machine(),
        "threads": torch.get_num_threads(),
        "kernels": library.target() if library.available() else None,
        "torch": torch.__version__,
        "selfish_rnn": __version__,
    }
    date = datetime.now().astimezone().isoformat(timespec="seconds")
    settings = options.to_json()
    content: dict[str, Any] = {"command": command, "date": date, "machine": found, "settings": settings}
    kernels = found["kernels"] or "no processor (not built)"
    processor = f"{found['processor']}, {found['cores']} cores, threads: {found['threads']}"
    say(console, f"{processor}, kernels for {kernels}, torch {found['torch']}")
    # A log gets the rows only.
    with console.status("starting") if console.is_terminal else contextlib.nullcontext() as status:
        benchmark = Benchmark(options, console, status)
        if found["busy"] is not None and found["busy"] > BUSY:
            benchmark.note(f"other programs take {100 * found['busy']:.0f} % of the cores: do not trust these figures")
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
        say(console, f"The figure is {report.draw(path)}.")
    if content["complete"]:
        say(console, f"Measured in {duration(time.monotonic() - start)}; everything is in {path}.")
    else:
        say(console, f"Stopped; what was measured until then ({len(rows)} rows) is in {path}.")
    return bool(content["complete"])


class Benchmark:
    """Measures what the options ask for, and says what it leaves out.

    ::

        for row in Benchmark(read({"hidden": "512", "what": "step"}), Console()).rows():
            ...

    ``notes`` has what was said that belongs to the results; ``status`` shows what is being done.
    """

    def __init__(self, options: BenchOptions, console: Console, status: Status | None = None) -> None:
        self.options, self.console, self.status = options, console, status
        self.notes: list[str] = []
        self._kept: dict[str, Callable[[], Any]] = {}
        absent = {name: _why_not(name) for name in options.engines}
        self._engines = [name for name, reason in absent.items() if reason is None]
        for name, reason in absent.items():
            if reason is not None:
                self._leave_out(name, reason)

    def note(self, text: str) -> None:
        """Say something that belongs to the results, once."""
        if text not in self.notes:
            self.notes.append(text)
            say(self.console, text)

    def rows(self) -> Iterator[Row]:
        """Everything, in the order of the options."""
        options = self.options
        for hidden, kind, sparsity in itertools.product(options.hidden, options.what, options.sparsity):
            self._now = f"{KINDS[kind]}, {options.network} {hidden}, sparsity {sparsity:g}"
            self._tell("building")
            engines = [engine for engine in measured(kind, options.network) if engine in self._engines]
            place = {"network": options.network, "hidden": hidden, "sparsity": sparsity}
            if kind == "width":
                yield from ({"kind": kind, **place, **row} for row in self._widths(Workload(options, hidden, sparsity)))
                continue
            for title, found, losses in self._measure(kind, Workload(options, hidden, sparsity), engines):
                yield {"kind": kind, "title": title, **place, "engines": found, "losses": losses}
            if sparsity == options.sparsity[-1]:
                self._kept.clear()
            gc.collect()  # before the next networks are built

    def _measure(self, kind: str, workload: Workload, engines: Sequence[str]) -> Iterator[Measured]:
        found, losses = dict[str, Any](), dict[str, float]()
        if kind == "operators":
            yield from self._operators(workload, engines)
            return
        if kind == "memory":
            for engine in engines:
                self._tell(engine)
                found[engine] = measurements.measure(workload, engine)
        else:
            calls, results = self._built(kind, workload, engines)
            self._check(results)
            losses = {engine: float(loss) for engine, loss in results.items()} if kind == "step" else {}
            # Steps of microseconds on one thread: its own time does not count that of other programs.
            alone = kind == "stream" and torch.get_num_threads() == 1
            found = self._time(calls, time.thread_time if alone else time.perf_counter)
        yield KINDS[kind], found, losses

    def _widths(self, workload: Workload) -> Iterator[Row]:
        """The same number of weights in networks of all widths, which take turns; memory each in its own process."""
        if "packed" not in self._engines:
            raise UserError("--what width measures the packed engine, which is left out")
        wide = {f"width {width}": workload.at_width(width) for width in self.options.widths}
        peaks, steps, weights = dict[str, dict[str, float]](), dict[str, Callable[[], float]](), dict[str, int]()
        for name, own in wide.items():
            self._tell(f"memory at {name}")
            peaks[name] = measurements.measure(own, "packed")
        for name, own in wide.items():
            self._tell(f"building {name}")
            model = own.model("packed")
            weights[name] = sum(len(weight.values) for weight in packed_weights(model).values())
            steps[name] = own.training_step("packed", model)
        for name, found in self._time(steps).items():
            own = wide[name]
            about = {"width": own.hidden, "weights": weights[name], "positions": own.positions()}
            yield {"title": name, **about, "engines": {"packed": {**found, **peaks[name]}}}

    def _built(
        self, kind: str, workload: Workload, engines: Sequence[str]
    ) -> tuple[dict[str, Callable[[], Any]], dict[str, Tensor]]:
        """The calls of all engines, and what their first ones give; a rival that fails is left out, and said so.

        Dense rivals, some of which take long to build, are as fast at any sparsity: for the next word they are kept.
        """
        calls, results = dict[str, Callable[[], Any]](), dict[str, Tensor]()
        for engine in engines:
            if engine in self._kept:
                calls[engine] = self._kept[engine]
                continue
            self._tell(f"building {engine}")
            try:
                call = _call(kind, workload, engine)
                results[engine] = torch.as_tensor(call()).flatten().float()
            except Exception as error:
                if engine in ("dense", "masked") or ENGINES[engine].kernels:
                    raise
                reason = (str(error).strip().splitlines() or ["no message"])[0]
                self._leave_out(engine, f"{type(error).__name__}: {reason[:100]}")
            else:
                calls[engine] = call
                if kind in ("inference", "stream") and engine != "dense" and ENGINES[engine].baseline_of:
                    self._kept[engine] = call
        return calls, results

    def _check(self, results: Mapping[str, Tensor]) -> None:
        """Say which engines do not compute what dense torch does, within their precision."""
        for engine, found in results.items():
            error, tolerance = difference(found, results["dense"]), ENGINES[engine].tolerance
            if not error <= tolerance:
                self.note(
                    f"{self._now}: {engine} does not compute what dense does: off by {error:.2g}, over {tolerance:g}"
                )

    def _leave_out(self, engine: str, reason: str) -> None:
        self.note(f"{engine} is left out: {reason}")

    def _operators(self, workload: Workload, engines: Sequence[str]) -> Iterator[Measured]:
        generator = torch.Generator().manual_seed(SEED)
        rows, columns = 4 * workload.hidden, workload.hidden
        matrix = sparse_matrix(rows, columns, workload.sparsity, generator)
        batch, window = self.options.batch, self.options.window
        for n in dict.fromkeys((batch * window, batch)):
            x, gradient = (torch.randn(n, width, generator=generator) for width in (columns, rows))
            calls = {engine: PRODUCTS_OF[engine](matrix, x, gradient) for engine in engines}
            for name in PRODUCTS:
                found = self._time({engine: own[name] for engine, own in calls.items() if name in own})
                yield f"{name}, {n} columns", found, {}

    def _time(
        self, calls: Mapping[str, Callable[[], Any]], clock: Callable[[], float] = time.perf_counter
    ) -> dict[str, Any]:
        rounds, limit = self.options.rounds, self.options.limit
        seconds = interleaved(calls, rounds, limit, lambda done: self._tell(f"round {done + 1} of {rounds}"), clock)
        return {engine: {"seconds": own} for engine, own in seconds.items()}

    def _tell(self, text: str) -> None:
        if self.status is not None:
            self.status.update(f"{self._now}: {text}")


def _call(kind: str, workload: Workload, engine: str) -> Callable[[], Any]:
    """Return a call that does once what a kind of measurement times."""
    if kind == "stream":
        return streams.step(engine, workload.options.network, workload.hidden, workload.sparsity)
    return workload.next_word(engine) if kind == "inference" else workload.training_step(engine)


def difference(found: Tensor, expected: Tensor) -> float:
    """The largest difference between two lists of scores in units of their standard deviation, or of two losses."""
    scale = expected.std() if expected.numel() > 1 else expected.abs()
    return float((found - expected).abs().max() / scale)


def _why_not(engine: str) -> str | None:
    """What keeps an engine from being measured here."""
    if ENGINES[engine].kernels and not library.available():
        return "its kernels were not built when selfish-rnn was installed, which takes a C++ compiler (g++ or clang++)"
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
    return f"it takes {' and '.join(missing)}{install}"
