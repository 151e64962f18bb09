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
"""The kinds a figure shows; single products have their tables."""

PANEL = 3.1
"""Inches."""


def no_figure(kinds: Sequence[str]) -> str | None:
    """Why no figure can be drawn of these kinds of measurement, if none can."""
    if not set(kinds) & set(DRAWN):
        return "no figure is drawn: it would show training steps, next words, memory and widths"
    if importlib.util.find_spec("matplotlib") is None:
        return "no figure is drawn: it takes matplotlib (pip install 'selfish-rnn[bench]')"
    return None


def draw(path: Path) -> Path:
    """Draw a ``bench.json`` and put the picture beside it.

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
    """The content of a ``bench.json`` as a panel for each kind of measurement, in a line for each size."""
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
    found = saved["machine"]
    about = f"{found['processor']}, threads: {found['threads']}, kernels for {found['kernels'] or 'none'}"
    figure.supxlabel(f"{about}, torch {found['torch']}", fontsize=7, color=GREY)
    return figure


def _lines(rows: Sequence[Row]) -> Iterator[tuple[str, list[float], list[dict[str, Any]], dict[str, Any]]]:
    """Each engine that the figure shows, with where its points are, what was found there, and the look of its line."""
    for engine, one in ENGINES.items():
        own = [row for row in rows if engine in row["engines"]]
        if own and (one.colour or engine == own[0]["baseline"]):
            look = {"color": one.colour or GREY, "marker": one.marker, "label": label(engine, own[0])}
            yield engine, [row["ideal"] for row in own], [row["engines"][engine] for row in own], look


def _speed(axes: Any, rows: Sequence[Row]) -> None:
    """Both axes are logarithmic, so that the ideal is a straight line."""
    from matplotlib.patheffects import withStroke
    from matplotlib.ticker import LogLocator, NullFormatter

    ideals = [row["ideal"] for row in rows]
    axes.plot(ideals, ideals, linestyle=(0, (4, 3)), color=GREY, marker="_", label="ideal: 1/(1-S)", zorder=1)
    outline = [withStroke(linewidth=3, foreground="white")]  # readable where lines cross it
    bounds = [0.9, 2.5, *ideals]
    for engine, places, found, look in _lines(rows):
        if engine == rows[0]["baseline"]:
            axes.axhline(1, color=look["color"], linewidth=1, label=look["label"], zorder=1)
            continue
        ratios, lowest, highest = ([each[name] for each in found] for name in ("ratio", "lowest", "highest"))
        bounds += lowest + highest
        axes.plot(places, ratios, zorder=3, **look)
        axes.vlines(places, lowest, highest, color=look["color"], linewidth=1.2, zorder=2)
        for point in zip(places, ratios, strict=True) if engine in ("packed", "packed-int8") else ():
            text = {"color": look["color"], "path_effects": outline, "zorder": 4, "fontsize": 7}
            axes.annotate(f"{point[1]:.1f}", point, (5, -10), textcoords="offset points", **text)
    axes.set_yscale("log")
    # Above everything that is drawn there is room for the legend.
    axes.set_ylim(min(bounds) / 1.15, max(bounds) * (max(bounds) / min(bounds)) ** 0.45)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel("times as fast as the baseline")
    axes.legend(loc="upper left")


def _memory(axes: Any, rows: Sequence[Row]) -> None:
    highest = 0.0
    for _, places, found, look in _lines(rows):
        peaks = [each["training"] for each in found]
        highest = max(highest, *peaks)
        axes.plot(places, peaks, **look)
    ideals, imports = zip(*((row["ideal"], imports_alone(row)) for row in rows), strict=True)
    axes.plot(ideals, imports, linestyle=":", color=GREY, marker=".", label="imports alone")
    axes.set_ylim(0, 1.15 * highest)
    axes.set_ylabel("MiB")
    axes.legend(loc="lower left")


def _widths(axes: Any, rows: Sequence[Row]) -> None:
    """Time, memory and positions of one number of weights, each as a multiple of what the first width has."""
    found = [row["engines"]["packed"] for row in rows]
    widths = [row["width"] for row in rows]
    shown = len(axes.get_lines())
    look = {"color": ENGINES["packed"].colour, "alpha": 1.0 if not shown else 0.5}
    weights = f"{rows[0]['weights'] / 1e6:.1f} M weights"
    axes.plot(widths, [1 / each["ratio"] for each in found], marker="o", label=f"step time, {weights}", **look)
    peaks = [each["training"] / found[0]["training"] for each in found]
    axes.plot(widths, peaks, marker="s", linestyle=":", label=f"peak memory, {weights}", **look)
    if not shown:
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
    """Spaced like the logarithm of 1/(1-S), labelled with S, with room for a number right of the last point."""
    axes.set_xscale("log")
    axes.set_xlim(rows[0]["ideal"] / 1.2, rows[-1]["ideal"] * (1.25 if len(rows) == 1 else 1.55))
    axes.set_xticks([row["ideal"] for row in rows], [f"{row['sparsity']:g}" for row in rows])
    axes.minorticks_off()
    axes.set_xlabel("sparsity")


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
        "stream": "one step of one layer (40 inputs, state kept, called from Python)",
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
