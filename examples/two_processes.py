"""The classifier of ``classifier.py``, trained by two processes that share their gradients (DDP).

Run it with ``python examples/two_processes.py``; on several machines ``torchrun`` starts the processes.
"""

from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from classifier import Classifier, batch
from comparison import Outcome, outcome, show, timed
from torch import distributed, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

from selfish_rnn import Sparsifier, pack


def train(rank: int, sparse: bool, epochs: int, steps: int) -> Outcome:
    torch.manual_seed(0)  # the same model everywhere
    generator = torch.Generator().manual_seed(rank)  # and other data
    model = Classifier()
    sparsifier = Sparsifier(model, sparsity=0.9, prune_rate=0.3, rewirings=epochs) if sparse else None
    if sparse:
        pack(model)
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(parallel.parameters(), lr=0.01)
    with timed() as clock:
        for _ in range(epochs):
            for _ in range(steps):
                letters, labels = batch(32, generator)
                optimizer.zero_grad()
                nn.functional.cross_entropy(parallel(letters), labels).backward()
                nn.utils.clip_grad_norm_(parallel.parameters(), 1.0)
                optimizer.step()
            if sparsifier:
                sparsifier.rewire()  # together, and an error if topologies differ
    letters, labels = batch(2000, torch.Generator().manual_seed(2))
    accuracy = (model(letters).argmax(1) == labels).float().mean().item()
    return outcome("sparse" if sparse else "dense", accuracy, clock, model, sparsifier)


def work(rank: int, store: str, epochs: int, steps: int, outcomes: Any) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=2, timeout=timedelta(seconds=60)
    )
    for sparse in (False, True):
        result = train(rank, sparse, epochs, steps)
        if rank == 0:
            outcomes.append(result)
    distributed.destroy_process_group()


def main(epochs: int = 10, steps: int = 100) -> list[Outcome]:
    with TemporaryDirectory() as folder, multiprocessing.Manager() as manager:
        shared = manager.list()
        multiprocessing.spawn(work, (str(Path(folder) / "store"), epochs, steps, shared), nprocs=2)
        outcomes = list(shared)
    show("accuracy", outcomes)
    return outcomes


if __name__ == "__main__":
    main()
