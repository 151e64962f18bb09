"""Intrinsic sparse structures: the penalty on groups, the threshold, and what every sparse training offers."""

from __future__ import annotations

import copy
import gc
import math
import weakref
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from intrinsic_cases import WORDS, kill, models, penalty_by_loop
from torch import nn
from torch.optim.optimizer import Optimizer

from selfish_rnn.errors import UserError
from selfish_rnn.models import LanguageModel, OrderedNeuronsLSTM, StackedRNN
from selfish_rnn.optim import SNTASGD
from selfish_rnn.sparsifier import SparseTraining, Sparsifier
from selfish_rnn.sparsifier.iss import IntrinsicSparseStructures, UnitLayer, UnitPart, shrink
from selfish_rnn.training.metrics import describe, large_weights

# The penalty


@settings(max_examples=60, deadline=None)
@given(models(), st.floats(1e-6, 10))
def test_penalty_and_its_gradient_are_those_of_a_loop_over_groups(model: LanguageModel, strength: float) -> None:
    penalty = IntrinsicSparseStructures(model, strength=strength).penalty()
    expected = penalty_by_loop(model, strength)
    torch.testing.assert_close(penalty, expected)
    grouped = [*{part.parameter: None for layer in model.unit_layers() for part in layer.parts}]
    gradients = zip(torch.autograd.grad(penalty, grouped), torch.autograd.grad(expected, grouped), strict=True)
    for got, want in gradients:
        torch.testing.assert_close(got, want)


def test_penalty_of_zero_weights_has_a_gradient() -> None:
    model = StackedRNN(WORDS, embedding=3, hidden=4)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    penalty = IntrinsicSparseStructures(model, strength=1.0).penalty()
    penalty.backward()
    assert penalty.item() == pytest.approx(8 * 1e-4)
    assert not any(parameter.grad.any() for parameter in model.parameters() if parameter.grad is not None)


# The threshold


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam, SNTASGD])
def test_a_step_zeroes_what_is_below_the_threshold(optimizer: Any) -> None:
    model = StackedRNN(WORDS, embedding=6, hidden=6)
    stepping: Optimizer = optimizer(model.parameters(), lr=0.1)
    structure = IntrinsicSparseStructures(model, threshold=0.05)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    if isinstance(stepping, SNTASGD):
        stepping.start_averaging()
    stepping.step()
    grouped = {weight.name for weight in structure.weights if weight.grouped}
    assert {weight.name for weight in structure.weights} - grouped == {"embedding.weight"}
    for name, parameter in model.named_parameters():
        expected = before[name].where(before[name].abs() >= 0.05, 0) if name in grouped else before[name]
        assert torch.equal(parameter, expected)
        if isinstance(stepping, SNTASGD):
            assert torch.equal(stepping.state[parameter]["average"], before[name])
    assert structure.active_weights < structure.total_weights


def test_optimizers_of_other_weights_change_nothing() -> None:
    model = StackedRNN(WORDS, embedding=6, hidden=6)
    structure = IntrinsicSparseStructures(model, threshold=0.05)
    torch.optim.SGD([model.decoder.bias], lr=0.1).step()
    assert structure.active_weights == structure.total_weights
    torch.optim.SGD(model.decoder.parameters(), lr=0.1).step()
    assert structure.active_weights < structure.total_weights
    assert model.rnn.weight_hh_l0.all()


def test_lives_as_long_as_the_model_and_can_be_detached() -> None:
    model = StackedRNN(WORDS, embedding=6, hidden=6)
    reference = weakref.ref(IntrinsicSparseStructures(model, threshold=0.05))
    gc.collect()
    structure = reference()
    assert structure is not None
    with pytest.raises(ValueError, match="already has a sparsifier"):
        Sparsifier(model, sparsity=0.5, rewirings=1)
    structure.detach()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert structure.active_weights == structure.total_weights
    del structure
    gc.collect()
    assert reference() is None


# What every sparse training offers


class TwoLayers(nn.Module):
    """A model that is none of the package's: it describes its units, and can be made again with fewer of them."""

    def __init__(self, hidden: int = 4) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, hidden), nn.Linear(hidden, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(inputs))

    def unit_layers(self) -> list[UnitLayer]:
        parts = (UnitPart(self.first.weight, axis=0), UnitPart(self.second.weight, axis=1, reads=True))
        return [UnitLayer("hidden", self.first.out_features, parts, (UnitPart(self.first.bias, axis=0),))]

    def resized(self, sizes: Sequence[int]) -> TwoLayers:
        return TwoLayers(*sizes)


def test_any_model_that_describes_its_units_will_do() -> None:
    model = TwoLayers()
    structure = IntrinsicSparseStructures(model, exclude="second")
    assert [weight.name for weight in structure.weights] == ["first.weight"]
    kill(structure.layers[0], 2)
    assert structure.measures() == {"live_units": {"hidden": 3}}
    smaller = shrink(model)
    assert smaller.first.weight.shape == (3, 3)
    inputs = torch.randn(5, 3)
    torch.testing.assert_close(smaller(inputs), model(inputs))
    with pytest.raises(TypeError, match=r"with unit_layers\(\) and resized\(\); Linear does not"):
        IntrinsicSparseStructures(nn.Linear(3, 3))


def test_the_defaults_promise_nothing_and_do_nothing() -> None:
    model = StackedRNN(WORDS, embedding=5, hidden=6)
    structure: SparseTraining = IntrinsicSparseStructures(model)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    with structure.dense_gradients():
        structure.rewire()
    assert all(map(torch.equal, before, model.parameters()))
    assert structure.at_target
    assert structure.target_weights == structure.active_weights
    assert not structure.sparse_weights
    assert not structure.method.rewires
    assert not structure.method.prunes
    sparsifier: SparseTraining = Sparsifier(StackedRNN(WORDS, embedding=5, hidden=6), sparsity=0.5, rewirings=1)
    assert sparsifier.sparse_weights is sparsifier.weights
    assert sparsifier.penalty() is None
    assert sparsifier.measures() == {}
    with sparsifier.thresholded():
        assert sparsifier.active_weights == sparsifier.target_weights


def test_counts_and_tables() -> None:
    model = StackedRNN(WORDS, embedding=5, hidden=6)
    structure = IntrinsicSparseStructures(model)
    sparsifier = Sparsifier(copy.deepcopy(model), sparsity=0.5, rewirings=1)
    assert [weight.name for weight in structure.weights] == [weight.name for weight in sparsifier.weights]
    assert structure.total_weights == sparsifier.total_weights
    kill(structure.layers[1], 3)
    structure.rewire()
    structure.track(torch.optim.SGD(model.parameters(), lr=1.0))
    assert structure.last_rewired_fraction == 0
    assert structure.live_units() == {"layer_0": 6, "layer_1": 5}
    zeros = sum(int((weight.parameter == 0).count_nonzero()) for weight in structure.weights)
    assert structure.active_weights == structure.total_weights - zeros
    densities: Any = describe(structure)["density"]
    assert densities["rnn.weight_ih_l1"]["forget"] == pytest.approx(5 / 6)
    assert set(large_weights(structure)) == set(densities)
    assert "layer_1=5 of 6" in repr(structure)
    assert structure.summary().startswith("matrix")
    assert math.prod(structure.weights[1].topology.shape) == structure.weights[1].parameter.numel()


def test_state() -> None:
    state = IntrinsicSparseStructures(
        StackedRNN(WORDS, embedding=5, hidden=6), strength=0.1, threshold=0.01
    ).state_dict()
    other = IntrinsicSparseStructures(StackedRNN(WORDS, embedding=5, hidden=6))
    other.load_state_dict(state)
    assert (other.strength, other.threshold) == (0.1, 0.01)
    with pytest.raises(ValueError, match="no strength, threshold"):
        other.load_state_dict({"steps": 3})


def test_what_is_refused() -> None:
    with pytest.raises(UserError, match="OrderedNeuronsLSTM does not describe its units"):
        IntrinsicSparseStructures(OrderedNeuronsLSTM(WORDS, embedding=10, hidden=20))
    with pytest.raises(ValueError, match="strength"):
        IntrinsicSparseStructures(StackedRNN(WORDS, embedding=5, hidden=6), strength=-1)
    with pytest.raises(ValueError, match="threshold"):
        IntrinsicSparseStructures(StackedRNN(WORDS, embedding=5, hidden=6), threshold=-1)
