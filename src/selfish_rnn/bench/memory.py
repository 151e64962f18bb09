"""Peak resident memory of training, each engine in a process of its own.

::

    python -m selfish_rnn.bench.memory '{"engine": "packed", "hidden": 512, "sparsity": 0.9, "threads": 2, …}'

Other than in training the C library is left to give freed memory back: what a network needs is to be measured.
"""

from __future__ import annotations

import contextlib
import gc
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from selfish_rnn.bench.options import read
from selfish_rnn.bench.workloads import Workload
from selfish_rnn.system import give_back_freed_memory, peak_memory

STEPS = 3
"""Enough that optimizers have their state, and that memory is reused as it will be ever after."""


def measure(workload: Workload, engine: str) -> dict[str, float]:
    """Peaks in MiB of a fresh process that trains a few steps.

    ``training``: during the steps; ``process``: in its whole life, building the network included; ``imports``: before
    it built anything. Nothing is subtracted from anything.
    """
    task = {"engine": engine, "hidden": workload.hidden, "sparsity": workload.sparsity}
    task |= {"threads": torch.get_num_threads(), "options": workload.options.model_dump(mode="json")}
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
    workload = Workload(read(task["options"]), task["hidden"], task["sparsity"])
    torch.optim.SGD([torch.zeros(1, requires_grad=True)])  # the first one imports much
    imports = _peak()
    engine = task["engine"]
    # A dense network needs no topology, and to make one would take memory.
    step = workload.training_step(engine, workload.dense_model() if engine == "dense" else None)
    building = _peak()
    gc.collect()
    give_back_freed_memory()
    with contextlib.suppress(OSError):  # only Linux sets the mark to what is resident now
        Path("/proc/self/clear_refs").write_text("5")
    for _ in range(STEPS):
        step()
    training = _peak()
    print(json.dumps({"training": training, "process": max(building, training), "imports": imports}))


def _peak() -> float:
    found = peak_memory()
    if found is None:
        raise RuntimeError("this system does not tell how much memory a process took")
    return found


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
