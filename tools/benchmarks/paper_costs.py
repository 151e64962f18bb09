"""Cost of the paper's experiments on several cores, computed from the plan of ``reproduce --scale paper``.

    python tools/benchmarks/paper_costs.py

Every run has one core and resumes from its checkpoint after a loss. The longest runs start first.
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
"""Mean hours until a spot machine is lost."""

LOST = 10 / 60 / 2 + 0.5 / 60 + 0.5 / 60
"""Hours lost with a machine: half of ``checkpoint_every``, detection by the cluster, and the restart."""

DOLLARS, SPOT_DOLLARS = 0.04, 0.01
"""Assumed prices of a core-hour."""


def run_hours() -> dict[str, list[float]]:
    """Return the core-hours of every run, by network. Runs shared by several items count once."""
    scale = SCALES["paper"]
    runs = plan([item for item in ITEMS.values() if item.kind != "time"], scale)
    hours = {run.name: scale.hours[run.case.network] * (1 if run.sparse else DENSE_FACTOR) for run in runs}
    return {
        title: [hours[run.name] for run in runs if run.case.network in networks] for title, networks in NETWORKS.items()
    }


def makespan(hours: Sequence[float], cores: int) -> float:
    """Return the end of the last run, if free cores take the longest remaining run."""
    ends = [0.0] * cores
    for length in sorted(hours, reverse=True):
        heapq.heapreplace(ends, ends[0] + length)
    return max(ends)


def spot_factor() -> float:
    """Return the time of a run on spot machines relative to others."""
    return 1 / (1 - LOST / BETWEEN_LOSSES)


def main() -> None:
    heads = [f"{cores} cores" if cores > 1 else "1 core" for cores in CORES] + [f"{SPOT_CORES} spot cores"]
    print("| network | runs | core-hours | longest run | " + " | ".join(heads) + " | dollars, spot |")
    print("|---|" + "--:|" * (len(heads) + 4))
    by_network = run_hours()
    for title, hours in (*by_network.items(), ("all", [item for result in by_network.values() for item in result])):
        days = [makespan(hours, cores) / 24 for cores in CORES]
        days.append(makespan(hours, SPOT_CORES) * spot_factor() / 24)
        costs = f"{sum(hours) * DOLLARS:,.0f}, {sum(hours) * spot_factor() * SPOT_DOLLARS:,.0f}"
        cells = [f"{len(hours)}", f"{sum(hours):,.0f}", f"{max(hours) / 24:,.1f} days"]
        print(f"| {title} | " + " | ".join([*cells, *(f"{day:,.1f} days" for day in days), costs]) + " |")
    print(f"\nspot machines take {100 * (spot_factor() - 1):.1f} % longer")


if __name__ == "__main__":
    main()
