"""From which density on large tiles are the faster: training steps with both kinds, in turns.

::

    python tools/benchmarks/tile_threshold.py --out results/wide/tile-threshold.json

``limit`` is the density below which tiles grow (``VERY_SPARSE`` in ``engine/index.py``).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

from selfish_rnn.bench.options import read
from selfish_rnn.bench.workloads import Workload
from selfish_rnn.engine import index as tiling
from selfish_rnn.engine.packed_weight import packed_weights
from selfish_rnn.system import machine

ROUNDS = 5


def measure(name: str, workload: Workload, limits: tuple[float, float]) -> dict[str, Any]:
    steps, result = {}, dict[str, Any]()
    for limit in limits:
        tiling.VERY_SPARSE = limit
        model = workload.model("packed")
        weights = list(packed_weights(model).values())
        entry = sum(len(weight.index) for weight in weights) / sum(weight.count for weight in weights)
        result[f"{limit:g}"] = {"index_bytes_per_weight": entry, "seconds": []}
        steps[f"{limit:g}"] = workload.training_step("packed", model)
    for step in steps.values():
        step()
    for _ in range(ROUNDS):
        for limit_name, step in steps.items():
            start = time.perf_counter()
            step()
            result[limit_name]["seconds"].append(time.perf_counter() - start)
    return {"network": name, "density": 1 - workload.sparsity, "limits": result}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    about = {"command": " ".join(["python", *sys.argv]), "date": time.strftime("%Y-%m-%d"), "machine": machine()}
    paper = Workload(read({}), 1500, 0.67)
    rows = []
    for name, workload, limits in (
        ("8192 units", paper.at_width(8192), (0.015, 0.035)),
        ("4096 units", paper.at_width(4096), (0.035, 0.07)),
        ("1500 units, S = 0.98", Workload(read({}), 1500, 0.98), (0.015, 0.035)),
        ("1500 units, S = 0.97", Workload(read({}), 1500, 0.97), (0.015, 0.035)),
    ):
        rows.append(measure(name, workload, limits))
        print(name, {at: statistics.median(entry["seconds"]) for at, entry in rows[-1]["limits"].items()}, flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({**about, "threads": options.threads, "networks": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
