"""How large a network 21.8 million weights make: seconds and memory of building it, of an update and of a rewiring.

::

    python benchmarks/wide.py --units 32768,65536,100000 --threads 2 --out results/wide/sizes.json

The network is that of the preset ``wide``, as wide as ``--units`` says, each in a process of its own.
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


def measure(units: int, threads: int) -> dict[str, Any]:
    torch.set_num_threads(threads)
    positions = 8 * units**2 + 2 * WORDS * units
    model = {"name": "stacked-lstm", "embedding": units, "hidden": units, "layers": 1, "dropout": 0.4}
    changes = {"model": model, "sparsity": 1 - WEIGHTS / positions, "engine": "packed"}
    experiment = build_experiment(with_settings(read_preset("wide")[0], changes), "wide")
    start = time.perf_counter()
    network, sparsifier = build_network(experiment, WORDS, rewirings=4)
    found: dict[str, Any] = {"units": units, "positions": positions, "weights": sparsifier.active_weights}
    found |= {"build_seconds": time.perf_counter() - start, "build_peak_mib": peak_memory()}
    optimizer = torch.optim.SGD(network.parameters(), lr=1.0)
    words = torch.randint(WORDS, (experiment.window + 1, experiment.batch_size))
    state, seconds = network.initial_state(experiment.batch_size), []
    for _ in range(UPDATES):
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        network.loss(network.encode(words[:-1], state).output, words[1:]).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(network.parameters(), 0.25)
        optimizer.step()
        seconds.append(time.perf_counter() - start)
    found |= {"update_seconds": min(seconds), "update_peak_mib": peak_memory()}
    start = time.perf_counter()
    sparsifier.rewire()
    return found | {"rewire_seconds": time.perf_counter() - start, "peak_mib": peak_memory()}


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
        report = {"date": time.strftime("%Y-%m-%d"), "machine": machine(), "threads": options.threads, "sizes": rows}
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
