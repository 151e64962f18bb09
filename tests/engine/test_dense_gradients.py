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
