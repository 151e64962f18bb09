"""How fast the RHN and ON-LSTM cells are against a straightforward eager loop, side by side in one process.

    python benchmarks/recurrent_loops.py [--threads 1] [--rounds 9] [--output results/recurrent-loops.json]

The reference loops are those the tests check the cells against: they project the input at every step and let autograd
add up the weight gradients step by step. Rounds are interleaved; the ratio is the median over rounds.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

import torch
from torch import Tensor

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "models"))

from test_on_lstm import reference as on_lstm_reference  # noqa: E402
from test_rhn import reference as highway_reference  # noqa: E402

from selfish_rnn.models.cells.highway import HighwayCell  # noqa: E402
from selfish_rnn.models.cells.ordered_neurons import OrderedNeuronsCell  # noqa: E402

BATCH = 20


def seconds(forward: Callable[[], Tensor]) -> float:
    start = time.perf_counter()
    forward().sum().backward()
    return time.perf_counter() - start


def compare(ours: Callable[[], Tensor], reference: Callable[[], Tensor], rounds: int) -> dict[str, float]:
    seconds(ours), seconds(reference)
    pairs = [(seconds(reference), seconds(ours)) for _ in range(rounds)]
    ratios = sorted(first / second for first, second in pairs)
    return {
        "reference_ms": 1000 * statistics.median(first for first, _ in pairs),
        "ours_ms": 1000 * statistics.median(second for _, second in pairs),
        "ratio": statistics.median(ratios),
        "smallest_ratio": ratios[0],
        "largest_ratio": ratios[-1],
    }


def highway(hidden: int, depth: int, window: int, rounds: int) -> dict[str, float]:
    cell = HighwayCell(hidden, hidden, depth)
    inputs = torch.randn(window, BATCH, hidden)
    state, mask = torch.zeros(BATCH, hidden), torch.ones(BATCH, hidden)
    return compare(lambda: cell(inputs, state, mask), lambda: highway_reference(cell, inputs, state, mask), rounds)


def ordered_neurons(hidden: int, window: int, rounds: int) -> dict[str, float]:
    cell = OrderedNeuronsCell(hidden, hidden, 10)
    inputs = torch.randn(window, BATCH, hidden)
    state, memory = torch.zeros(BATCH, hidden), torch.zeros(BATCH, hidden)
    return compare(
        lambda: cell(inputs, state, memory)[0], lambda: on_lstm_reference(cell, inputs, state, memory)[0], rounds
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--output", type=Path, default=ROOT / "results" / "recurrent-loops.json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    results = {
        "command": " ".join(["python", *sys.argv]),
        "date": date.today().isoformat(),
        "machine": f"{platform.machine()}, {options.threads} threads",
        "torch": torch.__version__,
        "rhn, 200 units, depth 10, window 35": highway(200, 10, 35, options.rounds),
        "rhn, 830 units, depth 10, window 35": highway(830, 10, 35, max(options.rounds // 3, 2)),
        "on-lstm layer, 300 units, window 70": ordered_neurons(300, 70, options.rounds),
        "on-lstm layer, 1150 units, window 70": ordered_neurons(1150, 70, max(options.rounds // 3, 2)),
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(results, indent=2) + "\n")
    for name, result in results.items():
        if isinstance(result, dict):
            print(f"{name}: {result['reference_ms']:.0f} ms to {result['ours_ms']:.0f} ms, ratio {result['ratio']:.2f}")


if __name__ == "__main__":
    main()
