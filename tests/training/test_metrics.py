"""What is measured after an epoch, counted by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from selfish_rnn import Sparsifier
from selfish_rnn.models import StackedRNN
from selfish_rnn.training.metrics import AverageRecord, EpochRecord, describe, large_weights


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
    network={"active_weights": 10, "density": {"m": {"input": 0.25, "all": 0.5}}}, large_weights={"m": 7}, best=True,
    epochs=9, seconds_left=122.0,
)  # fmt: skip


def test_a_record_is_a_line_of_metrics():
    assert RECORD.metrics() == {
        "epoch": 3, "step": 30, "train_loss": 1.0, "valid_loss": 2.0, "train_perplexity": math.exp(1),
        "valid_perplexity": math.exp(2), "averaging": True, "learning_rate": 40.0, "prune_rate": 0.5, "seconds": 61.0,
        "active_weights": 10, "density": {"m": {"input": 0.25, "all": 0.5}}, "weights_above_0.1": {"m": 7},
    }  # fmt: skip


def test_a_record_has_its_additional_averages():
    record = replace(RECORD, averages={"nt-20": AverageRecord(valid_loss=1.5, averaging=True)})
    expected = {"valid_loss": 1.5, "valid_perplexity": math.exp(1.5), "averaging": True}
    assert record.metrics() == {**RECORD.metrics(), "averages": {"nt-20": expected}}
    assert record.scalars() == {**RECORD.scalars(), "perplexity/valid/nt-20": math.exp(1.5)}


def test_a_record_is_events_of_flat_names():
    assert RECORD.scalars() == {
        "loss/train": 1.0, "loss/valid": 2.0, "perplexity/train": math.exp(1), "perplexity/valid": math.exp(2),
        "rewiring/prune_rate": 0.5, "rewiring/active_weights": 10, "learning_rate": 40.0,
        "weights_above_0.1/m": 7, "density/m/input": 0.25, "density/m/all": 0.5,
    }  # fmt: skip
