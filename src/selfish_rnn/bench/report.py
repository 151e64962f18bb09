"""What is said about a benchmark: lines and tables for a person, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from selfish_rnn.bench.engines import ENGINES, KINDS
from selfish_rnn.bench.measurements import Row, grouped
from selfish_rnn.bench.options import BenchOptions
from selfish_rnn.files import write_atomically
from selfish_rnn.text import plain_table


def label(engine: str, row: Row) -> str:
    """What an engine is called in a table or a figure."""
    if engine == row["baseline"]:
        return f"{ENGINES[engine].label} (baseline)"
    return ENGINES[engine].label


def line(row: Row) -> str:
    """A row in one line, the baseline first."""
    if row["kind"] == "width":
        return f"{row['network']} with {row['weights']:,} weights: " + ", ".join(map(" ".join, _width_cells(row)))
    engines = sorted(row["engines"], key=lambda engine: engine != row["baseline"])
    cells = ", ".join(f"{label(engine, row)} {_cell(row, engine)}" for engine in engines)
    ideal = "" if row["kind"] == "memory" else f"; ideal {row['ideal']:.2f}"
    return f"{row['title']}, {row['network']} {row['hidden']}, sparsity {row['sparsity']:g}: {cells}{ideal}"


def _cell(row: Row, engine: str) -> str:
    """Memory, the time of the baseline, or the median of the ratios with the lowest and the highest."""
    found = row["engines"].get(engine)
    if found is None:
        return "-"
    if row["kind"] == "memory":
        return f"{found['training']:.0f} MiB"
    if engine == row["baseline"]:
        time = found["median_ms"]
        return f"{time:.0f} ms" if time >= 100 else f"{time:.3g} ms"
    return f"{found['ratio']:.2f} ({found['lowest']:.1f}-{found['highest']:.1f})"


def imports_alone(row: Row) -> float:
    """The memory, in MiB, of a process that has imported everything and built nothing."""
    return float(min(found["imports"] for found in row["engines"].values()))


def show(console: Console, rows: Sequence[Row], options: BenchOptions) -> None:
    """A table for each group, with a title."""
    for group in grouped(rows):
        title = f"\n{group[0]['network']} {group[0]['hidden']}, {_title(group[0], options)}"
        console.print(title, style="bold", markup=False, soft_wrap=True)
        console.print(_width_table(group) if group[0]["kind"] == "width" else _table(group))
    if any(row["baseline"] is not None for row in rows):
        console.print(
            "\nRatios are medians over the rounds of the baseline's time / own time in the same round, with the lowest "
            "and the highest; the baseline is the fastest dense engine that was measured; 1/(1-S) is what ratios would "
            "be if time were proportional to the number of weights.",
            soft_wrap=True,
        )


def _title(row: Row, options: BenchOptions) -> str:
    if row["kind"] == "width":
        return (
            f"sparsity {row['sparsity']:g}: as many weights in wider networks, training step (batch {options.batch}, "
            f"window {options.window}, vocabulary {options.vocabulary:,}, {options.optimizer}) and peak memory"
        )
    if row["kind"] == "memory":
        return f"peak memory of training, each engine in a process of its own ({options.optimizer})"
    titles = {
        "step": f"training step (batch {options.batch}, window {options.window}, "
        f"vocabulary {options.vocabulary:,}, {options.optimizer})",
        "inference": KINDS["inference"],
        "operators": f"one matrix of {4 * row['hidden']} x {row['hidden']}",
    }
    return f"{titles[row['kind']]}: time of {ENGINES[row['baseline']].label}, and how many times as fast the others are"


def _table(group: Sequence[Row]) -> Table:
    """A line for each engine, the baseline first, and a column for each sparsity; products one after the other."""
    rows = sorted(group, key=lambda row: row["sparsity"])
    table = plain_table(["sparsity"], [f"{sparsity:g}" for sparsity in dict.fromkeys(row["sparsity"] for row in rows)])
    for title in dict.fromkeys(row["title"] for row in group):
        own = {row["sparsity"]: row for row in rows if row["title"] == title}
        first = next(iter(own.values()))
        if first["kind"] == "operators":
            table.add_row(title, style="bold")
        engines = [name for name in ENGINES if any(name in row["engines"] for row in own.values())]
        for engine in sorted(engines, key=lambda engine: engine != first["baseline"]):
            table.add_row(label(engine, first), *(_cell(row, engine) for row in own.values()))
        last = {"memory": "imports alone"}.get(first["kind"], "ideal: 1/(1-S)")
        ends = (
            f"{imports_alone(row):.0f} MiB" if first["kind"] == "memory" else f"{row['ideal']:.2f}"
            for row in own.values()
        )
        table.add_row(last, *ends)
    return table


def _width_table(group: Sequence[Row]) -> Table:
    """A line for each width."""
    table = plain_table(numbers=[heading for heading, _ in _width_cells(group[0])])
    for row in group:
        table.add_row(*(cell for _, cell in _width_cells(row)))
    return table


def _width_cells(row: Row) -> list[tuple[str, str]]:
    """What there is to say of one width, each with its heading."""
    found = row["engines"]["packed"]
    return [
        ("width", str(row["width"])),
        ("sparsity", f"{1 - row['weights'] / row['positions']:.5g}"),
        ("weights", f"{row['weights']:,}"),
        ("step", f"{found['median_ms']:.0f} ms"),
        ("times the first", f"{1 / found['ratio']:.2f} ({1 / found['highest']:.2f}-{1 / found['lowest']:.2f})"),
        ("training", f"{found['training']:.0f} MiB"),
        ("with building", f"{found['process']:.0f} MiB"),
        ("dense weights alone", f"{row['positions'] * 4 / 2**20:,.0f} MiB"),
    ]


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Make ``path`` a ``bench.json``; whatever happens, the old content or the new is there."""
    write_atomically(path, (json.dumps(content, indent=1) + "\n").encode())
