"""Tables of a benchmark, its file, and the data of its figure."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from selfish_rnn.analysis.figures import benchmarks as figures
from selfish_rnn.bench.engines import ENGINES, KINDS
from selfish_rnn.bench.measurements import Row, grouped
from selfish_rnn.bench.options import BenchOptions
from selfish_rnn.files import replacing, write_atomically
from selfish_rnn.text import plain_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DRAWN = ("step", "inference", "memory", "width")
"""Kinds in the figure. Single products have tables only."""


def no_figure(kinds: Sequence[str]) -> str | None:
    """Return the reason why no figure can be drawn of some kinds, or None."""
    if not set(kinds) & set(DRAWN):
        return "no figure is drawn: it shows training steps, next words, memory and widths"
    if importlib.util.find_spec("matplotlib") is None:
        return "no figure is drawn: it needs matplotlib (pip install 'selfish-rnn[bench]')"
    return None


def draw(path: Path) -> Path:
    """Draw a ``bench.json`` and write the picture next to it.

    ::

        draw(Path("results/bench/lstm-1500/bench.json"))
    """
    figure = figure_of(json.loads(path.read_text(encoding="utf-8")))
    picture = path.with_suffix(".png")
    with replacing(picture) as temporary:
        figure.savefig(temporary, dpi=250)
    return picture


def figure_of(saved: Mapping[str, Any]) -> Figure:
    """Draw the content of a ``bench.json``, with a column for each kind of measurement and a row for each size."""
    groups = [group for group in grouped(saved["rows"]) if group[0]["kind"] in DRAWN]
    kinds = [kind for kind in DRAWN if any(group[0]["kind"] == kind for group in groups)]
    panels: dict[tuple[str, int], dict[str, list[list[Row]]]] = {}
    for group in groups:
        size = group[0]["network"], group[0]["hidden"]
        panels.setdefault(size, {}).setdefault(group[0]["kind"], []).append(group)
    machine = saved["machine"]
    about = f"{machine['processor']}, threads: {machine['threads']}, kernels for {machine['kernels'] or 'none'}"
    rows = [
        [
            _panel(f"{network} {hidden}: {KINDS[kind]}", kind, by_kind[kind]) if kind in by_kind else None
            for kind in kinds
        ]
        for (network, hidden), by_kind in panels.items()
    ]
    return figures.benchmark(rows, f"{about}, torch {machine['torch']}")


def _panel(title: str, kind: str, groups: Sequence[Sequence[Row]]) -> figures.Panel:
    """Return the panel of a kind of measurement at one size. Only widths have several groups."""
    if kind == "width":
        return figures.WidthPanel(title, [_width_series(group) for group in groups], ENGINES["packed"].colour)
    rows = sorted(groups[0], key=lambda row: row["sparsity"])
    lines = list(_lines(rows, kind))
    if kind == "memory":
        sparsities = [row["sparsity"] for row in rows]
        imports = figures.EngineLine("imports alone", sparsities, [imports_alone(row) for row in rows])
        return figures.MemoryPanel(title, lines, imports)
    return figures.SpeedPanel(title, lines)


def _lines(rows: Sequence[Row], kind: str) -> Iterator[figures.EngineLine]:
    """Yield a line for each engine of the figure: the baseline, and engines with a colour."""
    for engine, style in ENGINES.items():
        measured = [row for row in rows if engine in row["engines"]]
        if not measured or not (style.colour or engine == measured[0]["baseline"]):
            continue
        results = [row["engines"][engine] for row in measured]
        speed = kind != "memory"
        yield figures.EngineLine(
            label(engine, measured[0]),
            [row["sparsity"] for row in measured],
            [result["ratio" if speed else "training"] for result in results],
            [result["lowest"] for result in results] if speed else (),
            [result["highest"] for result in results] if speed else (),
            colour=style.colour,
            marker=style.marker,
            is_baseline=speed and engine == rows[0]["baseline"],
            annotated=engine in ("packed", "packed-int8"),
        )


def _width_series(rows: Sequence[Row]) -> figures.WidthSeries:
    results = [row["engines"]["packed"] for row in rows]
    return figures.WidthSeries(
        rows[0]["weights"],
        [row["width"] for row in rows],
        [1 / result["ratio"] for result in results],
        [result["training"] / results[0]["training"] for result in results],
        [row["positions"] / rows[0]["positions"] for row in rows],
    )


def label(engine: str, row: Row) -> str:
    """Return the name of an engine in a table or a figure."""
    if engine == row["baseline"]:
        return f"{ENGINES[engine].label} (baseline)"
    return ENGINES[engine].label


def line(row: Row) -> str:
    """Return a row as one line, the baseline first."""
    if row["kind"] == "width":
        return f"{row['network']} with {row['weights']:,} weights: " + ", ".join(map(" ".join, _width_cells(row)))
    engines = sorted(row["engines"], key=lambda engine: engine != row["baseline"])
    cells = ", ".join(f"{label(engine, row)} {_cell(row, engine)}" for engine in engines)
    ideal = "" if row["kind"] == "memory" else f"; ideal {row['ideal']:.2f}"
    return f"{row['title']}, {row['network']} {row['hidden']}, sparsity {row['sparsity']:g}: {cells}{ideal}"


def _cell(row: Row, engine: str) -> str:
    """Return memory, the time of the baseline, or the median ratio with its range."""
    result = row["engines"].get(engine)
    if result is None:
        return "-"
    if row["kind"] == "memory":
        return f"{result['training']:.0f} MiB"
    if engine == row["baseline"]:
        time = result["median_ms"]
        return f"{time:.0f} ms" if time >= 100 else f"{time:.3g} ms"
    return f"{result['ratio']:.2f} ({result['lowest']:.1f}-{result['highest']:.1f})"


def imports_alone(row: Row) -> float:
    """Return the memory (MiB) of a process that has only imported the packages."""
    return float(min(result["imports"] for result in row["engines"].values()))


def show(console: Console, rows: Sequence[Row], options: BenchOptions) -> None:
    """Print a table with a title for each group."""
    for group in grouped(rows):
        title = f"\n{group[0]['network']} {group[0]['hidden']}, {_title(group[0], options)}"
        console.print(title, style="bold", markup=False, soft_wrap=True)
        console.print(_width_table(group) if group[0]["kind"] == "width" else _table(group))
    if any(row["baseline"] is not None for row in rows):
        console.print(
            "\nRatios are medians over rounds of the baseline's time divided by the engine's time, with their range. "
            "The baseline is the fastest dense engine that was measured. 1/(1-S) is the ratio if time were "
            "proportional to the number of weights.",
            soft_wrap=True,
        )


def _title(row: Row, options: BenchOptions) -> str:
    if row["kind"] == "width":
        return (
            f"sparsity {row['sparsity']:g}: as many weights in wider networks, training step (batch {options.batch}, "
            f"window {options.window}, vocabulary {options.vocabulary:,}, {options.optimizer}) and peak memory"
        )
    if row["kind"] == "memory":
        return f"peak memory of training, with a separate process for each engine ({options.optimizer})"
    titles = {
        "step": f"training step (batch {options.batch}, window {options.window}, "
        f"vocabulary {options.vocabulary:,}, {options.optimizer})",
        "inference": KINDS["inference"],
        "stream": "one step of one layer (40 inputs, state kept, called from Python)",
        "operators": f"one matrix of {4 * row['hidden']} x {row['hidden']}",
    }
    return f"{titles[row['kind']]}: time of {ENGINES[row['baseline']].label}, and relative speed of the others"


def _table(group: Sequence[Row]) -> Table:
    """Return a table with a row for each engine, the baseline first, and a column for each sparsity."""
    rows = sorted(group, key=lambda row: row["sparsity"])
    table = plain_table(["sparsity"], [f"{sparsity:g}" for sparsity in dict.fromkeys(row["sparsity"] for row in rows)])
    for title in dict.fromkeys(row["title"] for row in group):
        by_sparsity = {row["sparsity"]: row for row in rows if row["title"] == title}
        first = next(iter(by_sparsity.values()))
        if first["kind"] == "operators":
            table.add_row(title, style="bold")
        engines = [name for name in ENGINES if any(name in row["engines"] for row in by_sparsity.values())]
        for engine in sorted(engines, key=lambda engine: engine != first["baseline"]):
            table.add_row(label(engine, first), *(_cell(row, engine) for row in by_sparsity.values()))
        last = {"memory": "imports alone"}.get(first["kind"], "ideal: 1/(1-S)")
        ends = (
            f"{imports_alone(row):.0f} MiB" if first["kind"] == "memory" else f"{row['ideal']:.2f}"
            for row in by_sparsity.values()
        )
        table.add_row(last, *ends)
    return table


def _width_table(group: Sequence[Row]) -> Table:
    """Return a table with a row for each width."""
    table = plain_table(numbers=[heading for heading, _ in _width_cells(group[0])])
    for row in group:
        table.add_row(*(cell for _, cell in _width_cells(row)))
    return table


def _width_cells(row: Row) -> list[tuple[str, str]]:
    """Return the cells of a width with their headings."""
    result = row["engines"]["packed"]
    return [
        ("width", str(row["width"])),
        ("sparsity", f"{1 - row['weights'] / row['positions']:.5g}"),
        ("weights", f"{row['weights']:,}"),
        ("step", f"{result['median_ms']:.0f} ms"),
        ("times the first", f"{1 / result['ratio']:.2f} ({1 / result['highest']:.2f}-{1 / result['lowest']:.2f})"),
        ("training", f"{result['training']:.0f} MiB"),
        ("with building", f"{result['process']:.0f} MiB"),
        ("dense weights alone", f"{row['positions'] * 4 / 2**20:,.0f} MiB"),
    ]


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Write a ``bench.json`` atomically."""
    write_atomically(path, (json.dumps(content, indent=1) + "\n").encode())
