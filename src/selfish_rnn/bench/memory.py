"""Peak resident memory of training, each engine in a process of its own.

::

    python -m selfish_rnn.bench.memory '{"engine": "packed", "sparsity": 0.9, "threads": 2, "workload": {…}}'

Other than in training the C library is left to give freed memory back: what a network needs is to be measured.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from selfish_rnn.bench.workloads import TrainingStep, Workload
from selfish_rnn.engine import PackedEmbedding, PackedLinear, PackedLSTM
from selfish_rnn.models import LanguageModel
from selfish_rnn.system import give_back_freed_memory, peak_memory

STEPS = 3
"""Enough that optimizers have their state, and that memory is reused as it will be ever after."""


def measure(workload: Workload, engine: str, sparsity: float, threads: int) -> dict[str, float]:
    """Peaks in MiB of a fresh process that trains a few steps.

    ``training``: during the steps; ``process``: in its whole life, building the network included; ``imports``: before
    it built anything. Nothing is subtracted from anything.
    """
    task = {"engine": engine, "sparsity": sparsity, "threads": threads, "workload": dataclasses.asdict(workload)}
    command = [sys.executable, "-m", "selfish_rnn.bench.memory", json.dumps(task)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise RuntimeError(f"the process that measures the memory of {engine} failed ({done.returncode}): {last}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main(task: dict[str, Any]) -> None:
    """In the fresh process: build, train, and print the peaks as JSON."""
    torch.set_num_threads(task["threads"])
    workload = Workload(**task["workload"])
    torch.optim.SGD([torch.zeros(1, requires_grad=True)])  # the first one imports much
    imports = _peak()
    step = TrainingStep(_build(workload, task["engine"], task["sparsity"]), workload)
    building = _peak()
    _start_afresh()
    for _ in range(STEPS):
        step()
    training = _peak()
    print(json.dumps({"training": training, "process": max(building, training), "imports": imports}))


def _build(workload: Workload, engine: str, sparsity: float) -> LanguageModel:
    """The network, with as little else as can be: a dense one without a topology, a packed one never dense."""
    if engine == "dense":
        return workload.dense_model()
    if engine == "packed" and workload.network == "lstm":
        return _packed_lstm(workload, sparsity)
    return workload.model(engine, sparsity)


def _packed_lstm(workload: Workload, sparsity: float) -> LanguageModel:
    """A network of packed parts in the frame of a dense one that has no memory."""
    with torch.device("meta"):
        model = workload.dense_model()
    words, hidden = workload.vocabulary, workload.hidden
    parts = {
        "embedding": PackedEmbedding(words, hidden, sparsity=sparsity),
        "rnn": PackedLSTM(hidden, hidden, num_layers=2, sparsity=sparsity),
        "decoder": PackedLinear(hidden, words, sparsity=sparsity),
    }
    for name, part in parts.items():
        setattr(model, name, part)
    return model


def _peak() -> float:
    found = peak_memory()
    if found is None:
        raise RuntimeError("this system does not tell how much memory a process took")
    return found


def _start_afresh() -> None:
    """Give back what building left, and set the mark to what is resident now, where the system lets us (Linux)."""
    gc.collect()
    give_back_freed_memory()
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
