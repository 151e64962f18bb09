"""From which size on a packed LSTM layer is faster than torch's dense one.

    python benchmarks/small_networks.py results/small-networks/table.json

One layer with as many inputs as units, one thread, seconds of processor time (a busy machine does not lengthen them).
Torch runs an LSTM with oneDNN or without: the faster one counts.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from selfish_rnn import system
from selfish_rnn.engine import PackedLSTM, library
from selfish_rnn.files import write_atomically

SPARSITY = 0.9
UNITS = (32, 64, 128, 256)
CASES = {"infer 1 x 1": (1, 1), "infer 35 x 1": (35, 1), "train 35 x 1": (35, 1), "train 35 x 20": (35, 20)}
"""What is timed: inference or forward and backward pass, steps x sequences."""


def layers(units: int) -> tuple[nn.LSTM, PackedLSTM]:
    torch.manual_seed(0)
    dense = nn.LSTM(units, units)
    with torch.no_grad():
        for weight in dense.parameters():
            if weight.ndim == 2:
                weight.mul_(torch.rand(weight.shape) < 1 - SPARSITY)
    return dense, PackedLSTM.from_dense(dense)


def infer(layer: nn.Module, x: Tensor) -> None:
    with torch.inference_mode():
        layer(x)


def train(layer: nn.Module, x: Tensor) -> None:
    layer.zero_grad(set_to_none=True)
    layer(x)[0].sum().backward()


def seconds(run: Callable[[nn.Module, Tensor], None], layer: nn.Module, x: Tensor, rounds: int = 10) -> float:
    """The second best: the best may be a clock that was read too early."""
    taken = []
    for _ in range(rounds + 2):
        start = time.thread_time()
        run(layer, x)
        taken.append(time.thread_time() - start)
    return sorted(taken[2:])[1]


def row(units: int) -> dict[str, Any]:
    dense, packed = layers(units)
    found: dict[str, Any] = {"units": units}
    for case, (steps, sequences) in CASES.items():
        x = torch.randn(steps, sequences, units)
        pass_ = train if case.startswith("train") else infer
        dense_seconds = []
        for onednn in (True, False):
            torch.backends.mkldnn.enabled = onednn  # type: ignore[assignment]
            dense_seconds.append(seconds(pass_, dense, x))
        packed_seconds = seconds(pass_, packed, x)
        found[case] = {
            "dense_us": 1e6 * min(dense_seconds),
            "packed_us": 1e6 * packed_seconds,
            "ratio": min(dense_seconds) / packed_seconds,
        }
    return found


parser = argparse.ArgumentParser()
parser.add_argument("out", type=Path)
options = parser.parse_args()
torch.set_num_threads(1)
rows = [row(units) for units in UNITS]
for each in rows:
    print(each["units"], *(f"{case}: {each[case]['ratio']:.2f}" for case in CASES), sep="  ")
options.out.parent.mkdir(parents=True, exist_ok=True)
record = {
    "command": "python " + " ".join(sys.argv),
    "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    "machine": system.machine(),
    "kernels": library.target(),
    "torch": torch.__version__,
    "sparsity": SPARSITY,
    "rows": rows,
}
write_atomically(options.out, (json.dumps(record, indent=1) + "\n").encode())
