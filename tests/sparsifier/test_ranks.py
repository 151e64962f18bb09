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


Case = tuple[str, bool, tuple[int | None, int | None]]
"""A method, whether it is packed, and the seed of each rank."""


def train(rank: int, method: str, packed: bool, seed: int | None) -> Any:
    """Masks and number of weights after three rewirings, or what went wrong."""
    torch.manual_seed(7)
    model = Classifier()
    sparsifier = Sparsifier(model, sparsity=0.6, method=method, prune_rate=0.5, rewirings=4, seed=seed)
    if packed:
        engine.pack(model)
    parallel = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.5, momentum=0.9 if method == "snfs" else 0.0)
    torch.manual_seed(rank)  # other data on each rank
    try:
        for _ in range(3):
            for _ in range(3):
                optimizer.zero_grad()
                with sparsifier.dense_gradients():
                    parallel(torch.randint(10, (7, 3))).pow(2).mean().backward()
                optimizer.step()
            sparsifier.rewire()
    except RuntimeError as error:
        return str(error)
    return {name: mask.tolist() for name, mask in sparsifier.masks().items()}, sparsifier.active_weights


def work(rank: int, store: str, cases: list[Case], outcome: Any) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=2, timeout=timedelta(seconds=60)
    )
    for case in cases:
        method, packed, seeds = case
        outcome[case, rank] = train(rank, method, packed, seeds[rank])
    distributed.destroy_process_group()


PARTING: Case = ("selfish", False, (1, 2))
WITHOUT_SEED: Case = ("set", False, (None, None))
CASES: list[Case] = [
    *((method, False, (1, 1)) for method in REWIRING),
    *((method, True, (1, 1)) for method in ("selfish", "rigl") if engine.available()),
    WITHOUT_SEED,
]


@pytest.fixture(scope="module")
def outcomes() -> dict[tuple[Case, int], Any]:
    """All cases one after the other, in one pair of processes."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, context.Manager() as manager:
        outcome = manager.dict()
        arguments = (str(Path(folder) / "store"), [*CASES, PARTING], outcome)
        processes = [context.Process(target=work, args=(rank, *arguments)) for rank in range(2)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(120)
        return dict(outcome)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_ranks_keep_one_topology(outcomes: dict[tuple[Case, int], Any], case: Case) -> None:
    assert outcomes[case, 0] == outcomes[case, 1]
    assert not isinstance(outcomes[case, 0], str)


def test_ranks_that_part_are_stopped_at_the_rewiring(outcomes: dict[tuple[Case, int], Any]) -> None:
    assert all("have different topologies of" in outcomes[PARTING, rank] for rank in (0, 1))
