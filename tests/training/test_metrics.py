"""What is measured after an epoch, counted by hand."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from selfish_rnn import Sparsifier
from selfish_rnn.errors import UserError
from selfish_rnn.models import StackedRNN
from selfish_rnn.training.metrics import describe, large_weights
from selfish_rnn.training.records import AverageRecord, EpochRecord


@pytest.fixture
def sparsifier() -> Sparsifier:
    torch.manual_seed(0)
    model = StackedRNN(6, embedding=4, hidden=4, layers=1, dropout=0.0)
    return Sparsifier(model, sparsity=0.5, rewirings=1)


def test_densities_are_of_gates_and_of_the_whole_matrix(sparsifier: Sparsifier):
    densities = describe(sparsifier)["density"]
    assert list(densities) == [weight.name for weight in sparsifier.weights]
    for weight in sparsifier.weights:
        measured = densities[weight.name]
        assert measured["all"] == weight.mask.mean().item()
        if weight.name.startswith("rnn."):
            gates = [measured[name] for name in ("input", "forget", "candidate", "output")]
            assert gates == [chunk.mean().item() for chunk in weight.mask.chunk(4)]


def test_large_weights_are_those_above_a_tenth_in_magnitude(sparsifier: Sparsifier):
    weight = sparsifier.weights[0]
    with torch.no_grad():
        weight.parameter.zero_()
        weight.parameter.view(-1)[:4] = torch.tensor([0.2, -0.3, 0.0999, -0.05])
    counts = large_weights(sparsifier)
    assert counts[weight.name] == 2
    assert set(counts) == {weight.name for weight in sparsifier.weights}


RECORD = EpochRecord(
    epoch=3, step=30, train_loss=1.0, valid_loss=2.0, averaging=True, learning_rate=40.0, prune_rate=0.5, seconds=61.0,
    train_perplexity=math.exp(1), valid_perplexity=math.exp(2), active_weights=10, total_weights=20,
    density={"m": {"input": 0.25, "all": 0.5}}, weights_above={"m": 7},
)  # fmt: skip

LINE = {
    "epoch": 3, "step": 30, "train_loss": 1.0, "valid_loss": 2.0, "train_perplexity": math.exp(1),
    "valid_perplexity": math.exp(2), "averaging": True, "learning_rate": 40.0, "prune_rate": 0.5, "seconds": 61.0,
    "active_weights": 10, "total_weights": 20, "sparsity": 0.5, "density": {"m": {"input": 0.25, "all": 0.5}},
    "weights_above_0.1": {"m": 7},
}  # fmt: skip


def test_a_record_is_a_line_of_metrics():
    assert RECORD.to_json() == LINE


def test_a_record_has_its_additional_averages():
    average = AverageRecord(valid_loss=1.5, averaging=True, valid_perplexity=math.exp(1.5))
    record = replace(RECORD, averages={"nt-20": average})
    expected = {"valid_loss": 1.5, "valid_perplexity": math.exp(1.5), "averaging": True}
    assert record.to_json() == {**LINE, "averages": {"nt-20": expected}}
    assert record.scalars() == {**RECORD.scalars(), "perplexity/valid/nt-20": math.exp(1.5)}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"averages": {"nt-1": AverageRecord(1.5, True, math.exp(1.5))}},
        {"measures": {"live_units": {"rnn": 3}}},
        {"train_loss": math.inf, "train_perplexity": math.inf},
    ],
)
def test_a_record_comes_back_from_its_line(changes: dict[str, Any]):
    record = replace(RECORD, **changes)
    assert EpochRecord.from_json(json.loads(json.dumps(record.to_json())), "line 1") == record


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("epoch", -1),
        ("step", 1.5),
        ("seconds", "61"),
        ("averaging", 1),
        ("density", {"m": {"input": 0.25}}),
        ("density", {"m": {"all": 1.5}}),
        ("weights_above_0.1", {"m": -1}),
        ("averages", {"nt-1": {"valid_loss": 1.5}}),
    ],
)
def test_an_invalid_value_is_an_error_that_names_line_and_key(key: str, value: Any):
    with pytest.raises(UserError, match=rf"^line 7 has no valid {key[:7]}.*: delete that line$"):
        EpochRecord.from_json({**LINE, key: value}, "line 7")


@pytest.mark.parametrize("key", ["epoch", "step", "seconds", "train_perplexity", "valid_perplexity"])
def test_a_missing_value_is_an_error(key: str):
    with pytest.raises(UserError, match=rf"line 7 has no valid {key}"):
        EpochRecord.from_json({name: value for name, value in LINE.items() if name != key}, "line 7")


def test_a_record_is_events_of_flat_names():
    assert RECORD.scalars() == {
        "loss/train": 1.0, "loss/valid": 2.0, "perplexity/train": math.exp(1), "perplexity/valid": math.exp(2),
        "rewiring/prune_rate": 0.5, "rewiring/active_weights": 10, "learning_rate": 40.0,
        "weights_above_0.1/m": 7, "density/m/input": 0.25, "density/m/all": 0.5,
    }  # fmt: skip
