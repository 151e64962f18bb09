"""Tables and the figure of a benchmark."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selfish_rnn.analysis.figures.style import GREY, new_figure, styled
from selfish_rnn.bench.engines import ENGINES, KINDS
from selfish_rnn.bench.measurements import Row, grouped
from selfish_rnn.files import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from selfish_rnn.bench.options import BenchOptions
from selfish_rnn.files import write_atomically
from selfish_rnn.text import plain_table

DRAWN = ("step", "inference", "memory", "width")
"""Kinds in the figure. Single products have tables only."""

PANEL = 3.1
"""Inches."""


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


@styled
def figure_of(saved: Mapping[str, Any]) -> Figure:
    """Draw the content of a ``bench.json``, with a column for each kind of measurement and a row for each size."""
    groups = [group for group in grouped(saved["rows"]) if group[0]["kind"] in DRAWN]
    kinds = [kind for kind in DRAWN if any(group[0]["kind"] == kind for group in groups)]
    sizes = list(dict.fromkeys((group[0]["network"], group[0]["hidden"]) for group in groups))
    figure = new_figure(max(PANEL * len(kinds), 3.6), PANEL * len(sizes) + 0.3)
    figure.set_layout_engine("constrained", w_pad=0.12)
    panels = figure.subplots(len(sizes), len(kinds), squeeze=False)
    for group in groups:
        kind, network, hidden = (group[0][name] for name in ("kind", "network", "hidden"))
        axes = panels[sizes.index((network, hidden))][kinds.index(kind)]
        axes.set_title(f"{network} {hidden}: {KINDS[kind]}")
        if kind == "width":
            _widths(axes, group)
            continue
        rows = sorted(group, key=lambda row: row["sparsity"])
        _sparsity_axis(axes, rows)
        (_memory if kind == "memory" else _speed)(axes, rows)
    machine = saved["machine"]
    about = f"{machine['processor']}, threads: {machine['threads']}, kernels for {machine['kernels'] or 'none'}"
    figure.supxlabel(f"{about}, torch {machine['torch']}", fontsize=7, color=GREY)
    return figure


def _lines(rows: Sequence[Row]) -> Iterator[tuple[str, list[float], list[dict[str, Any]], dict[str, Any]]]:
    """Yield each engine of the figure with the positions and measurements of its points, and its line style."""
    for engine, style in ENGINES.items():
        measured = [row for row in rows if engine in row["engines"]]
        if measured and (style.colour or engine == measured[0]["baseline"]):
            look = {"color": style.colour or GREY, "marker": style.marker, "label": label(engine, measured[0])}
            yield engine, [row["ideal"] for row in measured], [row["engines"][engine] for row in measured], look


def _speed(axes: Any, rows: Sequence[Row]) -> None:
    """Draw speed with logarithmic axes, so that the ideal is a straight line."""
    from matplotlib.patheffects import withStroke
    from matplotlib.ticker import LogLocator, NullFormatter

    ideals = [row["ideal"] for row in rows]
    axes.plot(ideals, ideals, linestyle=(0, (4, 3)), color=GREY, marker="_", label="ideal: 1/(1-S)", zorder=1)
    outline = [withStroke(linewidth=3, foreground="white")]  # readable where lines cross it
    bounds = [0.9, 2.5, *ideals]
    for engine, xs, results, look in _lines(rows):
        if engine == rows[0]["baseline"]:
            axes.axhline(1, color=look["color"], linewidth=1, label=look["label"], zorder=1)
            continue
        ratios, lowest, highest = ([result[name] for result in results] for name in ("ratio", "lowest", "highest"))
        bounds += lowest + highest
        axes.plot(xs, ratios, zorder=3, **look)
        axes.vlines(xs, lowest, highest, color=look["color"], linewidth=1.2, zorder=2)
        for point in zip(xs, ratios, strict=True) if engine in ("packed", "packed-int8") else ():
            text = {"color": look["color"], "path_effects": outline, "zorder": 4, "fontsize": 7}
            axes.annotate(f"{point[1]:.1f}", point, (5, -10), textcoords="offset points", **text)
    axes.set_yscale("log")
    # Leave space for the legend above the lines.
    axes.set_ylim(min(bounds) / 1.15, max(bounds) * (max(bounds) / min(bounds)) ** 0.45)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel("times as fast as the baseline")
    axes.legend(loc="upper left")


def _memory(axes: Any, rows: Sequence[Row]) -> None:
    highest = 0.0
    for _, xs, results, look in _lines(rows):
        peaks = [result["training"] for result in results]
        highest = max(highest, *peaks)
        axes.plot(xs, peaks, **look)
    ideals, imports = zip(*((row["ideal"], imports_alone(row)) for row in rows), strict=True)
    axes.plot(ideals, imports, linestyle=":", color=GREY, marker=".", label="imports alone")
    axes.set_ylim(0, 1.15 * highest)
    axes.set_ylabel("MiB")
    axes.legend(loc="lower left")


def _widths(axes: Any, rows: Sequence[Row]) -> None:
    """Draw time, memory and positions for a number of weights, relative to those of the first width."""
    results = [row["engines"]["packed"] for row in rows]
    widths = [row["width"] for row in rows]
    line_count = len(axes.get_lines())
    look = {"color": ENGINES["packed"].colour, "alpha": 1.0 if not line_count else 0.5}
    weights = f"{rows[0]['weights'] / 1e6:.1f} M weights"
    axes.plot(widths, [1 / result["ratio"] for result in results], marker="o", label=f"step time, {weights}", **look)
    peaks = [result["training"] / results[0]["training"] for result in results]
    axes.plot(widths, peaks, marker="s", linestyle=":", label=f"peak memory, {weights}", **look)
    if not line_count:
        positions = [row["positions"] / rows[0]["positions"] for row in rows]
        axes.plot(widths, positions, linestyle=(0, (4, 3)), color=GREY, label="positions", zorder=1)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(widths, [f"{width}" for width in widths], rotation=45, fontsize=7)
    axes.minorticks_off()
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("hidden size")
    axes.set_ylabel(f"times that of {widths[0]} units")
    axes.legend(loc="upper left")


def _sparsity_axis(axes: Any, rows: Sequence[Row]) -> None:
    """Space sparsities by the logarithm of 1/(1-S), with space for a number after the last point."""
    axes.set_xscale("log")
    axes.set_xlim(rows[0]["ideal"] / 1.2, rows[-1]["ideal"] * (1.25 if len(rows) == 1 else 1.55))
    axes.set_xticks([row["ideal"] for row in rows], [f"{row['sparsity']:g}" for row in rows])
    axes.minorticks_off()
    axes.set_xlabel("sparsity")


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
