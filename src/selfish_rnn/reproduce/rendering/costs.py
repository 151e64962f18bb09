"""Measured costs of the networks of the pareto comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from selfish_rnn.files import read_json
from selfish_rnn.reproduce.results import Result

COSTS = Path("pareto/costs.json")
"""Costs of networks by width and sparsity, below the folder of results; written by tools/benchmarks/pareto_costs.py."""

LATENCY, BYTES, HOURS = "next word, int8 (ms)", "int8 weights (MB)", "core-hours of training"


def costs_of(result: Result, root: Path) -> dict[str, Any]:
    """Return the core-hours of a run and, where they were measured, the latency and bytes of its network in int8.

    The latency is that of the fastest engine, which is named, and the bytes are those of this engine.
    """
    costs: dict[str, Any] = {HOURS: round(result.summary["seconds"] * result.summary.get("threads", 1) / 3600, 3)}
    path = root / COSTS
    if not path.exists():
        return costs
    dense = result.settings["method"]["name"] == "dense"
    size = result.settings["model"]["hidden"], 0.0 if dense else result.settings["sparsity"]
    for row in read_json(path)["rows"]:
        if (row["units"], row["sparsity"]) == size:
            engine = min(row["latency_ms"], key=lambda name: float(row["latency_ms"][name]))
            costs |= {"engine": engine, LATENCY: row["latency_ms"][engine], BYTES: row["bytes"][engine] / 1e6}
    return costs
