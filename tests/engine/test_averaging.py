"""Averages of packed models that are rewired."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from packed_cases import needs_kernels, seeded
from torch import Tensor, nn
from torch.optim import swa_utils

from selfish_rnn import Sparsifier
from selfish_rnn.engine import AveragedModel, pack

pytestmark = needs_kernels


def packed_model(method: str = "selfish", rewirings: int = 9) -> tuple[nn.Sequential, Sparsifier]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 8))
    sparsifier = Sparsifier(model, sparsity=0.8, rewirings=rewirings, method=method)
    return pack(model, strict=True), sparsifier


def train(model: nn.Module, seed: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        model(torch.randn(16, 8, generator=seeded(10 * seed + step))).square().mean().backward()
        optimizer.step()


class Expected:
    """The definition, position by position."""

    def __init__(self, weight: Any, fold: Callable[[float, float, int], float]) -> None:
        self._weight, self._fold = weight, fold
        self._averages: dict[int, float] = {}

    def update(self, count: int) -> None:
        positions, places = self._weight.sorted()
        values = self._weight.values.detach()[places].tolist()
        self._averages = {
            position: self._fold(self._averages.get(position, value), value, count) if count else value
            for position, value in zip(positions.tolist(), values, strict=True)
        }

    def dense(self) -> Tensor:
        dense = torch.zeros(self._weight.shape)
        for position, value in self._averages.items():
            dense.view(-1)[position] = value
        return dense


FOLDS: dict[str, tuple[dict[str, Any], Callable[[float, float, int], float]]] = {
    "mean": ({}, lambda average, value, count: average + (value - average) / (count + 1)),
    "exponential": (
        {"multi_avg_fn": swa_utils.get_ema_multi_avg_fn(0.7)},
        lambda average, value, count: 0.7 * average + 0.3 * value,
    ),
    "own": (
        {"avg_fn": lambda average, value, count: 0.5 * average + 0.5 * value},
        lambda average, value, count: 0.5 * (average + value),
    ),
}


@pytest.mark.parametrize("fold", FOLDS)
@pytest.mark.parametrize("method", ["selfish", "dsr", "set"])
def test_the_average_follows_positions(fold: str, method: str) -> None:
    model, sparsifier = packed_model(method)
    named, function = FOLDS[fold]
    average = AveragedModel(model, **named)
    expected = [Expected(layer.weight, function) for layer in (model[0], model[2])]
    for count in range(5):
        train(model, count)
        average.update_parameters(model)
        for one in expected:
            one.update(count)
        if count % 2:
            sparsifier.rewire()
    for layer, one in zip((average.module[0], average.module[2]), expected, strict=True):
        torch.testing.assert_close(layer.weight.to_dense().detach(), one.dense())
    assert torch.isfinite(average(torch.ones(2, 8))).all()


def test_the_average_of_a_model_that_is_never_rewired_is_that_of_torch() -> None:
    model, _ = packed_model()
    averages = AveragedModel(model), swa_utils.AveragedModel(model)
    for count in range(3):
        train(model, count)
        for average in averages:
            average.update_parameters(model)
    ours, theirs = (average.state_dict() for average in averages)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert torch.equal(averages[0](torch.ones(2, 8)), averages[1](torch.ones(2, 8)))


def test_torch_does_not_average_two_topologies() -> None:
    model, sparsifier = packed_model()
    average = swa_utils.AveragedModel(model)
    average.update_parameters(model)
    sparsifier.rewire()
    with pytest.raises(RuntimeError, match=r"topologies differ.*selfish_rnn.blend_ or selfish_rnn.AveragedModel"):
        average.update_parameters(model)


def test_an_average_in_place_of_the_tensors_of_a_state_dict_is_refused() -> None:
    """An average that is written into a state_dict would be lost: its tensors are copies."""
    model, sparsifier = packed_model()
    average = swa_utils.AveragedModel(model)
    train(model, 0)
    sparsifier.rewire()
    pairs = list(zip(average.module.state_dict().values(), model.state_dict().values(), strict=True))
    copies = [pair for pair in pairs if type(pair[0]) is not Tensor]
    assert copies
    for mean, tensor in copies:
        with pytest.raises(RuntimeError, match=r"average packed models with selfish_rnn.AveragedModel"):
            mean.copy_(tensor)
    average.module.load_state_dict(model.state_dict())
    assert torch.equal(average(torch.ones(2, 8)), model(torch.ones(2, 8)))


def test_a_snapshot_is_not_touched_by_rewirings_of_the_model() -> None:
    model, sparsifier = packed_model()
    train(model, 0)
    snapshot = copy.deepcopy(model)
    want = snapshot(torch.ones(2, 8))
    sparsifier.rewire()
    train(model, 1)
    assert torch.equal(snapshot(torch.ones(2, 8)), want)
    model.load_state_dict(snapshot.state_dict())
    assert torch.equal(model(torch.ones(2, 8)), want)


@pytest.mark.slow
def test_a_copy_may_be_copied_compiled_and_rewired() -> None:
    model, _ = packed_model()
    copied = copy.deepcopy(copy.deepcopy(model))
    weight = copied[0].weight
    weight.change_topology(weight.sorted()[0][:3], torch.empty(0, dtype=torch.int64))
    compiled = torch.compile(copied, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(torch.ones(2, 8)), copied(torch.ones(2, 8)))
    assert copied.state_dict().keys() == model.state_dict().keys()


def test_buffers_may_be_averaged_too() -> None:
    model, sparsifier = packed_model()
    average = AveragedModel(model, use_buffers=True)
    for count in range(3):
        train(model, count)
        average.update_parameters(model)
        sparsifier.rewire()
    assert torch.isfinite(average(torch.ones(2, 8))).all()
