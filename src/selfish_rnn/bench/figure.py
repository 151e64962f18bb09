"""The figure: speed-up over dense torch against sparsity, and peak memory."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from selfish_rnn.bench.report import imports_alone, label
from selfish_rnn.bench.running import TITLES, Row
from selfish_rnn.bench.settings import ENGINES

COLOURS = {"dense": "#555555", "no-onednn": "#5a8f29", "masked": "#d98e04", "packed": "#1b6ca8", "csr": "#a83279"}
MARKERS = {"dense": "o", "no-onednn": "D", "masked": "s", "packed": "o", "csr": "^"}


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def drawn(rows: Sequence[Row]) -> list[Row]:
    """Those a figure shows; single products have their tables."""
    return [row for row in rows if row.kind in TITLES]


def draw(rows: Sequence[Row], machine: dict[str, Any], path: Path) -> None:
    """A panel for each kind of measurement, a line of panels for each size."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = drawn(rows)
    kinds = [kind for kind in TITLES if any(row.kind == kind for row in shown)]
    sizes = list(dict.fromkeys((row.network, row.hidden) for row in shown))
    figure = Figure(figsize=(5.2 * len(kinds), 4.2 * len(sizes) + 0.5), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(sizes), len(kinds), squeeze=False)
    for (network, hidden), line in zip(sizes, panels, strict=True):
        for kind, axes in zip(kinds, line, strict=True):
            own = [row for row in shown if (row.kind, row.network, row.hidden) == (kind, network, hidden)]
            axes.set_title(f"{network} {hidden}: {TITLES[kind]}", fontsize=11)
            if own:
                (_memory if kind == "memory" else _speed)(axes, sorted(own, key=lambda row: row.sparsity))
    threads = f"{machine['threads']} thread" + ("s" if machine["threads"] != 1 else "")
    figure.supxlabel(
        f"{machine['processor']}, {threads}, kernels for {machine['kernels'] or 'none'}, torch {machine['torch']}",
        fontsize=8,
        color="#666666",
    )
    figure.savefig(path, dpi=150)


def _speed(axes: Any, rows: list[Row]) -> None:
    """Both axes are logarithmic, so that the ideal is a straight line."""
    ideals = [row.ideal for row in rows]
    bounds = [found[bound] for row in rows for found in row.engines.values() for bound in ("lowest", "highest")]
    _sparsity_axis(axes, rows)
    axes.set_yscale("log")
    axes.set_ylim(min(0.8, *bounds) / 1.1, max(2.5, *bounds, *ideals) * 1.3)
    axes.plot(ideals, ideals, linestyle=(0, (4, 3)), color="#999999", marker="_", label="ideal 1/(1-S)", zorder=1)
    axes.axhline(1, color="#555555", linewidth=1, label="dense torch", zorder=1)
    for engine in ENGINES[1:]:
        own = [row for row in rows if engine in row.engines]
        if not own:
            continue
        found = [row.engines[engine] for row in own]
        ratios = [each["ratio"] for each in found]
        axes.errorbar(
            [row.ideal for row in own],
            ratios,
            yerr=[
                [each["ratio"] - each["lowest"] for each in found],
                [each["highest"] - each["ratio"] for each in found],
            ],
            color=COLOURS[engine],
            marker=MARKERS[engine],
            markersize=5,
            capsize=3,
            linewidth=1.8,
            label=label(engine, rows[0].kind),
            zorder=3 if engine == "packed" else 2,
        )
        if engine == "packed":
            _write_beside(axes, [row.ideal for row in own], ratios)
    _numbers(axes)
    axes.set_ylabel("times as fast as dense torch")
    axes.legend(frameon=False, fontsize=9, loc="upper left")


def _write_beside(axes: Any, ideals: list[float], ratios: list[float]) -> None:
    """The ratios of the packed engine as numbers, readable where lines cross them."""
    from matplotlib.patheffects import withStroke

    for ideal, ratio in zip(ideals, ratios, strict=True):
        axes.annotate(
            f"{ratio:.1f}",
            (ideal, ratio),
            textcoords="offset points",
            xytext=(7, -11),
            fontsize=9,
            color=COLOURS["packed"],
            path_effects=[withStroke(linewidth=3, foreground="white")],
            zorder=4,
        )


def _memory(axes: Any, rows: list[Row]) -> None:
    _sparsity_axis(axes, rows)
    for engine in ENGINES:
        own = [row for row in rows if engine in row.engines]
        if own:
            axes.plot(
                [row.ideal for row in own],
                [row.engines[engine]["training"] for row in own],
                color=COLOURS[engine],
                marker=MARKERS[engine],
                markersize=5,
                linewidth=1.8,
                label=label(engine, "memory"),
            )
    axes.plot(
        [row.ideal for row in rows],
        [imports_alone(row) for row in rows],
        linestyle=":",
        color="#999999",
        marker=".",
        label="imports alone",
    )
    axes.set_ylim(0, 1.15 * max(found["training"] for row in rows for found in row.engines.values()))
    axes.set_ylabel("MiB")
    axes.legend(frameon=False, fontsize=9, loc="lower left")


def _sparsity_axis(axes: Any, rows: list[Row]) -> None:
    """Spaced like the logarithm of 1/(1-S), labelled with S."""
    from matplotlib.ticker import NullLocator

    axes.set_xscale("log")
    axes.set_xlim(rows[0].ideal / 1.15, rows[-1].ideal * 1.25)
    axes.set_xticks([row.ideal for row in rows], [f"{row.sparsity:g}" for row in rows])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("sparsity")
    axes.grid(alpha=0.25)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _numbers(axes: Any) -> None:
    """2, 5, 10 and not powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
