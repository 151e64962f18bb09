"""Figures of items, and figures of README and docs/results.md.

The points of a figure in a document are stored next to it as JSON, independent of the version of matplotlib. The SVG
names the SHA-256 of its points, so that a test can compare both.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from selfish_rnn.analysis import figures
from selfish_rnn.analysis.figures.style import save_svg
from selfish_rnn.analysis.records import RunRecord
from selfish_rnn.files import read_json, write_atomically
from selfish_rnn.reproduce.case import Case, Item
from selfish_rnn.reproduce.paper import ITEMS
from selfish_rnn.reproduce.paper.claims import DENSE
from selfish_rnn.reproduce.paper.comparisons import PARETO
from selfish_rnn.reproduce.plan import PlannedRun, pairs_of
from selfish_rnn.reproduce.rendering.tables import (
    BYTES,
    COSTS,
    HOURS,
    LATENCY,
    ResultView,
    averaging_start,
    costs_of,
    label_of,
)
from selfish_rnn.reproduce.rendering.verdicts import FAILS, HOLDS, decisions
from selfish_rnn.reproduce.results import Result

FOLDER = Path("docs/figures")
"""Folder of the figures of documents, in the repository."""

COLOURS = {HOLDS: "#009E73", FAILS: "#D55E00"}
"""Colours of the verdicts; others are grey. Rows also name their verdicts."""

METHODS = {"selfish": "Selfish", "rigl": "RigL", "set": "SET", "gmp": "GMP", "static": "static"}
"""Methods in the figure of quality against sparsity."""

BENCH, BENCH_INT8 = "bench/lstm-1500/bench.json", "bench/lstm-1500-inference/bench.json"
INT8_BYTES = "int8/next-word-1500.txt"

BY_SETTING = {
    "growth-interval": "growth_interval",
    "sparsity": "sparsity_sensitivity",
    "prune-rate": "prune_rate_sensitivity",
    "pruning": "pruning_comparison",
}
"""Drawing function of every figure of test perplexity against a setting."""

Figures = dict[str, Any]
Points = dict[str, Any]


def draw(item: Item, view: ResultView, folder: Path) -> list[Path]:
    """Draw the figures of an item that have results to ``folder/figure*``; return the files."""
    if find_spec("matplotlib") is None or item.kind not in _FIGURES:
        return []
    written: list[Path] = []
    for name, figure in _FIGURES[item.kind](item, view).items():
        written += figures.save(figure, folder / f"figure{name}")
    return written


def outcomes(item: Item, view: ResultView) -> list[dict[str, Any]]:
    """Return the lines of a figure of test perplexity against a setting."""
    lines: dict[str, dict[str, Any]] = {}
    for row in item.rows:
        tests = [result.summary["test_perplexity"] for result in view.of(item, row)]
        if not tests:
            continue
        label = f"{row.group}, {row.label.partition(',')[0]}" if "," in row.label else row.group
        line = lines.setdefault(label, {"label": label, "values": [], "perplexities": [], "spreads": [], "dense": None})
        if row.x is None:
            line["dense"] = statistics.fmean(tests)
            continue
        # Intervals are stored in epochs and drawn in updates.
        line["values"].append(row.x * (view.scale.updates if item.name == "growth-interval" else 1))
        line["perplexities"].append(statistics.fmean(tests))
        line["spreads"].append(statistics.stdev(tests) if len(tests) > 1 else 0.0)
    return [line for line in lines.values() if line["values"]]


def _by_setting(item: Item, view: ResultView) -> Figures:
    lines = [figures.Outcomes(**line) for line in outcomes(item, view)] if item.name in BY_SETTING else []
    return {"": getattr(figures, BY_SETTING[item.name])(lines)} if lines else {}


def _of_gates(item: Item, view: ResultView) -> Figures:
    return {
        f"-{row.case.network}": figures.gate_breakdown(_record(results[0]))
        for row in item.rows
        if row.case is not None and (results := view.of(item, row))
    }


def _of_large_weights(item: Item, view: ResultView) -> Figures:
    """Return a figure for each network with runs of several optimizers."""
    by_network: dict[str, list[Result]] = {}
    for row in item.rows:
        if row.case is not None:
            by_network.setdefault(row.case.network, []).extend(view.of(item, row)[:1])
    return {
        f"-{network}": figures.weights_above_threshold([_record(result) for result in results])
        for network, results in by_network.items()
        if len(results) > 1
    }


def _of_times(item: Item, view: ResultView) -> Figures:
    by_label = {row.label: results[0] for row in item.rows if (results := view.of(item, row))}
    if not by_label:
        return {}
    runs = [_record(result) for result in by_label.values()]
    return {"": figures.time_against_perplexity(runs, labels=list(by_label))}


def _of_distances(item: Item, view: ResultView) -> Figures:
    """Return a figure of the first measured pair of every row."""
    series: dict[str, list[Any]] = {}
    labels = {row.case: row.label for row in item.rows}
    for pair in pairs_of(item, view.scale, view.seeds):
        label, distances = labels[pair[0].case], view.results.distances(pair)
        if label in series or not distances:
            continue
        epochs = [int(record["epoch"]) for record in distances]
        matrices = [name for name in distances[0] if name not in ("epoch", "mean")] or ["mean"]
        series[label] = [
            figures.DistanceSeries(matrix, epochs, [record[matrix] for record in distances]) for matrix in matrices
        ]
    return {"": figures.distances(series)} if series else {}


def _of_costs(item: Item, view: ResultView) -> Figures:
    points = pareto_points(view)
    return {"": draw_pareto(points)} if points else {}


def _record(result: Result) -> RunRecord:
    """Return a result as the record of a run that figures show."""
    return RunRecord(name=result.run, settings=result.settings, epochs=result.epochs, summary=result.summary)


_FIGURES: dict[str, Callable[[Item, ResultView], Figures]] = {
    "perplexity": _by_setting,
    "gates": _of_gates,
    "large-weights": _of_large_weights,
    "time": _of_times,
    "distances": _of_distances,
    "pareto": _of_costs,
}


def pareto_points(view: ResultView) -> dict[str, Any]:
    """Return every trained network of the pareto comparison with its costs, learning curve and file."""
    root = view.results.folder.parent
    rows = [row for row in PARETO.rows if view.of(PARETO, row)]
    points = []
    for row in rows:
        result = view.of(PARETO, row)[0]
        costs = costs_of(result, root)
        points.append({
            "label": label_of(row),
            "test_perplexity": result.summary["test_perplexity"],
            "costs": {name: costs[name] for name in (LATENCY, BYTES, HOURS) if name in costs},
            "engine": costs.get("engine"),
            "hours": [round(seconds / 3600, 4) for seconds in result.series["seconds"]],
            "valid_perplexities": result.series["valid_perplexity"],
            "file": f"{view.scale.name}/{PARETO.name}/{result.run.replace('/', '-')}.json",
        })  # fmt: skip
    measured = any(LATENCY in point["costs"] for point in points)
    return {"networks": points, **({"costs": COSTS.as_posix()} if measured else {})} if points else {}


def draw_pareto(points: dict[str, Any], dark: bool = False) -> Any:
    """Draw the networks against latency, bytes and training time."""
    names = ("label", "test_perplexity", "costs", "hours", "valid_perplexities")
    networks = [figures.CostedNetwork(**{name: point[name] for name in names}) for point in points["networks"]]
    return figures.perplexity_against_cost(networks, dark=dark)


def claim_points(view: ResultView) -> Points:
    """Return every measured part of every claim: mean, interval, threshold and verdict, by the unit of its number."""
    panels: dict[str, list[Points]] = {}
    for decision in decisions(view):
        for part in decision.parts:
            if not part.values:
                continue
            low, high = (round(end, 4) if math.isfinite(end) else None for end in part.interval)
            network = "" if decision.network == decision.claim.networks[0] else f" ({decision.network})"
            panels.setdefault(part.unit, []).append({
                "label": f"{decision.claim.number}. {part.label}{network}",
                "mean": round(part.mean, 4), "low": low, "high": high, "threshold": round(-part.margin, 4) or 0.0,
                "verdict": part.verdict, "seeds": sorted(part.seeds),
            })  # fmt: skip
    return {"panels": panels} if panels else {}


def _draw_claims(points: Points, dark: bool) -> Any:
    panels = {
        unit: [
            figures.Estimate(
                row["label"],
                row["mean"],
                -math.inf if row["low"] is None else row["low"],
                math.inf if row["high"] is None else row["high"],
                row["verdict"],
                row["threshold"],
            )
            for row in rows
        ]
        for unit, rows in points["panels"].items()
    }
    return figures.forest_plot(panels, COLOURS, dark=dark)


def sparsity_points(view: ResultView) -> Points:
    """Return quality, speed and memory against sparsity, relative to the dense network, with the file of every line."""
    root = view.results.folder.parent
    panels = [
        {
            "title": "test perplexity\n(256 units)",
            "logarithmic": False,
            "lines": list(_quality_lines(view, root)),
        },
        {"title": "times as fast\n(1500 units)", "logarithmic": True, "lines": list(_speed_lines(root))},
        {"title": "memory\n(1500 units)", "logarithmic": True, "lines": list(_memory_lines(root))},
    ]
    panels = [panel for panel in panels if panel["lines"]]
    return {"panels": panels} if panels else {}


def _line(label: str, points: Iterable[tuple[float, float, float, float]], file: str) -> Points:
    """Return a line of (sparsity, value, lowest, highest), rounded so that the order of a sum does not matter."""
    columns = zip(("sparsities", "values", "low", "high"), zip(*sorted(points), strict=True), strict=True)
    return {"label": label, **{name: [round(x, 4) for x in column] for name, column in columns}, "file": file}


def _quality_lines(view: ResultView, root: Path) -> Iterable[Points]:
    """Yield a line for each method: test perplexity over that of the dense network, mean and range over common seeds.

    Averages that start before pruning ends are left out, because they do not measure the pruned network.
    """
    cases = dict.fromkeys(case for item in ITEMS.values() for case in item.cases)
    dense = _tests(view, DENSE)
    for method, label in METHODS.items():
        points = {}
        for case in cases:
            if case != Case(DENSE.network, method, sparsity=case.sparsity):
                continue
            tests = _tests(view, case)
            ratios = [tests[seed] / dense[seed] for seed in tests.keys() & dense.keys()]
            if ratios:
                sparsity = PlannedRun(view.scale, case, 1).experiment.sparsity
                points[sparsity] = (sparsity, statistics.fmean(sorted(ratios)), min(ratios), max(ratios))
        if points:
            yield _line(label, points.values(), view.results.folder.relative_to(root).as_posix())


def _tests(view: ResultView, case: Case) -> dict[int, float]:
    """Return the test perplexity of a case by seed, without those of stale averages."""
    results: dict[int, Result | None] = {
        seed: view.results.get(PlannedRun(view.scale, case, seed)) for seed in view.seeds or view.scale.seeds
    }
    return {
        seed: result.summary["test_perplexity"]
        for seed, result in results.items()
        if result is not None and not averaging_start(result)[1]
    }


def _speed_lines(root: Path) -> Iterable[Points]:
    for label, file, kind, engine in (
        ("training step", BENCH, "step", "packed"),
        ("next word, float32", BENCH, "inference", "packed"),
        ("next word, int8 over dense int8", BENCH_INT8, "inference", "packed-int8"),
    ):
        measured = [
            (row["sparsity"], row["engines"][engine]) for row in _rows(root / file, kind) if engine in row["engines"]
        ]
        if measured:
            points = ((sparsity, times["ratio"], times["lowest"], times["highest"]) for sparsity, times in measured)
            yield _line(label, points, file)


def _memory_lines(root: Path) -> Iterable[Points]:
    shares = [
        (row["sparsity"], row["engines"]["packed"]["training"] / row["engines"]["dense"]["training"])
        for row in _rows(root / BENCH, "memory")
    ]
    if shares:
        yield _line("training", ((sparsity, share, share, share) for sparsity, share in shares), BENCH)
    if (root / INT8_BYTES).exists():
        # A dense int8 weight takes one byte, a packed one also its position.
        matches = re.findall(
            r"^S = (\S+) packed int8, one call, avx512-vbmi.* (\S+)$", (root / INT8_BYTES).read_text(), re.MULTILINE
        )
        shares = [(float(sparsity), float(size) * (1 - float(sparsity))) for sparsity, size in matches]
        if shares:
            points = ((sparsity, share, share, share) for sparsity, share in shares)
            yield _line("int8 weights", points, INT8_BYTES)


def _rows(path: Path, kind: str) -> list[Points]:
    return [row for row in read_json(path)["rows"] if row["kind"] == kind] if path.exists() else []


def _draw_sparsity(points: Points, dark: bool) -> Any:
    panels = [
        figures.RatioPanel(
            panel["title"],
            [
                figures.RatioLine(line["label"], line["sparsities"], line["values"], line["low"], line["high"])
                for line in panel["lines"]
            ],
            panel["logarithmic"],
        )
        for panel in points["panels"]
    ]
    return figures.ratios_against_sparsity(panels, dark=dark)


FIGURES: Mapping[str, tuple[Callable[[ResultView], Points], Callable[[Points, bool], Any], str]] = {
    "figure-claims": (claim_points, _draw_claims, "Every comparison of the claims with its 90 % interval and verdict"),
    "figure-sparsity": (
        sparsity_points,
        _draw_sparsity,
        "Speed, memory and, once runs are finished, test perplexity against sparsity, relative to the dense network",
    ),
    "figure-pareto": (
        pareto_points,
        draw_pareto,
        "Test perplexity of large sparse and small dense networks against latency, bytes and training time",
    ),
}
"""Points, drawing function and description of every figure of a document."""


def file_name(name: str, scale: str) -> str:
    return f"{name.removeprefix('figure-')}-{scale}"


def picture(name: str, view: ResultView, folder: str) -> str:
    """Return the HTML of a figure, in light or dark like the reader's system.

    Args:
        name: Key of :data:`FIGURES`.
        view: Results of a scale.
        folder: Folder of the figures, relative to the document.
    """
    points, _, about = FIGURES[name]
    if not points(view):
        return "*No run is finished.*"
    base = f"{folder}/{file_name(name, view.scale.name)}"
    return (
        f'<picture>\n<source media="(prefers-color-scheme: dark)" srcset="{base}-dark.svg">\n'
        f'<img alt="{about}" src="{base}.svg">\n</picture>'
    )


def points_text(name: str, view: ResultView) -> str:
    """Return the points of a figure as JSON, empty if there is nothing to draw."""
    points = FIGURES[name][0](view)
    return json.dumps(points, indent=1) + "\n" if points else ""


def digest(text: str) -> str:
    return f"points sha256 {hashlib.sha256(text.encode()).hexdigest()}"


def is_current(name: str, view: ResultView, folder: Path) -> bool:
    """Return whether the points in a folder match the results, and both pictures match the points."""
    text = points_text(name, view)
    base = folder / file_name(name, view.scale.name)
    if not text:
        return True
    points, light, dark = (base.with_name(base.name + suffix) for suffix in (".json", ".svg", "-dark.svg"))
    return (
        points.exists()
        and points.read_text() == text
        and all(path.exists() and digest(text) in path.read_text() for path in (light, dark))
    )


def render_figure(name: str, view: ResultView, folder: Path) -> list[Path]:
    """Write the points of a figure and draw it in light and dark, unless they are current; return changed files."""
    if is_current(name, view, folder):
        return []
    text = points_text(name, view)
    base = folder / file_name(name, view.scale.name)
    draw = FIGURES[name][1]
    pictures = [
        save_svg(draw(json.loads(text), dark), base.with_name(f"{base.name}{suffix}.svg"), digest(text))
        for suffix, dark in (("", False), ("-dark", True))
    ]
    path = base.with_name(f"{base.name}.json")
    write_atomically(path, text.encode())
    return [path, *pictures]
