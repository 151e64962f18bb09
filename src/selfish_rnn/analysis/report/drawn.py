"""What the page draws: the series of every run and pictures of topologies, as plain data."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from selfish_rnn.analysis.connectivity import degree_shares, density_map
from selfish_rnn.analysis.names import gate_name, short_names
from selfish_rnn.analysis.records import EpochRecord, RunRecord
from selfish_rnn.analysis.report.comparison import Comparison
from selfish_rnn.topology import Topology

MEASURES: dict[str, tuple[str, bool, Callable[[EpochRecord], float]]] = {
    "valid": ("validation perplexity", True, lambda epoch: epoch.valid_perplexity),
    "train": ("training perplexity", True, lambda epoch: epoch.train_perplexity),
    "above": ("share of weights above 0.1", False, lambda epoch: _share_above(epoch)),
    "sparsity": ("sparsity", False, lambda epoch: epoch.sparsity),
    "prune": ("prune rate", False, lambda epoch: epoch.prune_rate),
    "rate": ("learning rate", False, lambda epoch: epoch.learning_rate),
}
"""What can be followed over the epochs: its name, whether its axis is logarithmic, and how an epoch tells of it."""

BINS = 24
"""Places of a density map along each side, and about as many bins of a distribution."""


def series(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """Every run with its series, and the groups they belong to."""
    groups = [group for comparison in comparisons for group in comparison.groups]
    runs = [(number, run) for number, group in enumerate(groups) for run in group.runs]
    return {
        "measures": [{"key": key, "label": label, "log": log} for key, (label, log, _) in MEASURES.items()],
        "groups": [group.label for group in groups],
        "runs": [
            {
                "name": run.name,
                "group": number,
                "epoch": [epoch.epoch for epoch in run.epochs],
                "minutes": [_number(epoch.seconds / 60) for epoch in run.epochs],
                "averaging": run.averaging_starts,
                "restarts": run.restarts,
                **{key: [_number(of(epoch)) for epoch in run.epochs] for key, (_, _, of) in MEASURES.items()},
            }
            for number, run in runs
        ],
    }


def topology_pictures(record: RunRecord, topologies: Mapping[str, Topology]) -> dict[str, Any]:
    """Of each matrix a density map of every gate as bytes, and how many weights its units have."""
    return {
        "run": record.name,
        "matrices": [
            {
                "name": name,
                "short": short,
                "gates": [_map(topology, gate) for gate in topology.gates.names],
                "received": _degrees(topology, sent=False),
                "sent": _degrees(topology, sent=True),
            }
            for (name, topology), short in zip(topologies.items(), short_names(list(topologies)), strict=True)
        ],
    }


def _map(topology: Topology, gate: str) -> dict[str, Any]:
    found = density_map(topology, gate, BINS)
    pixels = np.round(255 * found).astype(np.uint8)
    return {
        "name": gate_name(gate),
        "rows": pixels.shape[0],
        "columns": pixels.shape[1],
        "pixels": base64.b64encode(pixels.tobytes()).decode(),
    }


def _degrees(topology: Topology, *, sent: bool) -> dict[str, Any]:
    shares = degree_shares(topology, sent=sent, bins=BINS)
    return {
        "from": float(shares.edges[0]),
        "step": float(shares.edges[1] - shares.edges[0]),
        "gates": [_rounded(found) for found in shares.gates.values()],
        "random": _rounded(shares.random),
    }


def _share_above(epoch: EpochRecord) -> float:
    return sum(epoch.weights_above.values()) / epoch.active_weights if epoch.active_weights else math.nan


def _rounded(values: Any) -> list[float]:
    return [round(float(value), 4) for value in values]


def _number(value: float) -> float | None:
    """Six digits are more than a screen shows; JSON knows neither NaN nor infinity."""
    return float(f"{value:.6g}") if math.isfinite(value) else None
