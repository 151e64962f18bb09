"""The figure of the pareto comparison: perplexity of trained networks against the measured costs of their sizes."""

from __future__ import annotations

from typing import Any

from selfish_rnn.analysis import figures
from selfish_rnn.reproduce.paper.comparisons import PARETO
from selfish_rnn.reproduce.rendering.costs import BYTES, COSTS, HOURS, LATENCY, costs_of
from selfish_rnn.reproduce.rendering.tables import Findings, label_of


def pareto_points(findings: Findings) -> dict[str, Any]:
    """Return every trained network of the comparison with its costs, curve and files."""
    root = findings.results.folder.parent
    rows = [row for row in PARETO.rows if findings.of(PARETO, row)]
    points = []
    for row in rows:
        result = findings.of(PARETO, row)[0]
        costs = costs_of(result, root)
        points.append({
            "label": label_of(row),
            "test_perplexity": result.summary["test_perplexity"],
            "costs": {name: costs[name] for name in (LATENCY, BYTES, HOURS) if name in costs},
            "engine": costs.get("engine"),
            "hours": [round(seconds / 3600, 4) for seconds in result.series["seconds"]],
            "valid_perplexities": result.series["valid_perplexity"],
            "file": f"{findings.scale.name}/{PARETO.name}/{result.run.replace('/', '-')}.json",
        })  # fmt: skip
    measured = any(LATENCY in point["costs"] for point in points)
    return {"networks": points, **({"costs": COSTS.as_posix()} if measured else {})} if points else {}


def draw_pareto(points: dict[str, Any], dark: bool = False) -> Any:
    """Draw the networks against latency, bytes and training time."""
    fields = ("label", "test_perplexity", "costs", "hours", "valid_perplexities")
    networks = [figures.CostedNetwork(**{field: point[field] for field in fields}) for point in points["networks"]]
    return figures.perplexity_against_cost(networks, dark=dark)
