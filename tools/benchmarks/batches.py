"""Time of a product with several vectors at once: int8, packed float32, and torch's dense products.

    python tools/benchmarks/batches.py --hidden 1500 --out results/int8/batches-1500.txt

The matrix is that of the gates of an LSTM, 4 hidden x hidden. In every round each contender, in an order drawn anew,
has its turn; its time in the round is the best of a few calls. Reported: the median over the rounds, in microseconds
for each vector. Int8 goes in eights. An int8 model with ``arithmetic="float32"`` computes as packed float32 does.
"""

from __future__ import annotations

import argparse
import copy
import random
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from selfish_rnn import pack, quantize
from selfish_rnn.engine.int8.targets import int8_target
from selfish_rnn.system import processor

parser = argparse.ArgumentParser()
parser.add_argument("--hidden", type=int, default=1500)
parser.add_argument("--sparsity", type=float, nargs="+", default=[0.5, 0.67, 0.8, 0.9, 0.95])
parser.add_argument("--vectors", type=int, nargs="+", default=[1, 8, 16, 32, 64])
parser.add_argument("--rounds", type=int, default=9)
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--out", type=Path)
options = parser.parse_args()


def best(run: Callable[[], object]) -> float:
    """Microseconds."""
    times = []
    for _ in range(6):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return 1e6 * min(times[1:])


warnings.filterwarnings("ignore")
torch.set_num_threads(options.threads)
torch.manual_seed(0)
random.seed(0)
dense = nn.Sequential(nn.Linear(options.hidden, 4 * options.hidden)).eval()
modules: dict[str, nn.Module] = {
    "torch dense float32": dense,
    "torch dense int8": torch.ao.quantization.quantize_dynamic(copy.deepcopy(dense), {nn.Linear}, dtype=torch.qint8),
}
for sparsity in options.sparsity:
    sparse = copy.deepcopy(dense)
    with torch.no_grad():
        sparse[0].weight.mul_(torch.rand_like(sparse[0].weight) >= sparsity)
    modules[f"S = {sparsity} packed float32"] = pack(sparse)
    modules[f"S = {sparsity} packed int8"] = quantize(copy.deepcopy(modules[f"S = {sparsity} packed float32"]))

found: dict[tuple[str, int], list[float]] = {(name, n): [] for name in modules for n in options.vectors}
with torch.inference_mode():
    inputs = {n: torch.randn(n, options.hidden) for n in options.vectors}
    for _ in range(options.rounds):
        for name, n in random.sample(sorted(found), len(found)):
            module, x = modules[name], inputs[n]
            found[name, n].append(best(lambda: module(x)) / n)  # noqa: B023

lines = [
    f"one product of {4 * options.hidden} x {options.hidden}, microseconds for each vector, {options.threads} threads, "
    f"{options.rounds} rounds; {processor()}, int8 kernels for {int8_target()}; torch {torch.__version__}; "
    f"{time.strftime('%Y-%m-%d')}",
    f"{'vectors at once':28}" + "".join(f"{n:>10}" for n in options.vectors),
    *(
        f"{name:28}" + "".join(f"{statistics.median(found[name, n]):10.1f}" for n in options.vectors)
        for name in modules
    ),
]
text = "\n".join(lines)
print(text)
if options.out is not None:
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(text + "\n")
