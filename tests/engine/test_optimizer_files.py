"""Saved optimizer states of packed weights: they fit the positions they were saved with, or are refused."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from packed_cases import matrix, needs_kernels, seeded
from torch import nn
from torch.optim import Adam, Optimizer

from selfish_rnn.engine import PackedWeight

pytestmark = needs_kernels


def weight(seed: int = 0) -> PackedWeight:
    return PackedWeight.from_dense(matrix(30, 40, 0.3, seed))


def step(optimizer: Optimizer, parameter: nn.Parameter) -> None:
    parameter.grad = torch.randn(parameter.shape, generator=seeded(1))
    optimizer.step()


def through_file(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded: dict[str, Any] = torch.load(file, weights_only=True)
    return loaded


def saved() -> tuple[PackedWeight, dict[str, Any], dict[str, Any]]:
    """A weight after a step, its state and that of its optimizer."""
    packed = weight()
    optimizer = Adam([packed.values])
    step(optimizer, packed.values)
    return packed, through_file(packed.state_dict()), through_file(optimizer.state_dict())


@pytest.mark.parametrize("model_first", [True, False])
def test_a_state_continues_with_the_model_it_was_saved_with(model_first: bool) -> None:
    packed, model_state, optimizer_state = saved()
    other = weight(7)  # of another topology
    optimizer = Adam([other.values])
    loads: list[Callable[[], object]] = [
        lambda: other.load_state_dict(model_state),
        lambda: optimizer.load_state_dict(optimizer_state),
    ]
    for load in loads if model_first else reversed(loads):
        load()
    again = Adam([packed.values])
    again.load_state_dict(copy.deepcopy(optimizer_state))
    for one, parameter in (again, packed.values), (optimizer, other.values):
        step(one, parameter)
    assert torch.equal(other.to_dense(), packed.to_dense())
    assert "packed_orders" not in optimizer.param_groups[0]


def test_a_state_of_other_positions_is_refused_until_they_are_loaded() -> None:
    packed, model_state, optimizer_state = saved()
    packed.change_topology(packed.sorted()[0][:5], torch.tensor([], dtype=torch.int64))
    packed.load_state_dict(model_state)
    positions = packed.sorted()[0]
    free = next(position for position in range(1200) if position not in positions)
    packed.change_topology(positions[:1], torch.tensor([free]))  # as many weights
    optimizer = Adam([packed.values])
    optimizer.load_state_dict(optimizer_state)
    before = packed.to_dense()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="loaded state of Adam is of other positions of a packed 30 x 40 matrix"):
            step(optimizer, packed.values)
    with pytest.raises(RuntimeError, match="is of other positions"):
        packed.change_topology(packed.sorted()[0][:1], positions[:0], [optimizer])
    assert torch.equal(packed.to_dense(), before)
    packed.load_state_dict(model_state)
    step(optimizer, packed.values)


def test_another_order_of_the_same_positions_is_refused() -> None:
    """As kernels of another version might have."""
    _, model_state, optimizer_state = saved()
    divided = PackedWeight((30, 40), torch.arange(0), gate_rows=(10, 20))
    divided.load_state_dict(model_state)
    optimizer = Adam([divided.values])
    optimizer.load_state_dict(optimizer_state)
    with pytest.raises(RuntimeError, match="comes from a version whose kernels have another order"):
        step(optimizer, divided.values)


def test_a_state_that_was_loaded_and_saved_again_keeps_its_record() -> None:
    packed, _, optimizer_state = saved()
    optimizer = Adam([packed.values])
    optimizer.load_state_dict(optimizer_state)
    record = optimizer_state["param_groups"][0]["packed_orders"]
    assert optimizer.state_dict()["param_groups"][0]["packed_orders"] == record == [packed.order_checksum()]
    step(optimizer, packed.values)
    assert optimizer.state_dict()["param_groups"][0]["packed_orders"] == record


def test_states_without_packed_weights_have_no_record() -> None:
    layer = nn.Linear(3, 2)
    optimizer = Adam(layer.parameters())
    layer(torch.ones(3)).sum().backward()
    optimizer.step()
    assert "packed_orders" not in optimizer.state_dict()["param_groups"][0]
