"""Two processes that train one model keep one topology, or stop with a clear word."""

from __future__ import annotations

import os
import signal
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from sparse_cases import Classifier
from torch import distributed, multiprocessing, nn

from selfish_rnn import METHODS, Sparsifier, engine

pytestmark = pytest.mark.slow

OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.5),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.5, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.05),
}


class Case(NamedTuple):
    """A method, its engine and optimizer, and the seed of each rank."""

    method: str
    packed: bool = False
    optimizer: str = "sgd"
    seeds: tuple[int | None, int | None] = (1, 1)
    registered: bool = True

    def __str__(self) -> str:
        return f"{self.method}-{'packed' if self.packed else 'masked'}-{self.optimizer}"


def train(rank: int, case: Case) -> Any:
    """The masks after each of three rewirings, the last weights and their number, or what went wrong."""
    torch.manual_seed(7)
    model = Classifier()
    sparsifier = Sparsifier(model, sparsity=0.6, method=case.method, prune_rate=0.5, rewirings=4, seed=case.seeds[rank])
    if case.packed:
        engine.pack(model)
    parallel = nn.parallel.DistributedDataParallel(model)
    if case.registered:
        sparsifier.register_ddp(parallel)
    optimizer = OPTIMIZERS[case.optimizer](parallel.parameters())
    torch.manual_seed(rank)  # other data on each rank
    masks = []
    try:
        for _ in range(3):
            for _ in range(3):
                optimizer.zero_grad()
                with sparsifier.dense_gradients():
                    parallel(torch.randint(10, (7, 3))).pow(2).mean().backward()
                optimizer.step()
            sparsifier.rewire()
            masks.append({name: mask.tolist() for name, mask in sparsifier.masks().items()})
    except RuntimeError as error:
        return str(error)
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    return masks, weights, sparsifier.active_weights == sparsifier.target_weights


def work(rank: int, store: str, cases: list[Case], outcome: Any) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=2, timeout=timedelta(seconds=60)
    )
    for case in cases:
        outcome[case, rank] = train(rank, case)
    distributed.destroy_process_group()


PARTING = Case("selfish", seeds=(1, 2))
PACKED = [name for name in METHODS if name != "snfs"] if engine.available() else []  # pack refuses it
FORGOTTEN = [Case(method, packed=True, registered=False) for method in ("dsr", "gmp") if method in PACKED]
CASES = [
    *(Case(method) for method in METHODS),  # SNFS grows by the gradient, as it has no momentum
    *(Case(method, packed=True) for method in PACKED),
    Case("snfs", optimizer="momentum"),
    Case("snfs", optimizer="adam"),
    *(Case(method, packed, "adam") for method in ("rigl", "dsr") for packed in {False, method in PACKED}),
    Case("set", seeds=(None, None)),
]


def pair(work: Any, *arguments: Any) -> dict[Any, Any]:
    """What two processes have written down, each of which does the work of its rank."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, context.Manager() as manager:
        outcome = manager.dict()
        given = (str(Path(folder) / "store"), *arguments, outcome)
        processes = [context.Process(target=work, args=(rank, *given)) for rank in range(2)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(120)
            assert process.exitcode is not None, "a process hangs"
        return dict(outcome)


@pytest.fixture(scope="module")
def outcomes() -> dict[tuple[Case, int], Any]:
    """All cases one after the other, in one pair of processes."""
    return pair(work, [*CASES, PARTING, *FORGOTTEN])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_ranks_keep_one_topology(outcomes: dict[tuple[Case, int], Any], case: Case) -> None:
    assert not isinstance(outcomes[case, 0], str), outcomes[case, 0]
    (masks, weights, exact), (other_masks, other_weights, _) = outcomes[case, 0], outcomes[case, 1]
    assert len(masks) == 3
    assert masks == other_masks
    assert (masks[0] != masks[2]) == (METHODS[case.method].rewires or METHODS[case.method].prunes)
    assert exact
    torch.testing.assert_close(weights, other_weights)


def test_ranks_that_part_are_stopped_at_the_rewiring(outcomes: dict[tuple[Case, int], Any]) -> None:
    assert all("have different topologies of" in outcomes[PARTING, rank] for rank in (0, 1))


@pytest.mark.parametrize("case", FORGOTTEN, ids=str)
def test_a_wrapper_that_was_not_registered_is_an_error_if_sizes_change(
    outcomes: dict[tuple[Case, int], Any], case: Case
) -> None:
    for rank in (0, 1):
        assert "call sparsifier.register_ddp(wrapper) after wrapping the model" in outcomes[case, rank]


def test_other_things_than_a_wrapper_of_the_model_are_not_registered() -> None:
    sparsifier = Sparsifier(nn.Linear(20, 20), sparsity=0.5, rewirings=1)
    with pytest.raises(TypeError, match="takes a DistributedDataParallel or None, not a Linear"):
        sparsifier.register_ddp(nn.Linear(2, 2))  # type: ignore[arg-type]


def bytes_sent(packed: bool) -> int:
    """What one rank gives to a reduction of all gradients, counted by a hook that stays while the topology changes."""
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 64))
    sparsifier = Sparsifier(model, sparsity=0.9, method="dsr", rewirings=4, seed=1)
    if packed:
        engine.pack(model)
    parallel = nn.parallel.DistributedDataParallel(model)
    sparsifier.register_ddp(parallel)
    sent: list[int] = []

    def count(state, bucket):  # type: ignore[no-untyped-def]  # torch looks at annotations, and wants no strings
        sent.append(bucket.buffer().nbytes)
        future = distributed.all_reduce(bucket.buffer(), async_op=True).get_future()
        return future.then(lambda done: done.value()[0] / 2)

    parallel.register_comm_hook(None, count)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        sent.clear()
        optimizer.zero_grad()
        parallel(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()
        sparsifier.rewire()
    return sum(sent)


def sends(rank: int, store: str, outcome: Any) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    outcome[rank] = bytes_sent(True), bytes_sent(False)
    distributed.destroy_process_group()


@pytest.mark.skipif(not engine.available(), reason="needs the packed engine")
def test_packed_gradients_travel_packed() -> None:
    outcome = pair(sends)
    packed, dense = outcome[0]
    values = round(0.1 * 2 * 64 * 256) + 256 + 64
    assert packed == 4 * values
    assert dense == 4 * (2 * 64 * 256 + 256 + 64)


def dies(rank: int, store: str, outcome: Any) -> None:
    """Rank 1 is killed between two rewirings; rank 0 says what stops it."""
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=2, timeout=timedelta(seconds=20)
    )
    model = nn.Linear(8, 8)
    sparsifier = Sparsifier(model, sparsity=0.5, rewirings=4, seed=1)
    parallel = nn.parallel.DistributedDataParallel(model)
    sparsifier.rewire()
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    for where, action in {"rewire": sparsifier.rewire, "backward": parallel(torch.ones(2, 8)).sum().backward}.items():
        try:
            action()
        except RuntimeError as error:
            outcome[where] = str(error)


def test_a_killed_rank_stops_the_other_with_a_message() -> None:
    outcome = pair(dies)
    assert "a rank that trains together with rank 0 is gone" in outcome["rewire"]
    assert outcome["backward"]  # torch's own words, such as "Connection closed by peer"
