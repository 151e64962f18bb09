"""The command: measure, tell, write."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from selfish_rnn.bench import figure
from selfish_rnn.bench.machine import machine
from selfish_rnn.bench.report import Report, line, show
from selfish_rnn.bench.running import Benchmark, Row
from selfish_rnn.bench.settings import BenchSettings
from selfish_rnn.cli.display import duration
from selfish_rnn.system import keep_freed_memory

BUSY = 0.1
"""The share of the cores that others may take: waiting for each other, threads are hit harder than that."""


def bench(console: Console, settings: BenchSettings, out: Path, command: str) -> bool:
    """Measure everything, print it, and write ``bench.json`` and ``bench.png`` into ``out``.

    Returns whether it came to its end: Ctrl-C stops it, and what was measured until then is kept.
    """
    if settings.keep_memory:
        keep_freed_memory()
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    found, rows, complete, start = machine(), list[Row](), False, time.monotonic()
    report = Report(out / "bench.json", settings, found, command)
    with _status(console) as told:
        benchmark = Benchmark(settings, told)
        benchmark.notes += _busy(found)
        _say(
            console,
            f"{found['processor']}, {found['cores']} cores, threads: {found['threads']}, "
            f"kernels for {found['kernels'] or 'no processor (not built)'}, torch {found['torch']}",
        )
        for note in benchmark.notes:
            _say(console, note)
        said = len(benchmark.notes)
        try:
            for row in benchmark.rows():
                rows.append(row)
                _say(console, line(row))
                report.write(rows, benchmark.notes, complete=False)
            complete = True
        except KeyboardInterrupt:
            pass
    for note in benchmark.notes[said:]:
        _say(console, note)
    report.write(rows, benchmark.notes, complete)
    show(console, rows, settings)
    console.print()
    _draw(console, rows, found, out)
    if complete:
        _say(console, f"Measured in {duration(time.monotonic() - start)}; everything is in {report.path}.")
    else:
        _say(console, f"Stopped; what was measured until then ({len(rows)} rows) is in {report.path}.")
    return complete


def _busy(found: dict[str, Any]) -> list[str]:
    """A note if others are using the processor."""
    if found["busy"] is None or found["busy"] < BUSY:
        return []
    return [f"other programs take {100 * found['busy']:.0f} % of the cores: do not trust these figures"]


def _draw(console: Console, rows: list[Row], found: dict[str, object], out: Path) -> None:
    if not figure.drawn(rows):
        _say(console, "No figure is drawn: it would show training steps, batch-1 inference and memory.")
    elif not figure.can_draw():
        _say(console, "No figure is drawn: it takes matplotlib (pip install 'selfish-rnn[bench]').")
    else:
        figure.draw(rows, found, out / "bench.png")
        _say(console, f"The figure is {out / 'bench.png'}.")


@contextlib.contextmanager
def _status(console: Console) -> Iterator[Callable[[str], None]]:
    """What is being done, where there is a terminal to show it; a log gets the rows only."""
    if not console.is_terminal:
        yield lambda text: None
        return
    with console.status("starting") as status:
        yield lambda text: status.update(text)


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, soft_wrap=True)
