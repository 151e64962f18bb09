"""Measure what bfloat16 costs in quality: the quickstart in float32 and bfloat16, with the same seeds.

    python tools/benchmarks/bfloat16_quality.py --out results/bfloat16/quickstart.jsonl

Each run is ``selfish-rnn train quickstart`` with one thread. The file gets a line for each run, and for each method and
sparsity a line with the mean difference of the test perplexities and its 95 % interval (paired t over seeds). Finished
runs are skipped, so the command continues where it was interrupted.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from selfish_rnn.system import processor

QUANTILES = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
"""97.5 % quantiles of Student's t by degrees of freedom."""

KEYS = ("method", "sparsity", "seed", "precision")

parser = argparse.ArgumentParser()
parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
parser.add_argument("--sparsity", type=float, nargs="+", default=[0.67, 0.9])
parser.add_argument("--method", nargs="+", default=["selfish", "static"])
parser.add_argument("--out", type=Path, required=True)
options = parser.parse_args()


def train(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the results of one run."""
    words = [f"{name}={value}" for name, value in settings.items()]
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        start = time.monotonic()
        command = [sys.executable, "-m", "selfish_rnn", "train", "quickstart", *words]
        subprocess.run([*command, "engine=packed", "threads=1", "--run", str(run)], check=True, capture_output=True)
        summary = json.loads((run / "summary.json").read_text())
    return {
        **settings,
        "test_perplexity": summary["test_perplexity"],
        "valid_perplexity": summary["valid_perplexity"],
        "seconds": round(time.monotonic() - start, 1),
        "processor": processor(),
        "torch": torch.__version__,
    }


def difference(runs: list[dict[str, Any]], method: str, sparsity: float) -> dict[str, Any] | None:
    """Return the mean difference, bfloat16 minus float32, over the seeds that have both runs."""
    tests = {
        (run["seed"], run["precision"]): run["test_perplexity"]
        for run in runs
        if (run["method"], run["sparsity"]) == (method, sparsity)
    }
    seeds = sorted(seed for seed, precision in tests if precision == "float32" and (seed, "bfloat16") in tests)
    if len(seeds) < 2:
        return None
    differences = [tests[seed, "bfloat16"] - tests[seed, "float32"] for seed in seeds]
    spread = statistics.stdev(differences) / len(seeds) ** 0.5 * QUANTILES[len(seeds) - 1]
    mean = statistics.mean(differences)
    return {
        "method": method,
        "sparsity": sparsity,
        "seeds": seeds,
        "float32": round(statistics.mean(tests[seed, "float32"] for seed in seeds), 3),
        "bfloat16": round(statistics.mean(tests[seed, "bfloat16"] for seed in seeds), 3),
        "difference": round(mean, 3),
        "interval": [round(mean - spread, 3), round(mean + spread, 3)],
    }


def write(runs: list[dict[str, Any]]) -> None:
    """Write all runs and what they say so far."""
    pairs = itertools.product(options.method, options.sparsity)
    differences = [line for pair in pairs if (line := difference(runs, *pair)) is not None]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text("".join(json.dumps(line) + "\n" for line in [*runs, *differences]))


runs: list[dict[str, Any]] = []
if options.out.exists():
    lines = map(json.loads, options.out.read_text().splitlines())
    runs = [line for line in lines if "test_perplexity" in line]
finished = {tuple(run[key] for key in KEYS) for run in runs}
for seed, sparsity, method in itertools.product(options.seeds, options.sparsity, options.method):
    for precision in ("float32", "bfloat16"):
        if (method, sparsity, seed, precision) not in finished:
            runs.append(train({"method": method, "sparsity": sparsity, "seed": seed, "precision": precision}))
            write(runs)
