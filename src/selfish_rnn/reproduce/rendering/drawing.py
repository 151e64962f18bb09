"""Figures of items, drawn by the analysis room where matplotlib is installed."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from selfish_rnn.analysis import figures
from selfish_rnn.analysis.records import RunRecord
from selfish_rnn.reproduce.case import Item
from selfish_rnn.reproduce.distances import pairs_of
from selfish_rnn.reproduce.rendering.pareto import draw_pareto, pareto_points
from selfish_rnn.reproduce.rendering.tables import Findings
from selfish_rnn.reproduce.results import Result

BY_SETTING = {
    "growth-interval": "growth_interval",
    "sparsity": "sparsity_sensitivity",
    "prune-rate": "prune_rate_sensitivity",
    "pruning": "pruning_comparison",
}
"""Figures of test perplexity against a setting, and the functions that draw them."""


def draw(item: Item, findings: Findings, folder: Path) -> list[Path]:
    """Draw the figures of an item to ``folder/figure*``, as many as there are results for; return the files."""
    if find_spec("matplotlib") is None or item.shows not in _FIGURES:
        return []
    written: list[Path] = []
    for name, figure in _FIGURES[item.shows](item, findings).items():
        written += figures.save(figure, folder / f"figure{name}")
    return written


def outcomes(item: Item, findings: Findings) -> list[dict[str, Any]]:
    """The lines of a figure of test perplexity against a setting."""
    lines: dict[str, dict[str, Any]] = {}
    for row in item.rows:
        tests = [result.summary["test_perplexity"] for result in findings.of(item, row)]
        if not tests:
            continue
        label = f"{row.group}, {row.label.partition(',')[0]}" if "," in row.label else row.group
        line = lines.setdefault(label, {"label": label, "values": [], "perplexities": [], "spreads": [], "dense": None})
        if row.place is None:
            line["dense"] = statistics.fmean(tests)
            continue
        # Intervals are given in epochs and drawn in updates.
        line["values"].append(row.place * (findings.scale.updates if item.name == "growth-interval" else 1))
        line["perplexities"].append(statistics.fmean(tests))
        line["spreads"].append(statistics.stdev(tests) if len(tests) > 1 else 0.0)
    return [line for line in lines.values() if line["values"]]


Figures = dict[str, Any]


def _by_setting(item: Item, findings: Findings) -> Figures:
    lines = [figures.Outcomes(**line) for line in outcomes(item, findings)] if item.name in BY_SETTING else []
    return {"": getattr(figures, BY_SETTING[item.name])(lines)} if lines else {}


def _of_gates(item: Item, findings: Findings) -> Figures:
    return {
        f"-{row.case.network}": figures.gate_breakdown(_record(results[0]))
        for row in item.rows
        if row.case is not None and (results := findings.of(item, row))
    }


def _of_large_weights(item: Item, findings: Findings) -> Figures:
    """A figure for each network that has a run with each optimizer."""
    by_network: dict[str, list[Result]] = {}
    for row in item.rows:
        if row.case is not None:
            by_network.setdefault(row.case.network, []).extend(findings.of(item, row)[:1])
    return {
        f"-{network}": figures.weights_above_threshold([_record(result) for result in results])
        for network, results in by_network.items()
        if len(results) > 1
    }


def _of_times(item: Item, findings: Findings) -> Figures:
    found = {row.label: results[0] for row in item.rows if (results := findings.of(item, row))}
    if not found:
        return {}
    records = [_record(result) for result in found.values()]
    return {"": figures.time_against_perplexity(records, labels=list(found))}


def _of_distances(item: Item, findings: Findings) -> Figures:
    """The first pair of every row that was measured."""
    series: dict[str, list[Any]] = {}
    labels = {row.case: row.label for row in item.rows}
    for pair in pairs_of(item, findings.scale, findings.seeds):
        label, records = labels[pair[0].case], findings.distances.of(pair)
        if label in series or not records:
            continue
        epochs = [int(record["epoch"]) for record in records]
        matrices = [name for name in records[0] if name not in ("epoch", "mean")] or ["mean"]
        series[label] = [
            figures.DistanceSeries(matrix, epochs, [record[matrix] for record in records]) for matrix in matrices
        ]
    return {"": figures.distances(series)} if series else {}


def _of_costs(item: Item, findings: Findings) -> Figures:
    points = pareto_points(findings)
    return {"": draw_pareto(points)} if points else {}


def _record(result: Result) -> RunRecord:
    """Return a result as the record of a run that figures show."""
    return RunRecord(name=result.run, settings=result.settings, epochs=result.epochs, summary=result.summary)


_FIGURES: dict[str, Callable[[Item, Findings], Figures]] = {
    "perplexity": _by_setting,
    "gates": _of_gates,
    "large-weights": _of_large_weights,
    "time": _of_times,
    "distances": _of_distances,
    "pareto": _of_costs,
}
