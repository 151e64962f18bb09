"""Costs of large sparse and small dense networks: the next word in int8, bytes, and a training step.

    python tools/benchmarks/pareto_costs.py --out results/pareto/costs.json

Language models with two LSTM layers and a vocabulary of 10,000 words: dense ones of several widths by torch and ONNX
Runtime (extra ``rivals``; left out where it is not installed), and sparse ones by the int8 program of this package.
``quantize`` refuses a model without zeros, so every matrix of a dense model has one zero where this package runs it:
its matrices hold all other weights. All latencies of a width are measured in turns, and so are the training steps.

Bytes are those of the matrices in int8: one for each weight for torch, the size of the file for ONNX Runtime, and
weights with their positions for this package. Embedding and output matrix count as two, because a quantized model has
both.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from selfish_rnn import pack, quantize
from selfish_rnn.bench import rivals
from selfish_rnn.bench.measurements import interleaved
from selfish_rnn.bench.options import read
from selfish_rnn.bench.workloads import Workload
from selfish_rnn.engine.int8.quantized_weight import quantized_weights
from selfish_rnn.files import write_json
from selfish_rnn.system import machine

OURS, TORCH, ONNX = "selfish-rnn int8", "torch int8", "ONNX Runtime int8"


def our_program(workload: Workload) -> tuple[Callable[[], Any], int]:
    """Return the next word by the int8 program of this package, and the bytes of its matrices."""
    model = workload.dense_model() if workload.sparsity == 0 else workload.model("dense")
    if workload.sparsity == 0:
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim == 2:
                    parameter[0, 0] = 0
    small = quantize(copy.deepcopy(pack(model)).eval())
    step = small.next_word()
    assert step is not None
    return lambda: step(1), sum(weight.bytes for weight in quantized_weights(small).values())


def onnx_bytes(workload: Workload) -> int:
    """Return the size of the int8 file that ONNX Runtime loads."""
    from onnxruntime import quantization

    model = workload.model("dense").eval()
    with tempfile.TemporaryDirectory() as folder, rivals._silence():
        path = rivals._export(rivals._Module(model), model.initial_state(1), folder)
        small = path.with_name("int8.onnx")
        quantization.quantize_dynamic(path, small, weight_type=quantization.QuantType.QInt8)
        return small.stat().st_size


def measure(workload: Workload, rounds: int) -> dict[str, Any]:
    """Return the costs of a network by engine: median latency, bytes, and the median of a training step."""
    dense = workload.sparsity == 0
    program, size = our_program(workload)
    calls, sizes = {OURS: program}, {OURS: size}
    if dense:
        calls[TORCH], sizes[TORCH] = workload.next_word("int8"), workload.positions()
        if find_spec("onnxruntime") and find_spec("onnx"):
            calls[ONNX], sizes[ONNX] = workload.next_word("onnx-int8"), onnx_bytes(workload)
    with torch.inference_mode():
        latencies = interleaved(calls, rounds)
    step = workload.training_step("dense" if dense else "packed")
    seconds = interleaved({"step": step}, rounds)["step"]
    return {
        "units": workload.hidden,
        "sparsity": workload.sparsity,
        "weights": round((1 - workload.sparsity) * workload.positions()),
        "latency_ms": {name: round(1000 * statistics.median(times), 4) for name, times in latencies.items()},
        "latencies_ms": {name: [round(1000 * entry, 4) for entry in times] for name, times in latencies.items()},
        "bytes": sizes,
        "step_ms": round(1000 * statistics.median(seconds), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--dense", type=int, nargs="*", default=[272, 300, 400, 512, 650, 700], help="widths")
    parser.add_argument("--width", type=int, default=1500, help="width of the sparse networks")
    parser.add_argument("--sparsity", type=float, nargs="*", default=[0.67, 0.8, 0.9, 0.95])
    parser.add_argument("--vocabulary", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    about = {**machine(), "threads": options.threads, "torch": torch.__version__}
    base = read({"hidden": [options.width], "vocabulary": options.vocabulary})
    networks = [(width, 0.0) for width in options.dense] + [(options.width, sparsity) for sparsity in options.sparsity]
    rows = []
    for width, sparsity in networks:
        rows.append(measure(Workload(base, width, sparsity), options.rounds))
        print({key: value for key, value in rows[-1].items() if key != "latencies_ms"}, flush=True)
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        command = " ".join(["python", *sys.argv])
        write_json(options.out, {"command": command, "date": time.strftime("%F"), "machine": about, "rows": rows})


if __name__ == "__main__":
    main()
