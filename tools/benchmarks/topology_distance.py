"""Time and memory of the topological distance between two of the paper's stacked LSTMs.

    python tools/benchmarks/topology_distance.py --engine packed --matching one-to-one

Two networks of 1500 units with random weights and topologies of sparsity 0.67, 10,000 samples of each unit.
"""

from __future__ import annotations

import argparse
import resource
import time

import torch

from selfish_rnn import Sparsifier, pack, topology_distance
from selfish_rnn.models import StackedRNN


def network(seed: int, hidden: int, engine: str) -> StackedRNN:
    torch.manual_seed(seed)
    model = StackedRNN(10_000, embedding=hidden, hidden=hidden)
    sparsifier = Sparsifier(model, sparsity=0.67, rewirings=1, seed=seed)
    if engine == "zeros":
        sparsifier.detach()
    return pack(model) if engine == "packed" else model


def peak() -> float:
    """MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


parser = argparse.ArgumentParser()
parser.add_argument("--hidden", type=int, default=1500)
parser.add_argument("--samples", type=int, default=10_000)
parser.add_argument("--engine", choices=["packed", "masked", "zeros"], default="packed")
parser.add_argument("--matching", choices=["semi", "one-to-one"], default="semi")
options = parser.parse_args()

models = [network(seed, options.hidden, options.engine) for seed in range(2)]
text = torch.randint(10_000, (options.samples // 20, 20)).split(35)
before = peak()
start, processor = time.perf_counter(), time.process_time()
distance = topology_distance(*models, text, matching=options.matching, samples=options.samples)
print(distance)
print(
    f"{time.perf_counter() - start:.1f} s, {time.process_time() - processor:.1f} s of processor time, with "
    f"{torch.get_num_threads()} threads; peak {peak():.0f} MiB, "
    f"{before:.0f} MiB of it before the distance was asked for (two networks, torch)"
)
