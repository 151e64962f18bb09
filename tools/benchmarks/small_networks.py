"""From which size on a packed LSTM layer is faster than torch's dense one.

    python tools/benchmarks/small_networks.py results/small-networks/table.json

One layer with as many inputs as units, one thread, seconds of processor time (a busy machine does not lengthen them).
Torch runs an LSTM with oneDNN or without: the faster one counts. And the next word of a language model so small (two
layers of 16 units, 16 words) that it is nothing but calls: of packed modules beside torch's dense and int8 ones.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from selfish_rnn import Sparsifier, pack, system
from selfish_rnn.engine import PackedLSTM, library
from selfish_rnn.files import write_atomically

SPARSITY = 0.9
UNITS = (32, 64, 128, 256)
CASES = {"infer 1 x 1": (1, 1), "infer 35 x 1": (35, 1), "train 35 x 1": (35, 1), "train 35 x 20": (35, 20)}
"""Timed work: inference, or forward and backward pass, with steps x sequences."""


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


def seconds(run: Callable[[nn.Module, Tensor], None], layer: nn.Module, x: Tensor, rounds: int = 40) -> float:
    """The second best: the best may be a clock that was read too early."""
    taken = []
    for _ in range(rounds + 2):
        start = time.thread_time()
        run(layer, x)
        taken.append(time.thread_time() - start)
    return sorted(taken[2:])[1]


def row(units: int) -> dict[str, Any]:
    dense, packed = layers(units)
    result: dict[str, Any] = {"units": units}
    for case, (steps, sequences) in CASES.items():
        x = torch.randn(steps, sequences, units)
        pass_ = train if case.startswith("train") else infer
        dense_seconds = []
        for onednn in (True, False):
            torch.backends.mkldnn.enabled = onednn  # type: ignore[assignment]
            dense_seconds.append(seconds(pass_, dense, x))
        torch.backends.mkldnn.enabled = True  # type: ignore[assignment]
        packed_seconds = seconds(pass_, packed, x)
        result[case] = {
            "dense_us": 1e6 * min(dense_seconds),
            "packed_us": 1e6 * packed_seconds,
            "ratio": min(dense_seconds) / packed_seconds,
        }
    return result


class Tiny(nn.Module):
    """A language model without arithmetic to speak of."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.rnn, self.decoder = nn.Embedding(16, 16), nn.LSTM(16, 16, 2), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.decoder(self.rnn(self.embedding(x), (torch.zeros(2, 1, 16), torch.zeros(2, 1, 16)))[0])
        return scores


def next_word() -> dict[str, float]:
    """Microseconds of each kind of module."""
    packed = Tiny().eval()
    Sparsifier(packed, sparsity=0.5, rewirings=1)
    quantized: Any = torch.ao.quantization
    models = {
        "dense": Tiny().eval(),
        "torch-int8": quantized.quantize_dynamic(Tiny().eval(), {nn.LSTM, nn.Linear}, dtype=torch.qint8),
        "packed": pack(packed),
    }
    return {name: 1e6 * seconds(infer, model, torch.tensor([[1]]), 2000) for name, model in models.items()}


parser = argparse.ArgumentParser()
parser.add_argument("out", type=Path)
options = parser.parse_args()
torch.set_num_threads(1)
rows = [row(units) for units in UNITS]
for each in rows:
    print(each["units"], *(f"{case}: {each[case]['ratio']:.2f}" for case in CASES), sep="  ")
calls = next_word()
print("next word of 16 units, us:", *(f"{name} {microseconds:.0f}" for name, microseconds in calls.items()), sep="  ")
options.out.parent.mkdir(parents=True, exist_ok=True)
record = {
    "command": "python " + " ".join(sys.argv),
    "date": datetime.now(UTC).isoformat(timespec="seconds"),
    "machine": system.machine(),
    "kernels": library.target(),
    "torch": torch.__version__,
    "sparsity": SPARSITY,
    "rows": rows,
    "next_word_us": calls,
}
write_atomically(options.out, (json.dumps(record, indent=1) + "\n").encode())
