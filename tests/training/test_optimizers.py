"""Optimizers are what their settings say, and learning rates follow their rules."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from selfish_rnn.bench import options as bench_options
from selfish_rnn.corpora import load_corpus, unigram_perplexity
from selfish_rnn.experiment.optimizers import OPTIMIZERS, AveragedSettings, OptimizerSettings
from selfish_rnn.experiment.sections import names_of
from selfish_rnn.experiment.settings import Experiment
from selfish_rnn.optim import NTASGD, SNTASGD, AveragedSGD, EpochTrigger, NonMonotoneTrigger
from selfish_rnn.training.build import LearningRate, build_optimizer, learned_loss


def options(name: str, **given: Any) -> OptimizerSettings:
    return OPTIMIZERS[name].settings.model_validate({"name": name, **given})


def build(name: str, **given: Any) -> Optimizer:
    return build_optimizer(options(name, **given), [nn.Parameter(torch.ones(2))], epochs=40, below=5.0)


@pytest.mark.parametrize(
    ("name", "given", "kind", "expected"),
    [
        ("snt-asgd", {}, SNTASGD, {"lr": 40.0, "weight_decay": 1.2e-6}),
        ("nt-asgd", {"lr": 10, "weight_decay": 0}, NTASGD, {"lr": 10.0, "weight_decay": 0.0}),
        ("sgd", {"lr": 0.5}, SGD, {"lr": 0.5, "momentum": 0.0, "weight_decay": 1.2e-6}),
        ("momentum-sgd", {"momentum": 0.8}, SGD, {"lr": 2.0, "momentum": 0.8}),
        ("adam", {"betas": [0.5, 0.9], "eps": 1e-6}, Adam, {"lr": 0.001, "betas": (0.5, 0.9), "eps": 1e-6}),
    ],
)
def test_each_name_gives_its_optimizer(name: str, given: dict[str, Any], kind: type, expected: dict[str, Any]):
    optimizer = build(name, **given)
    assert type(optimizer) is kind
    assert {key: optimizer.param_groups[0][key] for key in expected} == expected


def test_every_optimizer_is_in_one_table():
    assert get_args(bench_options.Optimizer) == (*OPTIMIZERS,)
    for name, kind in OPTIMIZERS.items():
        assert name in names_of(kind.settings)
        assert isinstance(build(name), Optimizer)
        assert Experiment(optimizer=name).optimizer.name == name
        assert kind.averages == (kind.settings is AveragedSettings)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_table_has_the_size_of_the_optimizers_state(name: str):
    weight = nn.Parameter(torch.ones(1000))
    optimizer = build_optimizer(options(name), [weight], epochs=40, below=5.0)
    if isinstance(optimizer, AveragedSGD):
        optimizer.start_averaging()
    weight.grad = torch.ones(1000)
    optimizer.step()
    state = [value for value in optimizer.state[weight].values() if isinstance(value, torch.Tensor)]
    per_weight = [value.element_size() for value in state if value.shape == weight.shape]
    assert sum(per_weight) == OPTIMIZERS[name].state_bytes


@pytest.mark.parametrize("name", ["snt-asgd", "nt-asgd"])
def test_nonmono_reaches_the_trigger(name: str):
    optimizer = build(name, nonmono=3)
    assert isinstance(optimizer, (SNTASGD, NTASGD))
    assert isinstance(optimizer.trigger, NonMonotoneTrigger)
    assert (optimizer.trigger.interval, optimizer.trigger.below) == (3, 5.0)


@pytest.mark.parametrize("name", ["snt-asgd", "nt-asgd"])
@pytest.mark.parametrize(("start", "epochs"), [(20, 20), (0.5, 20), (0.49, 20), (0.001, 1), (0.999, 39)])
def test_average_from_is_an_epoch_or_a_fraction_of_the_run(name: str, start: float, epochs: int):
    optimizer = build(name, average_from=start)
    assert isinstance(optimizer, (SNTASGD, NTASGD))
    assert isinstance(optimizer.trigger, EpochTrigger)
    assert optimizer.trigger.epochs == epochs


def test_a_network_has_learned_below_nine_tenths_of_the_unigram_perplexity_of_the_validation_text(texts: Path):
    corpus = load_corpus(texts)
    assert math.exp(learned_loss(corpus)) == pytest.approx(0.9 * unigram_perplexity(corpus, "valid"))
    assert unigram_perplexity(corpus, "valid") != unigram_perplexity(corpus)


@settings(deadline=None, max_examples=80)
@given(
    losses=st.lists(st.integers(0, 6).map(float) | st.floats(0, 10), max_size=30),
    factor=st.sampled_from([1.33, 2.0, 4.0]),
    patience=st.integers(0, 4),
)
def test_drop_is_reduce_on_plateau_without_a_threshold(losses: list[float], factor: float, patience: int):
    rule = LearningRate(options("sgd", lr=3.0, drop={"factor": factor, "patience": patience}))
    optimizer = SGD([nn.Parameter(torch.ones(1))], lr=3.0)
    reference = ReduceLROnPlateau(optimizer, factor=1 / factor, patience=patience, threshold=0, eps=0)
    for epoch, loss in enumerate(losses, start=1):
        rule.validated(epoch, loss)
        reference.step(loss)
        assert rule.value == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9)


def test_decay_divides_at_every_epoch_from_the_given_one():
    rule = LearningRate(options("sgd", lr=8.0, decay={"factor": 2, "after": 3}))
    values = []
    for epoch in range(1, 6):
        values.append(rule.value)
        rule.validated(epoch, 1.0)
    # The epochs after the third run with 4, 2, ...
    assert values == [8.0, 8.0, 8.0, 4.0, 2.0]


def test_without_a_rule_the_learning_rate_is_constant():
    rule = LearningRate(options("snt-asgd", lr=7))
    for epoch in range(1, 20):
        rule.validated(epoch, float(epoch))
    assert rule.value == 7.0


def test_apply_sets_every_group_scaled():
    optimizer = SGD([{"params": [nn.Parameter(torch.ones(1))]}, {"params": [nn.Parameter(torch.ones(1))]}], lr=9.0)
    LearningRate(options("sgd", lr=2.0)).apply(optimizer, scale=0.5)
    assert [group["lr"] for group in optimizer.param_groups] == [1.0, 1.0]


@pytest.mark.parametrize("seen", range(6))
def test_saved_and_loaded_a_rule_goes_on_as_if_nothing_happened(seen: int):
    given = options("adam", drop={"factor": 2, "patience": 1}, decay={"factor": 1.5, "after": 4})
    losses = [3.0, 3.5, 3.4, 2.0, 2.5, 2.5, 2.5]
    whole, first, second = LearningRate(given), LearningRate(given), LearningRate(given)
    for epoch, loss in enumerate(losses, start=1):
        whole.validated(epoch, loss)
        if epoch == seen + 1:
            second.load_state_dict(first.state_dict())
        (first if epoch <= seen else second).validated(epoch, loss)
    assert second.state_dict() == whole.state_dict()
