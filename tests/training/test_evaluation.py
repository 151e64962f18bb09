"""Perplexity is what a sum by hand says it is."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from selfish_rnn.models import StackedRNN
from selfish_rnn.training.evaluation import evaluate, perplexity


def tiny_model(dropout: float = 0.0) -> StackedRNN:
    torch.manual_seed(3)
    model = StackedRNN(7, embedding=4, hidden=5, layers=1, dropout=dropout)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5)  # the state must matter
    return model


STREAM = torch.randint(7, (61,), generator=torch.Generator().manual_seed(1))


def by_hand(model: StackedRNN, batch_size: int) -> float:
    """Token by token, each column alone, the state never reset."""
    rows = len(STREAM) // batch_size
    total = 0.0
    model.eval()
    with torch.no_grad():
        for column in range(batch_size):
            piece = STREAM[column * rows : (column + 1) * rows]
            state = model.initial_state(1)
            for word, following in itertools.pairwise(piece):
                scores, state = model(word.view(1, 1), state)
                total -= torch.log_softmax(scores.double().flatten(), 0)[following].item()
    return total / (batch_size * (rows - 1))


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("window", [1, 6, 100])
def test_loss_is_the_mean_over_the_text_with_the_state_carried(batch_size: int, window: int):
    model = tiny_model()
    assert evaluate(model, STREAM, batch_size=batch_size, window=window) == pytest.approx(
        by_hand(model, batch_size), rel=1e-6
    )


def test_dropout_is_off_and_the_mode_is_given_back():
    model = tiny_model(dropout=0.5).train()
    during_training = evaluate(model, STREAM, batch_size=2, window=5)
    assert model.training
    assert evaluate(model.eval(), STREAM, batch_size=2, window=5) == during_training
    assert not model.training


def test_evaluation_leaves_no_graph_and_no_random_numbers_behind():
    model = tiny_model(dropout=0.5).train()
    before = torch.get_rng_state()
    evaluate(model, STREAM, batch_size=2, window=5)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_perplexity_is_the_exponential_and_infinite_beyond_a_float():
    assert perplexity(0.0) == 1.0
    assert perplexity(math.log(50)) == pytest.approx(50)
    assert perplexity(1000.0) == math.inf
    assert perplexity(math.inf) == math.inf
