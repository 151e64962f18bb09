"""What the paper's experiments cost on more cores than one: arithmetic from the plan of ``reproduce --scale paper``.

    python tools/benchmarks/paper_costs.py

Every run has one core and goes on from its checkpoint where it is lost; the longest runs start first.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from selfish_rnn.reproduce.paper import ITEMS
from selfish_rnn.reproduce.plan import plan
from selfish_rnn.reproduce.results import DENSE_FACTOR
from selfish_rnn.reproduce.scales import SCALES

NETWORKS = {
    "stacked LSTM": ("stacked-lstm",),
    "RHN": ("rhn",),
    "ON-LSTM": ("on-lstm", "on-lstm-1300"),
    "AWD-LSTM-MoS": ("awd-lstm-mos",),
}
CORES = (1, 8, 64)
SPOT_CORES = 512

BETWEEN_LOSSES = 5.0
"""Hours after which a spot machine is taken away, on average."""

LOST = 10 / 60 / 2 + 0.5 / 60 + 0.5 / 60
"""Hours that a loss costs: half of ``checkpoint_every``, until the cluster notices, until the run has started again."""

DOLLARS, SPOT_DOLLARS = 0.04, 0.01
"""Assumed prices of a core-hour."""


def run_hours() -> dict[str, list[float]]:
    """Core-hours of every run, by network; a run that several items share is there once."""
    scale = SCALES["paper"]
    runs = plan([item for item in ITEMS.values() if item.kind != "time"], scale)
    hours = {run.name: scale.hours[run.case.network] * (1 if run.sparse else DENSE_FACTOR) for run in runs}
    return {
        title: [hours[run.name] for run in runs if run.case.network in networks] for title, networks in NETWORKS.items()
    }


def makespan(hours: Sequence[float], cores: int) -> float:
    """When the last run ends, if whoever is free takes the longest that is left."""
    ends = [0.0] * cores
    for length in sorted(hours, reverse=True):
        heapq.heapreplace(ends, ends[0] + length)
    return max(ends)


def spot_factor() -> float:
    """How much longer a run takes on machines that are taken away."""
    return 1 / (1 - LOST / BETWEEN_LOSSES)


def main() -> None:
    heads = [f"{cores} cores" if cores > 1 else "1 core" for cores in CORES] + [f"{SPOT_CORES} spot cores"]
    print("| network | runs | core-hours | longest run | " + " | ".join(heads) + " | dollars, spot |")
    print("|---|" + "--:|" * (len(heads) + 4))
    by_network = run_hours()
    for title, hours in (*by_network.items(), ("all", [one for found in by_network.values() for one in found])):
        days = [makespan(hours, cores) / 24 for cores in CORES]
        days.append(makespan(hours, SPOT_CORES) * spot_factor() / 24)
        costs = f"{sum(hours) * DOLLARS:,.0f}, {sum(hours) * spot_factor() * SPOT_DOLLARS:,.0f}"
        cells = [f"{len(hours)}", f"{sum(hours):,.0f}", f"{max(hours) / 24:,.1f} days"]
        print(f"| {title} | " + " | ".join([*cells, *(f"{day:,.1f} days" for day in days), costs]) + " |")
    print(f"\nspot machines take {100 * (spot_factor() - 1):.1f} % longer")


if __name__ == "__main__":
    main()
