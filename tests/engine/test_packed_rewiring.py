"""Packed matrices whose weights come and go, and the memory they take."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from packed_cases import assert_consistent, densities, needs_kernels, packed, seeded, seeds
from torch import nn
from torch.optim import SGD, Adam, Optimizer

from selfish_rnn.engine import PackedLSTM, PackedWeight, functional
from selfish_rnn.optim import SNTASGD
from selfish_rnn.sparsifier.optimizer_state import SECOND_MOMENTS

pytestmark = needs_kernels

OPTIMIZERS: dict[str, Callable[[nn.Parameter], Optimizer]] = {
    "sgd": lambda parameter: SGD([parameter], lr=0.1, momentum=0.9),
    "adam": lambda parameter: Adam([parameter], lr=0.1, amsgrad=True),
    "snt-asgd": lambda parameter: SNTASGD([parameter], lr=0.1),
}


def stepped(optimizer: Optimizer, parameter: nn.Parameter, seed: int) -> None:
    if isinstance(optimizer, SNTASGD):
        optimizer.start_averaging()
    for step in range(3):
        parameter.grad = torch.randn(parameter.shape, generator=seeded(seed + step))
        optimizer.step()


def remembered(optimizer: Optimizer, weight: PackedWeight) -> dict[str, dict[int, float]]:
    """Of every position its value and what the optimizer knows of it."""
    positions, places = weight.sorted()
    tensors = {"value": weight.values.detach(), **optimizer.state[weight.values]}
    return {
        key: dict(zip(positions.tolist(), tensor[places].tolist(), strict=True))
        for key, tensor in tensors.items()
        if tensor.ndim == 1
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIMIZERS)
@settings(max_examples=40)
@given(
    st.integers(1, 40),
    st.integers(1, 140),
    densities,
    st.floats(0, 1),
    st.floats(0, 1),
    st.booleans(),
    seeds,
)
def test_rewiring_is_that_of_a_dense_matrix(
    name: str, rows: int, columns: int, density: float, leaving: float, arriving: float, same_count: bool, seed: int
) -> None:
    weight = packed(rows, columns, density, seed)
    parameter = weight.values
    optimizer = OPTIMIZERS[name](parameter)
    stepped(optimizer, parameter, seed)
    before = remembered(optimizer, weight)
    generator = seeded(seed + 9)
    existing = weight.sorted()[0]
    removed = existing[torch.rand(len(existing), generator=generator) < leaving]
    kept = existing[~torch.isin(existing, removed)]
    everywhere = torch.arange(rows * columns)
    places = everywhere[~torch.isin(everywhere, kept)]  # those removed among them
    places = places[torch.randperm(len(places), generator=generator)]
    grown = places[: len(removed) if same_count else round(arriving * len(places))].sort().values

    weight.change_topology(removed, grown, [optimizer, SGD([nn.Parameter(torch.zeros(3))], lr=0.1)])
    assert weight.values is parameter
    assert parameter.grad is None
    after = remembered(optimizer, weight)
    assert after.keys() == before.keys()
    assert len(before) > 1
    for key, numbers in after.items():
        staying = {place: before[key][place] for place in kept.tolist()}
        start = statistics.fmean(staying.values()) if key in SECOND_MOMENTS and staying else 0.0
        expected = staying | dict.fromkeys(grown.tolist(), pytest.approx(start, rel=1e-6))
        assert numbers == expected, key
    assert_consistent(weight, seed)
    stepped(optimizer, parameter, seed)


@pytest.mark.parametrize(
    ("removed", "grown", "message"),
    [
        ([1], [], "does not exist cannot be removed"),
        ([0, 5], [], "does not exist cannot be removed"),
        ([], [2], "a weight that exists cannot grow"),
        ([0], [2], "a weight that exists cannot grow"),
        ([], [6], "from 0 to 5"),
        ([], [-1], "from 0 to 5"),
        ([], [3, 1], "sorted"),
        ([2, 0], [], "sorted"),
        ([0, 0], [], "sorted, different"),
        ([], [1, 1], "sorted, different"),
    ],
)
def test_an_impossible_rewiring_changes_nothing(removed: list[int], grown: list[int], message: str) -> None:
    weight = PackedWeight((2, 3), torch.tensor([0, 2]), torch.tensor([1.0, 2.0]))
    optimizer = SGD([weight.values], lr=0.1, momentum=0.9)
    stepped(optimizer, weight.values, 0)
    before, index = remembered(optimizer, weight), weight.index.clone()
    changes = [torch.tensor(positions, dtype=torch.int64) for positions in (removed, grown)]
    with pytest.raises(ValueError, match=message):
        weight.change_topology(*changes, [optimizer])
    assert torch.equal(weight.index, index)
    assert remembered(optimizer, weight) == before


@pytest.mark.parametrize("more", [0, 5])
def test_training_goes_on_while_the_last_graph_is_still_there(more: int) -> None:
    """As in a loop, where ``loss`` lives until the next one is computed; its own backward pass is refused."""
    weight = packed(20, 30, 0.3, 0)
    x = torch.ones(2, 30)
    loss, unused = (functional.linear(x, weight).square().sum() for _ in range(2))
    loss.backward()
    existing = weight.sorted()[0]
    empty = torch.arange(600)[~torch.isin(torch.arange(600), existing)]
    weight.change_topology(existing[:4], empty[: 4 + more])
    new = functional.linear(x, weight).square().sum()
    new.backward()
    assert weight.values.grad is not None
    assert len(weight.values.grad) == weight.count
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        unused.backward()
    assert loss > 0


@pytest.mark.parametrize("sparsity", [0.5, 0.7, 0.9, 0.95])
def test_memory_of_a_trained_weight(sparsity: float) -> None:
    """Value, gradient, place, average and age: 24 bytes for each weight that exists."""
    weight = packed(1200, 600, 1 - sparsity, 0, gates=4)
    optimizer = SNTASGD([weight.values], lr=0.1)
    optimizer.start_averaging()
    functional.linear(torch.ones(2, 600), weight).sum().backward()
    optimizer.step()
    tensors = [weight.values, weight.values.grad, weight.index, *optimizer.state[weight.values].values()]
    assert sum(tensor.nbytes for tensor in tensors if tensor is not None) <= 24 * weight.count


def largest_allocation(work: Callable[[], object]) -> int:
    """In bytes, as torch's allocator sees it, inside operators too."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        work()
    assert profile.profiler is not None
    events = profile.profiler.kineto_results.events()
    return max(event.nbytes() for event in events if event.name() == "[memory]")


def test_nothing_of_the_dense_size_is_ever_made() -> None:
    assert largest_allocation(lambda: torch.zeros(1000)) == 4000
    weight = packed(1200, 600, 0.2, 0)
    optimizer = SNTASGD([weight.values], lr=0.1)
    x, tokens = torch.ones(20, 600, requires_grad=True), torch.arange(20)
    positions = weight.sorted()[0]

    def work() -> None:
        loss = functional.linear(x, weight).sum() + functional.embedding(tokens, weight).sum()
        (loss + functional.linear_cross_entropy(x, weight, None, tokens)).backward()
        optimizer.step()
        weight.change_topology(positions[:500], positions[:500], [optimizer])

    assert largest_allocation(work) < 1200 * 600 * 4 / 2
    lstm = PackedLSTM(600, 300, sparsity=0.9)
    window = torch.ones(4, 8, 600, requires_grad=True)
    assert largest_allocation(lambda: lstm(window)[0].sum().backward()) < 1200 * 300 * 4 / 2
