"""Several averages of the iterates of one optimizer."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_averaged import copies, same, train
from torch import nn
from torch.optim import SGD, Adagrad, Adam, NAdam, RMSprop
from torch.optim.optimizer import Optimizer

from selfish_rnn import Sparsifier
from selfish_rnn.optim import NTASGD, SNTASGD, AveragedSGD, IterateAverage

OPTIMIZERS: dict[str, Any] = {
    "snt-asgd": lambda weights: SNTASGD(weights, lr=0.1, average_from=1),
    "sgd": lambda weights: SGD(weights, lr=0.1),
    "momentum": lambda weights: SGD(weights, lr=0.1, momentum=0.9),
    "adam": lambda weights: Adam(weights, lr=0.1),
    "nadam": lambda weights: NAdam(weights, lr=0.1),
    "adagrad": lambda weights: Adagrad(weights, lr=0.1),
    "rmsprop": lambda weights: RMSprop(weights, lr=0.1),
}
EVERY = pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)


def model_with(make: Any) -> tuple[nn.Linear, Optimizer]:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    return model, make(model.parameters())


@EVERY
@pytest.mark.parametrize("kind", ["snt", "nt"])
def test_an_average_is_the_mean_of_the_iterates_and_raw_weights_do_not_depend_on_it(make: Any, kind: Any) -> None:
    model, optimizer = model_with(make)
    plain, other = model_with(make)
    average = IterateAverage(kind, "late")
    iterates = []
    for step in range(8):
        train(model, optimizer, 1, seed=step)
        if step >= 3:
            average.update(optimizer)
            iterates.append(copies(model))
        train(plain, other, 1, seed=step)
        assert same(copies(model), copies(plain))
    with average.swapped_in(optimizer):
        for parameter, *values in zip(model.parameters(), *iterates, strict=True):
            torch.testing.assert_close(parameter.detach(), torch.stack(values).mean(0))
    assert same(copies(model), copies(plain))


@EVERY
def test_saved_and_loaded_an_average_goes_on_bit_identically(make: Any) -> None:
    model, optimizer = model_with(make)
    average = IterateAverage("snt", "x")

    def steps(model: nn.Module, optimizer: Optimizer, first: int) -> None:
        for step in range(first, first + 3):
            train(model, optimizer, 1, seed=step)
            average.update(optimizer)

    steps(model, optimizer, 0)
    twin, restored = model_with(make)
    twin.load_state_dict(model.state_dict())
    restored.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for one, two in ((model, optimizer), (twin, restored)):
        steps(one, two, 3)
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(ours, theirs)
        for key in (average.average_key, average.age_key):
            assert torch.equal(optimizer.state[ours][key], restored.state[theirs][key])
            assert optimizer.state[ours][key].dtype == restored.state[theirs][key].dtype


@EVERY
def test_a_parameter_without_a_gradient_joins_with_its_first_step(make: Any) -> None:
    """Adam and others initialize their state only while it is empty."""
    model, optimizer = model_with(make)
    model.bias.requires_grad_(False)
    average = IterateAverage("nt", "x")
    train(model, optimizer, 1)
    average.update(optimizer)
    model.bias.requires_grad_(True)
    train(model, optimizer, 1)
    average.update(optimizer)
    with average.swapped_in(optimizer):
        assert all(parameter.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("kind", [SNTASGD, NTASGD])
def test_an_additional_average_of_the_same_kind_is_that_of_the_optimizer(kind: type[AveragedSGD]) -> None:
    model, optimizer = model_with(lambda weights: kind(weights, lr=0.1, average_from=1))
    again = IterateAverage(optimizer.average.kind, "again")
    train(model, optimizer, 2)
    optimizer.observe(1.0)
    for step in range(5):
        train(model, optimizer, 1, seed=step)
        again.update(optimizer)
    for state in optimizer.state.values():
        assert torch.equal(state["average"], state["average:again"])
        assert torch.equal(state["age"], state["age:again"])
    optimizer.restart()
    assert all(set(state) == {"average:again", "age:again"} for state in optimizer.state.values())
    again.restart(optimizer)
    assert not optimizer.state


def test_ages_of_additional_averages_are_loaded_exactly() -> None:
    model, optimizer = model_with(OPTIMIZERS["snt-asgd"])
    average = IterateAverage("snt", "x")
    train(model, optimizer, 1)
    average.update(optimizer)
    optimizer.state[model.weight]["age:x"].view(-1)[0] = 2**24 + 1  # a whole number float32 cannot hold
    other, restored = model_with(OPTIMIZERS["snt-asgd"])
    restored.load_state_dict(optimizer.state_dict())
    assert torch.equal(restored.state[other.weight]["age:x"], optimizer.state[model.weight]["age:x"])


@settings(max_examples=30)
@given(
    kind=st.sampled_from(["snt", "nt"]),
    start=st.integers(0, 12),
    every=st.integers(1, 5),
    restart=st.integers(0, 15),
    seed=st.integers(0, 99),
)
def test_averages_of_a_rewired_matrix(kind: Any, start: int, every: int, restart: int, seed: int) -> None:
    """Compare with a plain loop over the recorded iterates: each weight's own, or all with zeros before growth."""
    torch.manual_seed(seed)
    model = nn.Linear(6, 5)
    sparsifier = Sparsifier(model, sparsity=0.5, rewirings=50, include=["weight"], seed=seed)
    optimizer = SGD(model.parameters(), lr=0.1)
    sparsifier.track(optimizer)
    average = IterateAverage(kind, "x")
    history: list[torch.Tensor] = []
    born = torch.zeros(5, 6, dtype=torch.int64)
    mask = sparsifier.masks()["weight"]
    for step in range(16):
        optimizer.zero_grad()
        model(torch.randn(3, 6)).pow(2).sum().backward()
        optimizer.step()
        if step >= start:
            average.update(optimizer)
            history.append(model.weight.detach().clone())
        if step == restart:
            average.restart(optimizer)
            history.clear()
            born.zero_()
        if step % every == every - 1:
            before = model.weight.detach().clone()
            sparsifier.rewire()
            fresh = (before != 0) & (model.weight == 0) | (mask != sparsifier.masks()["weight"])
            mask = sparsifier.masks()["weight"]
            born[fresh] = len(history)
            for iterate in history if kind == "nt" else ():
                iterate[fresh] = 0  # a removed weight takes its past along
    with average.swapped_in(optimizer):
        for position in mask.nonzero().tolist():
            first = int(born[tuple(position)]) if kind == "snt" else 0
            values = [float(iterate[tuple(position)]) for iterate in history[first:]]
            if values:
                expected = sum(values) / len(values)
                assert model.weight[tuple(position)].item() == pytest.approx(expected, abs=1e-5)


def test_names_are_keys_of_the_state_and_the_empty_one_is_that_of_the_optimizers() -> None:
    assert (IterateAverage("nt", "nt-20").average_key, IterateAverage("nt", "nt-20").age_key) == (
        "average:nt-20",
        "age:nt-20",
    )
    assert SNTASGD.average == IterateAverage("snt")
    assert NTASGD.average == IterateAverage("nt")


def test_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="the kind of an average is one of snt, nt, got 'ema'"):
        IterateAverage("ema")  # type: ignore[arg-type]


@pytest.mark.parametrize("call", ["update", "restart", "swapped_in", "rewire"])
def test_inside_the_block_the_raw_weights_are_missing(call: str) -> None:
    model, optimizer = model_with(OPTIMIZERS["sgd"])
    sparsifier = Sparsifier(model, sparsity=0.5, rewirings=5, include=["weight"])
    sparsifier.track(optimizer)
    average = IterateAverage("snt", "x")
    train(model, optimizer, 1)
    average.update(optimizer)
    with average.swapped_in(optimizer), pytest.raises(RuntimeError, match=r"needs? the raw weights"):  # noqa: PT012
        if call == "rewire":
            sparsifier.rewire()
        elif call == "swapped_in":
            average.swapped_in(optimizer).__enter__()
        else:
            getattr(average, call)(optimizer)


@pytest.mark.parametrize("kind", [SNTASGD, NTASGD])
@pytest.mark.parametrize("epochs", [1, 3])
def test_average_from_starts_after_so_many_epochs(kind: type[AveragedSGD], epochs: int) -> None:
    model, optimizer = model_with(lambda weights: kind(weights, lr=0.1, average_from=epochs))
    started = []
    for _ in range(5):
        train(model, optimizer, 1)
        started.append(bool(optimizer.state))
        optimizer.observe(1.0)
    assert started == [epoch >= epochs for epoch in range(5)]
    assert f"average_from: {epochs}, averaging: True" in repr(optimizer)


def test_average_from_is_at_least_one_epoch() -> None:
    with pytest.raises(ValueError, match="average_from is a number of epochs and must be at least 1, got 0"):
        SNTASGD([nn.Parameter(torch.ones(1))], lr=1.0, average_from=0)
