"""Size of the topology history of the paper's stacked LSTM, and the processor time of writing it.

    python tools/benchmarks/topology_history.py

66 million positions, sparsity 0.67, prune rate 0.7 falling as a cosine over 20 rewirings. Some rewirings are made and
measured; the others are computed from how many bytes a random list takes, which the measured ones check.
"""

from __future__ import annotations

import argparse
import math
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from selfish_rnn.runs.topologies import TopologyHistory, places_of_ranks
from selfish_rnn.topology import GateLayout, Rewiring, Topology
from selfish_rnn.topology.sampling import sample
from selfish_rnn.topology.schedules import SCHEDULES

SHAPES = {
    "embedding.weight": (10_000, 1500),
    "rnn.weight_ih_l0": (6000, 1500),
    "rnn.weight_hh_l0": (6000, 1500),
    "rnn.weight_ih_l1": (6000, 1500),
    "rnn.weight_hh_l1": (6000, 1500),
    "decoder.weight": (10_000, 1500),
}
DENSITY, PRUNE_RATE, REWIRINGS = 0.33, 0.7, 20


def entropy(share: float) -> float:
    """Bits per position of a random choice of this share."""
    return 0.0 if share in (0, 1) else -share * math.log2(share) - (1 - share) * math.log2(1 - share)


def bound(rate: float) -> float:
    """Bytes that the lists of a rewiring take at least."""
    positions = sum(map(math.prod, SHAPES.values()))
    weights = DENSITY * positions
    empty = positions - (1 - rate) * weights
    return (weights * entropy(rate) + empty * entropy(rate * weights / empty)) / 8


def rewired(topology: Topology, rate: float, generator: torch.Generator) -> Rewiring:
    marks = torch.zeros(topology.count, dtype=torch.bool)
    removed = round(rate * topology.count)
    marks[sample(topology.count, removed, generator)] = True
    kept = topology.without(marks).positions.numpy()
    ranks = sample(topology.size - len(kept), removed, generator).numpy()
    return Rewiring(topology, marks, torch.from_numpy(places_of_ranks(ranks, kept)))


parser = argparse.ArgumentParser()
parser.add_argument("--measured", type=int, nargs="*", default=[1, 10, 15, 19])
options = parser.parse_args()

generator = torch.Generator().manual_seed(0)
topologies = {
    name: Topology.random(shape, GateLayout.single(shape[0]), round(DENSITY * math.prod(shape)), generator)
    for name, shape in SHAPES.items()
}
excess = []
with tempfile.TemporaryDirectory() as folder:
    history = TopologyHistory(Path(folder) / "topologies.bin")
    start = time.process_time()
    history.start(topologies)
    size = history.path.stat().st_size
    whole = size
    print(f"start       {size / 1e6:6.2f} MB  {time.process_time() - start:4.1f} s")
    for number in options.measured:
        rate = SCHEDULES["cosine"].rate(number / REWIRINGS, PRUNE_RATE)
        seconds = 0.0
        with history.recording(number, number) as recording:
            for name, topology in topologies.items():
                rewiring = rewired(topology, rate, generator)
                start = time.process_time()
                recording.add(name, rewiring)
                seconds += time.process_time() - start
                topologies[name] = rewiring.topology
        taken = history.path.stat().st_size - size
        size += taken
        excess.append(taken / bound(rate))
        print(
            f"rewiring {number:2d} {taken / 1e6:6.2f} MB  {seconds:4.1f} s  prune rate {rate:.3f}, "
            f"{excess[-1]:.3f} times the entropy of the lists"
        )
    start = time.process_time()
    same = all(
        np.array_equal(topology.positions.numpy(), topologies[name].positions.numpy())
        for name, topology in history.topologies().items()
    )
    print(f"read back in {time.process_time() - start:.1f} s, equal: {same}")
rates = [SCHEDULES["cosine"].rate(number / REWIRINGS, PRUNE_RATE) for number in range(1, REWIRINGS + 1)]
total = whole + max(excess) * sum(map(bound, rates))
print(f"all {REWIRINGS} rewirings and the start, computed: at most {total / 1e6:.0f} MB")
print(f"peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")
