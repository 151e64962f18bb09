"""What collecting dense gradients leaves behind: nothing, once the model is gone."""

from __future__ import annotations

import gc

import pytest
import torch
from packed_cases import needs_kernels, packed
from torch import Tensor

from selfish_rnn import RIGL, Sparsifier
from selfish_rnn.engine import dense_gradients, functional, pack
from selfish_rnn.models import MODELS
from tiny_runs import TINY_MODELS

pytestmark = needs_kernels


def remembered() -> int:
    """Of how many weights there is anything."""
    gc.collect()
    return len(dense_gradients._collected)


def loss(model: torch.nn.Module) -> Tensor:
    tokens = torch.randint(30, (4, 3))
    encoded = model.encode(tokens, model.initial_state(3))
    return model.loss(encoded.output, tokens)


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY_MODELS)
def test_models_that_are_dropped_leave_nothing(name: str) -> None:
    before = remembered()
    for _ in range(3):
        model = MODELS[name](30, **TINY_MODELS[name])
        sparsifier = Sparsifier(model, method=RIGL, sparsity=0.5, rewirings=2)
        pack(model)
        with sparsifier.dense_gradients():
            loss(model).backward()
        assert all(weight.has_gradient for weight in sparsifier.weights)
        assert remembered() == before + len(sparsifier.weights)
        del model, sparsifier
        assert remembered() == before


def test_a_weight_that_takes_the_memory_of_another_is_not_collected() -> None:
    weight = packed(20, 30, 0.3, 0)
    dense_gradients.start_collecting(weight)
    other = packed(20, 30, 0.3, 0)
    other.index = torch.from_numpy(weight.index.numpy())  # another tensor at the same address
    assert other.index.data_ptr() == weight.index.data_ptr()
    functional.linear(torch.ones(2, 30), other).sum().backward()
    assert not dense_gradients.has_collected(weight)
    assert not dense_gradients.has_collected(other)
    dense_gradients.stop_collecting(weight)


def test_a_paused_weight_keeps_what_it_has_and_takes_no_more() -> None:
    weight = packed(20, 30, 0.3, 0)
    dense_gradients.start_collecting(weight)
    functional.linear(torch.ones(2, 30), weight).sum().backward()
    dense_gradients.pause_collecting(weight)
    before = dense_gradients.dense_gradient(weight)
    functional.linear(torch.ones(2, 30), weight).sum().backward()
    assert torch.equal(dense_gradients.dense_gradient(weight), before)
    assert torch.equal(before, torch.full((20, 30), 2.0))
    dense_gradients.stop_collecting(weight)


@pytest.mark.parametrize("use", ["linear", "long sequence", "embedding", "weight drop"])
def test_gradients_at_some_positions_are_those_of_the_whole_matrix(use: str) -> None:
    torch.manual_seed(0)
    weight = packed(20, 30, 0.3, 0)
    dense_gradients.start_collecting(weight)
    for passes in range(2):
        if use == "embedding":
            tokens = torch.randint(20, (7, 2))
            (functional.embedding(tokens, weight) * torch.randn(7, 2, 30)).sum().backward()
            continue
        if use == "weight drop":
            dense_gradients.note_dropped(weight.index, (torch.rand(20, 30) < 0.5).float())
        x = torch.randn(400 if use == "long sequence" else 3 + passes, 30)
        (functional.linear(x, weight) * torch.randn(len(x), 20)).sum().backward()
    positions = torch.randperm(600)[:250]
    at = dense_gradients.gradient_at(weight, positions)
    torch.testing.assert_close(at, dense_gradients.dense_gradient(weight).flatten()[positions], atol=1e-4, rtol=1e-5)
    assert len(dense_gradients.gradient_at(weight, positions[:0])) == 0
    dense_gradients.stop_collecting(weight)


def test_growth_by_sampled_gradients_makes_no_dense_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense_gradients, "dense_gradient", None)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
    sparsifier = Sparsifier(model, method=RIGL.replace(growth="sampled-gradient"), sparsity=0.9, rewirings=2)
    pack(model)
    before = sparsifier.masks()
    with sparsifier.dense_gradients():
        model(torch.randn(3, 64)).square().sum().backward()
    sparsifier.rewire()
    assert sparsifier.active_weights == sparsifier.target_weights
    assert any(not torch.equal(mask, before[name]) for name, mask in sparsifier.masks().items())
