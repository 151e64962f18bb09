"""Largest networks with 21.8 million weights: time and memory of construction, update and rewiring.

::

    python tools/benchmarks/wide.py --units 32768,65536,100000 --threads 2 --out results/wide/sizes.json

The network is that of the preset ``wide``, as wide as ``--units`` says, each in a process of its own. Seconds are given
twice: of the clock, and of the processor, on which other programs have less influence.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from selfish_rnn.experiment.presets import build_experiment, read_preset, with_settings
from selfish_rnn.system import machine, peak_memory
from selfish_rnn.training.build import build_network

WORDS, WEIGHTS, UPDATES = 1784, 21_767_127, 3


class Stopwatch:
    """Seconds since it was made, of the clock and of the processor."""

    def __init__(self) -> None:
        self._clock, self._processor = time.perf_counter(), time.process_time()

    def seconds(self, name: str) -> dict[str, float]:
        clock, processor = time.perf_counter() - self._clock, time.process_time() - self._processor
        return {f"{name}_seconds": clock, f"{name}_processor_seconds": processor}


def measure(units: int, threads: int) -> dict[str, Any]:
    torch.set_num_threads(threads)
    positions = 8 * units**2 + 2 * WORDS * units
    model = {"name": "stacked-lstm", "embedding": units, "hidden": units, "layers": 1, "dropout": 0.4}
    changes = {"model": model, "sparsity": 1 - WEIGHTS / positions, "engine": "packed"}
    experiment = build_experiment(with_settings(read_preset("wide")[0], changes), "wide")
    watch = Stopwatch()
    network, sparsifier = build_network(experiment, WORDS, rewirings=4)
    result: dict[str, Any] = {"units": units, "positions": positions, "weights": sparsifier.active_weights}
    result |= {**watch.seconds("build"), "build_peak_mib": peak_memory()}
    optimizer = torch.optim.SGD(network.parameters(), lr=1.0)
    words = torch.randint(WORDS, (experiment.window + 1, experiment.batch_size))
    state, updates = network.initial_state(experiment.batch_size), []
    for _ in range(UPDATES):
        watch = Stopwatch()
        optimizer.zero_grad(set_to_none=True)
        network.loss(network.encode(words[:-1], state).output, words[1:]).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(network.parameters(), 0.25)
        optimizer.step()
        updates.append(watch.seconds("update"))
    result |= {name: min(update[name] for update in updates) for name in updates[0]}
    result |= {"tokens": words[1:].numel(), "update_peak_mib": peak_memory()}
    watch = Stopwatch()
    sparsifier.rewire()
    return result | {**watch.seconds("rewire"), "peak_mib": peak_memory()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--units", required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    sizes = [int(size) for size in options.units.split(",")]
    if options.out is None:
        print(json.dumps(measure(sizes[0], options.threads)))
        return
    rows = []
    for size in sizes:
        command = [sys.executable, __file__, "--units", str(size), "--threads", str(options.threads)]
        rows.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
        print(rows[-1], flush=True)
        report = {
            "command": " ".join(["python", *sys.argv]),
            "date": time.strftime("%Y-%m-%d"),
            "machine": machine(),
            "threads": options.threads,
            "sizes": rows,
        }
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
