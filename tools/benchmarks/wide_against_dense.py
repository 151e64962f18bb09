"""Perplexity against processor time: the preset ``wide`` beside a dense network with as many weights.

::

    python tools/benchmarks/wide_against_dense.py --runs runs/wide --out results/wide/against-dense.json
    python tools/benchmarks/wide_against_dense.py --runs try --out try.json \\
        model.hidden=64 model.embedding=64 sparsity=0.9

Both are ordinary runs with one thread, first the wide one, to the end of its epochs (those of the preset, or as
``epochs=…`` says). Then the dense one, which is the preset with ``method=small-dense``: as many weights, all those of a
network that is as much narrower; it is stopped when it has used as many seconds. Seconds are those of the processor,
all of a run included (building, validation, rewiring, checkpoints), so that a busy machine changes little. Given once
more after it was interrupted, the command goes on from the checkpoints of the runs.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from selfish_rnn.experiment.presets import build_experiment, read_preset, with_assignments
from selfish_rnn.files import write_json
from selfish_rnn.runs.recording import Interrupted
from selfish_rnn.runs.run import Run
from selfish_rnn.system import machine, peak_memory, retain_freed_memory
from selfish_rnn.training.evaluation import evaluate_splits
from selfish_rnn.training.metrics import Listener, StepReport
from selfish_rnn.training.records import EpochRecord
from selfish_rnn.training.trainer import Trainer

DENSE_EPOCHS = 1000
"""More than there is time for."""


class Clock(Listener):
    """Writes down what a run has come to after so many seconds, and ends it when it has used those it may."""

    def __init__(self, path: Path, limit: float) -> None:
        self.path, self.limit = path, limit
        result = json.loads(path.read_text()) if path.exists() else {"seconds": 0.0, "epochs": []}
        self._before: float = result["seconds"]
        self.epochs: list[dict[str, Any]] = result["epochs"]

    @property
    def seconds(self) -> float:
        return self._before + time.process_time()

    def on_step(self, report: StepReport) -> None:
        self.write()

    def on_epoch(self, record: EpochRecord) -> None:
        # An epoch that is trained again after an interruption takes the place of its first time.
        self.epochs = [epoch for epoch in self.epochs if epoch["epoch"] < record.epoch]
        perplexities = {"train_perplexity": record.train_perplexity, "valid_perplexity": record.valid_perplexity}
        self.epochs.append({"epoch": record.epoch, "step": record.step, "seconds": self.seconds, **perplexities})
        self.write()
        print(self.path.stem, self.epochs[-1], flush=True)

    def on_pause(self, trainer: Trainer) -> None:
        if self.seconds > self.limit:
            raise Interrupted

    def write(self) -> None:
        write_json(self.path, {"seconds": self.seconds, "epochs": self.epochs})


def train(name: str, assignments: list[str], runs: Path, limit: float) -> None:
    """In a process of its own: one run to its end, or until its seconds are used; what it came to as JSON."""
    retain_freed_memory()
    changes = ["threads=1", *assignments]
    if name == "dense":
        changes += ["method=small-dense", f"epochs={DENSE_EPOCHS}"]
    experiment = build_experiment(with_assignments(read_preset("wide")[0], changes), "settings")
    clock = Clock(runs / f"{name}.json", limit)
    run = Run.start(experiment, runs / name, again=True)
    try:
        run.train(clock)
    except Interrupted:
        if clock.seconds <= limit:
            raise
    best = min(clock.epochs, key=lambda epoch: float(epoch["valid_perplexity"]), default=None)
    if best is None:
        raise SystemExit(f"{name}: {clock.seconds:.0f} seconds are too few for an epoch")
    experiment = run.experiment
    sparse, others = experiment.model.sizes(len(run.corpus.vocabulary))
    result = {
        "model": experiment.model.model_dump(),
        "weights": round((1 - experiment.sparsity) * sparse),
        "other_parameters": others,
        "engine": experiment.engine,
        "seconds": clock.seconds,
        "epochs": clock.epochs,
        "best_epoch": best["epoch"],
        "test_perplexity": evaluate_splits(run.model(), experiment, run.corpus)["test_perplexity"],
        "peak_memory_mib": peak_memory(),
    }
    write_json(runs / f"{name}-outcome.json", result)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="changes to the preset, for both")
    parser.add_argument("--runs", type=Path, required=True, help="folder of the two runs")
    parser.add_argument("--out", type=Path, help="the JSON that compares them")
    parser.add_argument("--only", choices=("wide", "dense"), help="used by the command itself")
    parser.add_argument("--seconds", type=float, default=math.inf, help="used by the command itself")
    options = parser.parse_args()
    options.runs.mkdir(parents=True, exist_ok=True)
    if options.only:
        train(options.only, options.settings, options.runs, options.seconds)
        return
    if options.out is None:
        parser.error("--out is missing")
    report: dict[str, Any] = {
        "command": " ".join(["python", *sys.argv]),
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine(),
        "networks": {},
    }
    limit = math.inf
    for name in ("wide", "dense"):
        outcome = options.runs / f"{name}-outcome.json"
        if not outcome.exists():
            command = [sys.executable, __file__, "--only", name, "--runs", str(options.runs), "--seconds", str(limit)]
            subprocess.run([*command, *options.settings], check=True)
        report["networks"][name] = result = json.loads(outcome.read_text())
        limit = result["seconds"]
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
