"""What is said about a benchmark: a line for every row as it comes, tables at the end, and JSON for programs."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from selfish_rnn.bench.running import Row
from selfish_rnn.bench.settings import ENGINES, BenchSettings
from selfish_rnn.errors import UserError

LABELS = {
    "dense": "dense torch",
    "no-onednn": "without oneDNN",
    "masked": "masked",
    "packed": "packed",
    "csr": "torch CSR",
    "sparseprop": "SparseProp",
}


def label(engine: str, kind: str) -> str:
    """What an engine is called in a table or a figure."""
    return LABELS[engine] + (" (products only)" if (engine, kind) == ("csr", "inference") else "")


def line(row: Row) -> str:
    """A row in one line."""
    start = f"{row.title}, {row.network} {row.hidden}, sparsity {row.sparsity:g}:"
    if row.kind == "memory":
        return f"{start} " + ", ".join(
            f"{label(engine, row.kind)} {found['training']:.0f} MiB" for engine, found in row.engines.items()
        )
    parts = [f"dense torch {milliseconds(row.engines[ENGINES[0]]['median_ms'])}"]
    for engine, found in row.engines.items():
        if engine != ENGINES[0]:
            parts.append(f"{label(engine, row.kind)} {spread(found)}")
    return f"{start} {', '.join(parts)}; ideal {row.ideal:.2f}"


def milliseconds(time: float) -> str:
    return f"{time:.0f} ms" if time >= 100 else f"{time:.3g} ms"


def spread(found: dict[str, Any]) -> str:
    """The median of the ratios, with the lowest and the highest."""
    return f"{found['ratio']:.2f} ({found['lowest']:.2f} to {found['highest']:.2f})"


def tables(rows: Sequence[Row], settings: BenchSettings) -> list[tuple[str, Table]]:
    """One for each network, size and kind of measurement, with a title."""
    groups = dict.fromkeys((row.kind, row.network, row.hidden) for row in rows)
    return [_table([row for row in rows if (row.kind, row.network, row.hidden) == group], settings) for group in groups]


def _table(rows: list[Row], settings: BenchSettings) -> tuple[str, Table]:
    first = rows[0]
    engines = [engine for engine in ENGINES if any(engine in row.engines for row in rows)]
    title = f"{first.network} {first.hidden}, {_explanation(first, settings)}"
    table = Table(box=None, padding=(0, 2, 0, 0))
    if first.kind == "operators":
        table.add_column("product")
    table.add_column("sparsity", justify="right")
    table.add_column("1/(1-S)", justify="right")
    for engine in engines:
        table.add_column(label(engine, first.kind), justify="right")
    if first.kind == "memory":
        table.add_column("imports alone", justify="right")
    # Products are compared over sparsities, so those of one name stand together.
    titles = list(dict.fromkeys(row.title for row in rows))
    for row in sorted(rows, key=lambda row: titles.index(row.title)):
        cells = [f"{row.sparsity:g}", f"{row.ideal:.2f}", *(_cell(row, engine) for engine in engines)]
        if first.kind == "operators":
            cells.insert(0, row.title)
        if first.kind == "memory":
            cells.append(f"{imports_alone(row):.0f} MiB")
        table.add_row(*cells)
    return title, table


def imports_alone(row: Row) -> float:
    """The memory, in MiB, of a process that has imported everything and built nothing."""
    return float(min(found["imports"] for found in row.engines.values()))


def _explanation(first: Row, settings: BenchSettings) -> str:
    if first.kind == "memory":
        return f"peak memory of training, each engine in a process of its own ({settings.optimizer})"
    if first.kind == "inference":
        return "batch-1 inference: time of dense torch, and how many times as fast the others are"
    if first.kind == "operators":
        return f"one matrix of {4 * first.hidden} x {first.hidden}: time of dense torch, and how many times as fast"
    return (
        f"training step (batch {settings.batch}, window {settings.window}, vocabulary {settings.vocabulary:,}, "
        f"{settings.optimizer}): time of dense torch, and how many times as fast the others are"
    )


def _cell(row: Row, engine: str) -> str:
    found = row.engines.get(engine)
    if found is None:
        return "-"
    if row.kind == "memory":
        return f"{found['training']:.0f} MiB"
    return milliseconds(found["median_ms"]) if engine == ENGINES[0] else spread(found)


def show(console: Console, rows: Sequence[Row], settings: BenchSettings) -> None:
    """All tables."""
    for title, table in tables(rows, settings):
        console.print(f"\n{title}", style="bold", markup=False, soft_wrap=True)
        console.print(table)
    if any(row.kind != "memory" for row in rows):
        console.print(
            "\nRatios are medians over the rounds of dense time / own time in the same round, with the lowest and the "
            "highest; 1/(1-S) is what they would be if time were proportional to the number of weights.",
            soft_wrap=True,
        )


class Report:
    """The JSON file, rewritten after every row: whatever happens, what was measured is there."""

    def __init__(self, path: Path, settings: BenchSettings, machine: dict[str, Any], command: str) -> None:
        self.path = path
        self._start: dict[str, Any] = {
            "command": command,
            "date": datetime.now().astimezone().isoformat(timespec="seconds"),
            "machine": machine,
            "settings": dataclasses.asdict(settings),
        }
        with _clear_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)

    def write(self, rows: Sequence[Row], notes: Sequence[str], complete: bool) -> None:
        content = {
            **self._start, "complete": complete, "notes": list(notes), "rows": [row.as_json() for row in rows]
        }  # fmt: skip
        temporary = self.path.with_name(f".{self.path.name}.partial")
        with _clear_errors(self.path):
            temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
            os.replace(temporary, self.path)


@contextlib.contextmanager
def _clear_errors(path: Path) -> Iterator[None]:
    """A failure of the file system as one line."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write {path}: {(error.strerror or str(error)).lower()}") from error
