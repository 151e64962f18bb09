"""What is said about a benchmark: lines and tables for a person, JSON for programs, a figure drawn from the JSON."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from selfish_rnn.bench.measurements import Group, Row, grouped
from selfish_rnn.bench.options import ENGINES, BenchOptions
from selfish_rnn.files import replacing, write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LABELS = {
    "dense": "dense torch",
    "no-onednn": "dense torch without oneDNN",
    "masked": "masked",
    "packed": "packed",
    "csr": "torch CSR",
    "sparseprop": "SparseProp",
}

DRAWN = {"step": "training step", "inference": "batch-1 inference", "memory": "peak memory of training"}
"""The kinds a figure shows, with their titles; single products have their tables."""

COLOURS = {"dense": "#555555", "no-onednn": "#5a8f29", "masked": "#d98e04", "packed": "#1b6ca8", "csr": "#a83279"}
MARKERS = {"dense": "o", "no-onednn": "D", "masked": "s", "packed": "o", "csr": "^"}


def label(engine: str, group: Group) -> str:
    """What an engine is called in a table or a figure."""
    if engine == group.baseline:
        return f"{LABELS[engine]} (baseline)"
    return LABELS[engine] + (" (products only)" if (engine, group.kind) == ("csr", "inference") else "")


def line(row: Row, group: Group) -> str:
    """A row in one line, the baseline first."""
    engines = sorted(row.engines, key=lambda engine: engine != group.baseline)
    cells = ", ".join(f"{label(engine, group)} {_cell(row, engine, group)}" for engine in engines)
    ideal = "" if row.kind == "memory" else f"; ideal {row.ideal:.2f}"
    return f"{row.title}, {row.network} {row.hidden}, sparsity {row.sparsity:g}: {cells}{ideal}"


def _cell(row: Row, engine: str, group: Group) -> str:
    """Memory, the time of the baseline, or the median of the ratios with the lowest and the highest."""
    found = group.engines_of(row).get(engine)
    if found is None:
        return "-"
    if row.kind == "memory":
        return f"{found['training']:.0f} MiB"
    if engine == group.baseline:
        time = found["median_ms"]
        return f"{time:.0f} ms" if time >= 100 else f"{time:.3g} ms"
    return f"{found['ratio']:.2f} ({found['lowest']:.2f} to {found['highest']:.2f})"


def show(console: Console, rows: Sequence[Row], options: BenchOptions) -> None:
    """A table for each group, with a title."""
    for group in grouped(rows):
        title = f"\n{group.network} {group.hidden}, {_title(group, options)}"
        console.print(title, style="bold", markup=False, soft_wrap=True)
        console.print(_table(group))
    if any(row.kind != "memory" for row in rows):
        console.print(
            "\nRatios are medians over the rounds of the baseline's time / own time in the same round, with the lowest "
            "and the highest; the baseline is the fastest dense torch that was measured; 1/(1-S) is what ratios would "
            "be if time were proportional to the number of weights.",
            soft_wrap=True,
        )


def _title(group: Group, options: BenchOptions) -> str:
    if group.baseline is None:
        return f"peak memory of training, each engine in a process of its own ({options.optimizer})"
    titles = {
        "step": f"training step (batch {options.batch}, window {options.window}, "
        f"vocabulary {options.vocabulary:,}, {options.optimizer})",
        "inference": "batch-1 inference",
        "operators": f"one matrix of {4 * group.hidden} x {group.hidden}",
    }
    return f"{titles[group.kind]}: time of {LABELS[group.baseline]}, and how many times as fast the others are"


def _table(group: Group) -> Table:
    engines = [engine for engine in ENGINES if any(engine in row.engines for row in group.rows)]
    engines.sort(key=lambda engine: engine != group.baseline)
    headings = ["sparsity", "1/(1-S)", *(label(engine, group) for engine in engines)]
    table = Table(box=None, padding=(0, 2, 0, 0))
    if group.kind == "operators":
        table.add_column("product")
    if group.kind == "memory":
        headings.append("imports alone")
    for heading in headings:
        table.add_column(heading, justify="right")
    # Products are compared over sparsities, so those of one name stand together.
    titles = list(dict.fromkeys(row.title for row in group.rows))
    for row in sorted(group.rows, key=lambda row: titles.index(row.title)):
        cells = [f"{row.sparsity:g}", f"{row.ideal:.2f}", *(_cell(row, engine, group) for engine in engines)]
        if group.kind == "operators":
            cells.insert(0, row.title)
        if group.kind == "memory":
            cells.append(f"{row.imports_alone:.0f} MiB")
        table.add_row(*cells)
    return table


def write(path: Path, rows: Sequence[Row], **about: Any) -> None:
    """Make ``path`` a ``bench.json`` with these rows; whatever happens, the old content or the new is there."""
    content = {**about, "rows": [group.as_json(row) for group in grouped(rows) for row in group.rows]}
    write_atomically(path, (json.dumps(content, indent=1) + "\n").encode())


def no_figure(kinds: Sequence[str]) -> str | None:
    """Why no figure can be drawn of these kinds of measurement, if none can."""
    if not set(kinds) & set(DRAWN):
        return "no figure is drawn: it would show training steps, batch-1 inference and memory"
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
        figure.savefig(temporary, dpi=200)
    return picture


def figure_of(saved: Mapping[str, Any]) -> Figure:
    """The content of a ``bench.json`` as a panel for each kind of measurement, in a line for each size."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    groups = [group for group in grouped(map(Row.from_json, saved["rows"])) if group.kind in DRAWN]
    kinds = [kind for kind in DRAWN if any(group.kind == kind for group in groups)]
    sizes = list(dict.fromkeys((group.network, group.hidden) for group in groups))
    # Three panels are about as wide as a page, so that type keeps its size.
    size = (max(3.4 * len(kinds), 4.4), 3.5 * len(sizes) + 0.3)
    figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.12))
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(sizes), len(kinds), squeeze=False)
    for group in groups:
        axes = panels[sizes.index((group.network, group.hidden))][kinds.index(group.kind)]
        axes.set_title(f"{group.network} {group.hidden}: {DRAWN[group.kind]}", fontsize=10)
        rows = sorted(group.rows, key=lambda row: row.sparsity)
        _sparsity_axis(axes, rows)
        (_memory if group.kind == "memory" else _speed)(axes, rows, group)
    found = saved["machine"]
    about = f"{found['processor']}, threads: {found['threads']}, kernels for {found['kernels'] or 'none'}"
    figure.supxlabel(f"{about}, torch {found['torch']}", fontsize=8, color="#666666")
    return figure


def _speed(axes: Any, rows: list[Row], group: Group) -> None:
    """Both axes are logarithmic, so that the ideal is a straight line."""
    from matplotlib.patheffects import withStroke
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    ideals = [row.ideal for row in rows]
    axes.plot(ideals, ideals, linestyle=(0, (4, 3)), color="#999999", marker="_", label="ideal: 1/(1-S)", zorder=1)
    baseline = str(group.baseline)
    axes.axhline(1, color=COLOURS[baseline], linewidth=1, label=label(baseline, group), zorder=1)
    bounds = [0.9, 2.5, *ideals]
    for engine in ENGINES:
        own = [(row.ideal, group.engines_of(row)[engine]) for row in rows if engine in row.engines]
        if not own or engine == group.baseline:
            continue
        places, found = zip(*own, strict=True)
        ratios, lowest, highest = ([each[name] for each in found] for name in ("ratio", "lowest", "highest"))
        bounds += lowest + highest
        axes.plot(places, ratios, zorder=3, **_style(engine, group))
        axes.vlines(places, lowest, highest, color=COLOURS[engine], linewidth=1.2, zorder=2)
        for place, ratio in zip(places, ratios, strict=True) if engine == "packed" else ():
            axes.annotate(
                f"{ratio:.1f}",
                (place, ratio),
                textcoords="offset points",
                xytext=(5, -11),
                fontsize=8,
                color=COLOURS[engine],
                path_effects=[withStroke(linewidth=3, foreground="white")],  # readable where lines cross it
                zorder=4,
            )
    axes.set_yscale("log")
    # Above everything that is drawn there is room for the legend.
    axes.set_ylim(min(bounds) / 1.15, max(bounds) * (max(bounds) / min(bounds)) ** 0.45)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel("times as fast as the baseline", fontsize=9)
    axes.legend(frameon=False, fontsize=8, loc="upper left")


def _style(engine: str, group: Group) -> dict[str, Any]:
    own = {"color": COLOURS[engine], "marker": MARKERS[engine], "label": label(engine, group)}
    return {**own, "markersize": 4, "linewidth": 1.6}


def _memory(axes: Any, rows: list[Row], group: Group) -> None:
    for engine in ENGINES:
        own = [(row.ideal, row.engines[engine]["training"]) for row in rows if engine in row.engines]
        if own:
            axes.plot(*zip(*own, strict=True), **_style(engine, group))
    imports = [row.imports_alone for row in rows]
    axes.plot([row.ideal for row in rows], imports, linestyle=":", color="#999999", marker=".", label="imports alone")
    axes.set_ylim(0, 1.15 * max(found["training"] for row in rows for found in row.engines.values()))
    axes.set_ylabel("MiB", fontsize=9)
    axes.legend(frameon=False, fontsize=8, loc="lower left")


def _sparsity_axis(axes: Any, rows: list[Row]) -> None:
    """Spaced like the logarithm of 1/(1-S), labelled with S, with room for a number right of the last point."""
    from matplotlib.ticker import NullLocator

    axes.set_xscale("log")
    axes.set_xlim(rows[0].ideal / 1.2, rows[-1].ideal * (1.25 if len(rows) == 1 else 1.55))
    axes.set_xticks([row.ideal for row in rows], [f"{row.sparsity:g}" for row in rows])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.tick_params(labelsize=8)
    axes.set_xlabel("sparsity", fontsize=9)
    axes.grid(alpha=0.25)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
