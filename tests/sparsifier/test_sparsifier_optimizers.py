"""Masks and fresh state under every optimizer of torch and our own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sparse_cases import Classifier, assert_inside_masks, backward, layer_counts, train
from torch import Tensor, nn, optim
from torch.optim import Optimizer

from selfish_rnn import NTASGD, SNTASGD, Sparsifier, engine
from selfish_rnn.sparsifier.optimizer_state import SECOND_MOMENTS


def averaging(kind: type[SNTASGD] | type[NTASGD]) -> Callable[[list[nn.Parameter]], Optimizer]:
    def make(parameters: list[nn.Parameter]) -> Optimizer:
        optimizer = kind(parameters, lr=0.1)
        optimizer.start_averaging()
        return optimizer

    return make


OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], Optimizer]] = {
    "SGD": lambda p: optim.SGD(p, lr=0.1, weight_decay=0.01),
    "momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    "nesterov": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "Adam": lambda p: optim.Adam(p, lr=0.01),
    "Adam foreach": lambda p: optim.Adam(p, lr=0.01, foreach=True),
    "Adam fused": lambda p: optim.Adam(p, lr=0.01, fused=True),
    "AdamW amsgrad": lambda p: optim.AdamW(p, lr=0.01, amsgrad=True),
    "RMSprop": lambda p: optim.RMSprop(p, lr=0.01, centered=True, momentum=0.9),
    "Adagrad": lambda p: optim.Adagrad(p, lr=0.01, initial_accumulator_value=0.1),
    "Adadelta": lambda p: optim.Adadelta(p),
    "Adamax": lambda p: optim.Adamax(p),
    "NAdam": lambda p: optim.NAdam(p),
    "RAdam": lambda p: optim.RAdam(p),
    "Rprop": lambda p: optim.Rprop(p, lr=0.02),
    "ASGD": lambda p: optim.ASGD(p, lr=0.1, t0=0),
    "SNTASGD": averaging(SNTASGD),
    "NTASGD": averaging(NTASGD),
}
# Newer than the oldest torch this package takes.
if hasattr(optim, "Adafactor"):
    OPTIMIZERS["Adafactor"] = lambda p: optim.Adafactor(p)
if hasattr(optim, "Muon"):
    OPTIMIZERS["Muon"] = lambda p: optim.Muon([weight for weight in p if weight.ndim == 2])

STARTS_AT = {"Adagrad": {"sum": 0.1}, "Rprop": {"step_size": 0.02}}
ADAPTIVE = ("Adam", "AdamW amsgrad", "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam")
EVERY = pytest.mark.parametrize("name", OPTIMIZERS)


@EVERY
@pytest.mark.parametrize("optimizer_first", [True, False])
def test_nothing_outside_the_mask_and_exact_counts(name: str, optimizer_first: bool) -> None:
    model = Classifier()
    make = OPTIMIZERS[name]
    optimizer = make(list(model.parameters())) if optimizer_first else None
    sparsifier = Sparsifier(model, sparsity=0.67, rewirings=10)
    optimizer = optimizer or make(list(model.parameters()))
    budget = layer_counts(sparsifier)
    before = model.rnn.weight_hh_l1.detach().clone()
    for _ in range(3):
        for seed in range(3):
            train(model, optimizer, steps=1, seed=seed)
            assert_inside_masks(sparsifier)
        sparsifier.rewire()
        assert layer_counts(sparsifier) == budget
        assert_inside_masks(sparsifier)
    assert not torch.equal(model.rnn.weight_hh_l1, before)


def per_weight_state(optimizer: Optimizer, parameter: Tensor) -> dict[str, Tensor]:
    return {
        key: value
        for key, value in optimizer.state[parameter].items()
        if isinstance(value, Tensor) and value.shape == parameter.shape
    }


@EVERY
def test_removed_and_grown_weights_start_afresh(name: str) -> None:
    """As with a new optimizer; but second moments of grown weights are the mean of those that stay."""
    model = Classifier()
    sparsifier = Sparsifier(model, sparsity=0.67, prune_rate=0.8, rewirings=10)
    optimizer = OPTIMIZERS[name](list(model.parameters()))
    train(model, optimizer, steps=4)
    old = [weight.mask.clone() for weight in sparsifier.weights]
    remembered = [
        {key: value.clone() for key, value in per_weight_state(optimizer, weight.parameter).items()}
        for weight in sparsifier.weights
    ]
    values = [weight.parameter.detach().clone() for weight in sparsifier.weights]
    sparsifier.rewire()
    for weight, mask, memory, value in zip(sparsifier.weights, old, remembered, values, strict=True):
        changed = weight.mask != mask
        grown, removed = changed & (weight.mask == 1), changed & (weight.mask == 0)
        assert grown.any()
        assert not weight.parameter[changed].any()
        kept = (weight.parameter == value) & (weight.mask == 1) & (value != 0)
        assert kept.any()
        for key, state in per_weight_state(optimizer, weight.parameter).items():
            start = STARTS_AT.get(name, {}).get(key, 0)
            assert not (state[removed] - start).any()
            if key in SECOND_MOMENTS:
                assert (state[grown] > 0).all()
                start = float(memory[key][kept].double().mean())
            assert state[grown].unique().tolist() == pytest.approx([start], rel=1e-6)
            assert torch.equal(state[kept], memory[key][kept])


def test_the_optimizers_that_keep_second_moments() -> None:
    found = {
        name
        for name, make in OPTIMIZERS.items()
        for state in [per_weight_state_after_a_step(make)]
        if SECOND_MOMENTS & state.keys()
    }
    assert found == {*ADAPTIVE, "Adam foreach", "Adam fused"}


def per_weight_state_after_a_step(make: Callable[[list[nn.Parameter]], Optimizer]) -> dict[str, Tensor]:
    parameter = nn.Parameter(torch.ones(3, 4))
    optimizer = make([parameter])
    parameter.grad = torch.ones(3, 4)
    optimizer.step()
    return per_weight_state(optimizer, parameter)


@pytest.mark.skipif(not engine.available(), reason="the kernels are not built")
@pytest.mark.parametrize("name", ADAPTIVE)
@settings(max_examples=10)
@given(st.integers(2, 12), st.integers(2, 12), st.floats(0.1, 0.9), st.integers(0, 1000))
def test_both_engines_start_grown_weights_alike(name: str, rows: int, columns: int, rate: float, seed: int) -> None:
    found = []
    for form in (lambda layer: layer, engine.pack):
        torch.manual_seed(seed)
        layer = nn.Linear(columns, rows)
        sparsifier = Sparsifier(layer, sparsity=0.5, prune_rate=rate, schedule="constant", seed=seed)
        layer = form(layer)
        optimizer = OPTIMIZERS[name](list(layer.parameters()))
        for _ in range(2):
            layer(torch.randn(3, columns)).square().sum().backward()
            optimizer.step()
        (weight,) = sparsifier.weights
        before = weight.topology.positions
        sparsifier.rewire()
        state = per_weight_state(optimizer, weight.parameter)
        found.append({key: weight.gather(tensor) for key, tensor in state.items()})
        grown = ~torch.isin(weight.topology.positions, before)
        for key in SECOND_MOMENTS & state.keys():
            assert len(found[-1][key][grown].unique()) <= 1
            assert (found[-1][key][grown] > 0).all()
    masked, packed = found
    for key, tensor in masked.items():
        # Where gradients cancel out, what is left of a first moment is rounding.
        torch.testing.assert_close(packed[key], tensor, rtol=1e-4, atol=1e-9 if key in SECOND_MOMENTS else 1e-6)


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.0, 0.999)])
def test_the_first_step_of_a_grown_weight_is_no_longer_than_others(betas: tuple[float, float]) -> None:
    model = nn.Linear(30, 20)
    sparsifier = Sparsifier(model, sparsity=0.8, prune_rate=0.5, schedule="constant")
    optimizer = optim.Adam(model.parameters(), lr=0.01, betas=betas)
    generator = torch.Generator().manual_seed(0)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.randn(16, 30, generator=generator)).sub(1).square().mean().backward()
        optimizer.step()

    for _ in range(100):
        step()
    before = sparsifier.weights[0].topology.to_mask()
    sparsifier.rewire()
    grown = sparsifier.weights[0].topology.to_mask() & ~before
    assert grown.any()
    step()
    assert model.weight.detach()[grown].abs().max() < 3 * 0.01


def test_a_weight_removed_and_grown_at_once_starts_anew() -> None:
    """In a full matrix every grown weight was removed just now: value and momentum must not survive that."""
    model = nn.Linear(10, 10)
    sparsifier = Sparsifier(model, sparsity=0.0, prune_rate=0.5, schedule="constant")
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.randn(4, 10)).pow(2).sum().backward()
    optimizer.step()
    sparsifier.rewire()
    assert int((model.weight == 0).sum()) == 50
    assert torch.equal(optimizer.state[model.weight]["momentum_buffer"] == 0, model.weight == 0)


def test_several_optimizers_hold_parts_of_the_model() -> None:
    model = Classifier()
    sparsifier = Sparsifier(model, sparsity=0.5, rewirings=5)
    recurrent = optim.Adam(model.rnn.parameters())
    others = optim.SGD([*model.embedding.parameters(), *model.decoder.parameters()], lr=0.1, momentum=0.9)
    backward(model)
    recurrent.step()
    others.step()
    old = [weight.mask.clone() for weight in sparsifier.weights]
    sparsifier.rewire()
    for weight, mask in zip(sparsifier.weights, old, strict=True):
        owner = recurrent if weight.name.startswith("rnn") else others
        first_moment = owner.state[weight.parameter]["exp_avg" if owner is recurrent else "momentum_buffer"]
        assert not first_moment[weight.mask != mask].any()
    assert_inside_masks(sparsifier)


def test_an_optimizer_of_another_model_is_not_touched() -> None:
    Sparsifier(Classifier(), sparsity=0.5, method="static")
    dense = Classifier()
    train(dense, optim.SGD(dense.parameters(), lr=0.1))
    assert all(parameter.all() for parameter in dense.parameters())


def test_closures() -> None:
    """L-BFGS evaluates the model many times within one step."""
    model = Classifier()
    sparsifier = Sparsifier(model, sparsity=0.5, rewirings=5)
    optimizer = optim.LBFGS(model.parameters(), max_iter=3)

    def closure() -> Tensor:
        optimizer.zero_grad()
        backward(model)
        return model(torch.zeros(2, 2, dtype=torch.int64)).pow(2).mean()

    for _ in range(2):
        optimizer.step(closure)
        assert_inside_masks(sparsifier)
        sparsifier.rewire()


def test_sparse_gradients_of_an_embedding() -> None:
    model = nn.Embedding(20, 6, sparse=True)
    sparsifier = Sparsifier(model, sparsity=0.5, rewirings=5)
    optimizer = optim.SparseAdam(model.parameters())
    for seed in range(3):
        optimizer.zero_grad()
        model(torch.tensor([seed, 1, 1])).sum().backward()
        optimizer.step()
        assert_inside_masks(sparsifier)
        sparsifier.rewire()


def test_a_watched_optimizer_forgets_before_its_first_step() -> None:
    """State loaded from a checkpoint, and a rewiring at once."""
    model = Classifier()
    sparsifier = Sparsifier(model, sparsity=0.67, rewirings=10)
    first = optim.Adam(model.parameters())
    train(model, first)
    second = optim.Adam(model.parameters())
    second.load_state_dict(first.state_dict())
    sparsifier.track(second)
    mask = model.rnn.weight_hh_l0 != 0
    sparsifier.rewire()
    weight = next(weight for weight in sparsifier.weights if weight.name == "rnn.weight_hh_l0")
    assert not second.state[model.rnn.weight_hh_l0]["exp_avg"][weight.mask.bool() & ~mask].any()
