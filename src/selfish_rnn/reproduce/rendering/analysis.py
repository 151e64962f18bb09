"""What the analysis room adds to results: operations, distances between topologies, drawn figures.

Everything here is asked for by name when it is needed, so that results can be made and rendered without it; what is not
there is a gap in a table and not an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

FIGURES = {
    "growth-interval": "growth_interval",
    "sparsity": "sparsity_sensitivity",
    "prune-rate": "prune_rate_sensitivity",
    "pruning": "pruning_comparison",
}
"""Figures of outcomes by a setting, and the functions that draw them."""

ROOM = "selfish_rnn.analysis"


def _part(name: str) -> Any:
    """A module of the analysis room, or nothing where it is not installed."""
    if find_spec(ROOM) is None or find_spec(f"{ROOM}.{name}") is None:
        return None
    return import_module(f"{ROOM}.{name}")


def draw(item: str, outcomes: Sequence[Mapping[str, Any]], path: Path) -> bool:
    """Draw the figure of an item to a file, if it has one and matplotlib is there; tell whether it was drawn.

    ``outcomes`` are lines of the figure: ``label``, ``values`` on the x-axis, ``perplexities``, ``spreads``, ``dense``.
    """
    figures = _part("figures")
    if figures is None or item not in FIGURES or not outcomes or find_spec("matplotlib") is None:
        return False
    lines = [figures.Outcomes(**line) for line in outcomes]
    getattr(figures, FIGURES[item])(lines).savefig(path)
    return True


def distances_over_time(first: Path, second: Path | None) -> list[dict[str, float]] | None:
    """Epoch by epoch, the distance of every matrix between two runs, or within one from its fifth epoch on.

    A record has ``epoch``, ``all`` for the whole network, and the matrices by name.
    """
    distance = _part("distance")
    if distance is None or not hasattr(distance, "distances_over_time"):
        return None
    records: list[dict[str, float]] = distance.distances_over_time(first, second)
    return records


def operations(settings: Mapping[str, Any], result: Mapping[str, Any]) -> tuple[float, float] | None:
    """Operations to train and to test as fractions of the dense network's."""
    flops = _part("flops")
    if flops is None or not hasattr(flops, "relative_operations"):
        return None
    train, test = flops.relative_operations(settings, result)
    return float(train), float(test)
