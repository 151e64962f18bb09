"""What there is to reproduce: how many runs, how long they take, and what is finished."""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from selfish_rnn.errors import UserError, unknown
from selfish_rnn.reproduce.case import DENSE, Item
from selfish_rnn.reproduce.paper import ITEMS
from selfish_rnn.reproduce.plan import PlannedRun, plan
from selfish_rnn.reproduce.results import Results
from selfish_rnn.reproduce.scales import Scale

DENSE_FACTOR = 1.7
"""A dense run takes about so many times as long as a sparse one, where none is finished to tell."""


@dataclass(frozen=True)
class Standing:
    """How far an item is: its runs, those that are finished, and the core-hours that all and the others take."""

    item: Item
    runs: int
    finished: int
    hours: float
    hours_left: float


def items_named(names: Iterable[str], scale: str | None = None) -> list[Item]:
    """The items of these names; another name, or an item that a scale does not have, is an error."""
    items = []
    for name in dict.fromkeys(names):
        if name not in ITEMS:
            raise UserError(unknown("item", name, ITEMS))
        item = ITEMS[name]
        if scale is not None and item.scales and scale not in item.scales:
            raise UserError(f"scale {scale} does not have {name}; the scales that have it: {', '.join(item.scales)}")
        items.append(item)
    return items


def standing(item: Item, scale: Scale, results: Results, seeds: Sequence[int], budget: float) -> Standing:
    planned = plan([item], scale, seeds)
    hours = {run.name: hours_of(run, item, results, budget) for run in planned}
    left = [run for run in planned if results.of(run) is None]
    return Standing(
        item, len(planned), len(planned) - len(left), sum(hours.values()), sum(hours[run.name] for run in left)
    )


def hours_of(run: PlannedRun, item: Item, results: Results, budget: float) -> float:
    """Core-hours of a run: as most finished runs of the network took, else as the scale's table says."""
    if item.shows == "time":
        return budget / 3600 * (os.cpu_count() or 1)
    same_kind = [
        float(result.summary["seconds"]) / 3600
        for result in results.of_network(run.case.network)
        if (result.settings["method"]["name"] in DENSE) == (not run.sparse)
    ]
    if same_kind:
        return statistics.median(same_kind)  # a mean would follow the few that were made on a busy machine
    return run.scale.hours[run.case.network] * (1 if run.sparse else DENSE_FACTOR)
