"""Figures of README and docs/results.md: their points as data, and the drawing of these points.

The points of a figure are kept beside it as JSON, which any version of matplotlib draws alike. The SVG names the
SHA-256 of its points, so that a figure and its points cannot part.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from selfish_rnn.analysis import figures
from selfish_rnn.analysis.figures.style import save_svg
from selfish_rnn.files import read_json, write_atomically
from selfish_rnn.reproduce.case import Case
from selfish_rnn.reproduce.paper import ITEMS
from selfish_rnn.reproduce.paper.claims import DENSE
from selfish_rnn.reproduce.plan import PlannedRun
from selfish_rnn.reproduce.rendering.averaging import averaging_of
from selfish_rnn.reproduce.rendering.decisions import decisions
from selfish_rnn.reproduce.rendering.pareto import draw_pareto, pareto_points
from selfish_rnn.reproduce.rendering.tables import Findings
from selfish_rnn.reproduce.rendering.verdicts import FAILS, HOLDS
from selfish_rnn.reproduce.results import Result

FOLDER = Path("docs/figures")

COLOURS = {HOLDS: "#009E73", FAILS: "#D55E00"}
"""Colours of the verdicts; the others are grey. A verdict is also written beside its row."""

METHODS = {"selfish": "Selfish", "rigl": "RigL", "set": "SET", "gmp": "GMP", "static": "static"}
"""Methods whose quality is drawn against sparsity."""

BENCH, BENCH_INT8 = "bench/lstm-1500/bench.json", "bench/lstm-1500-inference/bench.json"
INT8_BYTES = "int8/next-word-1500.txt"

Points = dict[str, Any]


def claim_points(findings: Findings) -> Points:
    """Return every measured part of every claim: mean, interval, threshold and verdict, by the unit of its number."""
    panels: dict[str, list[Points]] = {}
    for decision in decisions(findings):
        for part in decision.parts:
            evidence = part.evidence
            if not evidence.values:
                continue
            low, high = (round(end, 4) if math.isfinite(end) else None for end in evidence.interval)
            network = "" if decision.network == decision.claim.networks[0] else f" ({decision.network})"
            panels.setdefault(part.part.unit, []).append({
                "label": f"{decision.claim.number}. {part.label}{network}",
                "mean": round(evidence.mean, 4), "low": low, "high": high, "threshold": round(-part.margin, 4) or 0.0,
                "verdict": evidence.verdict, "seeds": sorted(part.values),
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


def sparsity_points(findings: Findings) -> Points:
    """Return quality, speed and memory against sparsity, relative to the dense network, with the file of every line."""
    root = findings.results.folder.parent
    panels = [
        {
            "title": "test perplexity\n(256 units)",
            "logarithmic": False,
            "lines": list(_quality_lines(findings, root)),
        },
        {"title": "times as fast\n(1500 units)", "logarithmic": True, "lines": list(_speed_lines(root))},
        {"title": "memory\n(1500 units)", "logarithmic": True, "lines": list(_memory_lines(root))},
    ]
    panels = [panel for panel in panels if panel["lines"]]
    return {"panels": panels} if panels else {}


def _line(label: str, points: Iterable[tuple[float, float, float, float]], file: str) -> Points:
    """Return a line of (sparsity, value, lowest, highest), rounded so that the last digits of a sum do not matter."""
    columns = zip(("sparsities", "values", "low", "high"), zip(*sorted(points), strict=True), strict=True)
    return {"label": label, **{name: [round(x, 4) for x in column] for name, column in columns}, "file": file}


def _quality_lines(findings: Findings, root: Path) -> Iterable[Points]:
    """Yield a line for each method: test perplexity over that of the dense network, mean and range over common seeds.

    Averages that start before pruning ends are left out, because they do not measure the pruned network.
    """
    cases = dict.fromkeys(case for item in ITEMS.values() for case in item.cases)
    dense = _tests(findings, DENSE)
    for method, label in METHODS.items():
        points = {}
        for case in cases:
            if case != Case(DENSE.network, method, sparsity=case.sparsity):
                continue
            tests = _tests(findings, case)
            ratios = [tests[seed] / dense[seed] for seed in tests.keys() & dense.keys()]
            if ratios:
                sparsity = PlannedRun(findings.scale, case, 1).experiment.sparsity
                points[sparsity] = (sparsity, statistics.fmean(sorted(ratios)), min(ratios), max(ratios))
        if points:
            yield _line(label, points.values(), findings.results.folder.relative_to(root).as_posix())


def _tests(findings: Findings, case: Case) -> dict[int, float]:
    """Return the test perplexity of a case by seed, without those of stale averages."""
    results: dict[int, Result | None] = {
        seed: findings.results.of(PlannedRun(findings.scale, case, seed))
        for seed in findings.seeds or findings.scale.seeds
    }
    return {
        seed: result.summary["test_perplexity"]
        for seed, result in results.items()
        if result is not None and not averaging_of(result).stale
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
        bytes_left = [(float(sparsity), float(size) * (1 - float(sparsity))) for sparsity, size in matches]
        if bytes_left:
            points = ((sparsity, share, share, share) for sparsity, share in bytes_left)
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


FIGURES: Mapping[str, tuple[Callable[[Findings], Points], Callable[[Points, bool], Any], str]] = {
    "figure-claims": (claim_points, _draw_claims, "Every comparison of the claims with its 90 % interval and verdict"),
    "figure-sparsity": (
        sparsity_points,
        _draw_sparsity,
        "Test perplexity, speed and memory against sparsity, relative to the dense network",
    ),
    "figure-pareto": (
        pareto_points,
        draw_pareto,
        "Test perplexity of large sparse and small dense networks against latency, bytes and training time",
    ),
}
"""Points, drawing and description of every figure that a document can ask for."""


def file_name(name: str, scale: str) -> str:
    return f"{name.removeprefix('figure-')}-{scale}"


def picture(name: str, findings: Findings, folder: str) -> str:
    """Return the HTML that shows a figure, in light or dark as the reader's system is.

    Args:
        name: a key of FIGURES.
        findings: results of a scale.
        folder: folder of the figures, relative to the document.
    """
    points, _, about = FIGURES[name]
    if not points(findings):
        return "*No run is finished.*"
    base = f"{folder}/{file_name(name, findings.scale.name)}"
    return (
        f'<picture>\n<source media="(prefers-color-scheme: dark)" srcset="{base}-dark.svg">\n'
        f'<img alt="{about}" src="{base}.svg">\n</picture>'
    )


def points_text(name: str, findings: Findings) -> str:
    """Return the points of a figure as JSON, empty if there is nothing to draw."""
    points = FIGURES[name][0](findings)
    return json.dumps(points, indent=1) + "\n" if points else ""


def digest(text: str) -> str:
    return f"points sha256 {hashlib.sha256(text.encode()).hexdigest()}"


def is_current(name: str, findings: Findings, folder: Path) -> bool:
    """Return whether the points in a folder are those of the results, and both pictures are drawn from them."""
    text = points_text(name, findings)
    base = folder / file_name(name, findings.scale.name)
    if not text:
        return True
    points, light, dark = (base.with_name(base.name + suffix) for suffix in (".json", ".svg", "-dark.svg"))
    return (
        points.exists()
        and points.read_text() == text
        and all(path.exists() and digest(text) in path.read_text() for path in (light, dark))
    )


def render_figure(name: str, findings: Findings, folder: Path) -> list[Path]:
    """Write the points of a figure and draw it in light and dark, unless the files are current; return what changed."""
    if is_current(name, findings, folder):
        return []
    text = points_text(name, findings)
    base = folder / file_name(name, findings.scale.name)
    draw = FIGURES[name][1]
    pictures = [
        save_svg(draw(json.loads(text), dark), base.with_name(f"{base.name}{suffix}.svg"), digest(text))
        for suffix, dark in (("", False), ("-dark", True))
    ]
    path = base.with_name(f"{base.name}.json")
    write_atomically(path, text.encode())
    return [path, *pictures]
