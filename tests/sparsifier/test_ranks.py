"""Two processes that train one model keep one topology, or stop with a clear word."""

from __future__ import annotations

import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from sparse_cases import Classifier
from torch import distributed, multiprocessing, nn

from selfish_rnn import METHODS, Sparsifier, engine

pytestmark = pytest.mark.slow

REWIRING = [name for name, method in METHODS.items() if method.rewires or method.prunes]


def train_on_rank(rank: int, store: str, method: str, packed: bool, seed: int | None, outcome: Any) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=2, timeout=timedelta(seconds=60)
    )
    try:
        torch.manual_seed(7)
        model = Classifier()
        sparsifier = Sparsifier(model, sparsity=0.6, method=method, prune_rate=0.5, rewirings=4, seed=seed)
        if packed:
            engine.pack(model)
        parallel = nn.parallel.DistributedDataParallel(model)
        optimizer = torch.optim.SGD(parallel.parameters(), lr=0.5, momentum=0.9 if method == "snfs" else 0.0)
        torch.manual_seed(rank)  # other data on each rank
        for _ in range(3):
            for _ in range(3):
                optimizer.zero_grad()
                with sparsifier.dense_gradients():
                    parallel(torch.randint(10, (7, 3))).pow(2).mean().backward()
                optimizer.step()
            sparsifier.rewire()
        outcome[rank] = (list(sparsifier.masks().values()), sparsifier.active_weights)
    except RuntimeError as error:
        outcome[rank] = str(error)
    finally:
        distributed.destroy_process_group()


def on_two_ranks(method: str, *, packed: bool = False, seeds: tuple[int | None, int | None] = (1, 1)) -> dict[int, Any]:
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, context.Manager() as manager:
        outcome = manager.dict()
        processes = [
            context.Process(
                target=train_on_rank, args=(rank, str(Path(folder) / "store"), method, packed, seeds[rank], outcome)
            )
            for rank in range(2)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(120)
        return dict(outcome)


@pytest.mark.parametrize("method", REWIRING)
def test_ranks_keep_one_topology(method: str) -> None:
    outcome = on_two_ranks(method)
    (first, count), (second, other_count) = outcome[0], outcome[1]
    assert count == other_count
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


@pytest.mark.skipif(not engine.available(), reason="the packed engine's kernels are not built")
@pytest.mark.parametrize("method", ["selfish", "rigl"])
def test_packed_ranks_keep_one_topology(method: str) -> None:
    outcome = on_two_ranks(method, packed=True)
    (first, count), (second, other_count) = outcome[0], outcome[1]
    assert count == other_count
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_ranks_that_part_are_stopped_at_the_rewiring() -> None:
    outcome = on_two_ranks("selfish", seeds=(1, 2))
    assert all("have different topologies of" in outcome[rank] for rank in (0, 1))


def test_without_a_seed_ranks_take_the_first_one_s() -> None:
    (first, _), (second, _) = on_two_ranks("set", seeds=(None, None)).values()
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
