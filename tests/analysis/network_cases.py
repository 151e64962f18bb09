"""Networks for the analyses: small models with a sparsifier, and a way to put units into another order."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from selfish_rnn import Sparsifier
from selfish_rnn.engine import pack
from selfish_rnn.models import MODELS, LanguageModel
from selfish_rnn.sparsifier.hooks import listeners
from tiny_runs import TINY_MODELS

WORDS = 30


def sparse_model(name: str, seed: int = 0, *, packed: bool = False, sparsity: float = 0.6) -> LanguageModel:
    """A tiny language model with random weights and a random topology."""
    torch.manual_seed(seed)
    model = MODELS[name](WORDS, **TINY_MODELS[name])
    Sparsifier(model, sparsity=sparsity, rewirings=4, seed=seed, exclude=model.dense_parameters)
    return pack(model) if packed else model


def sparsifier_of(model: nn.Module) -> Sparsifier:
    (sparsifier,) = listeners(model)
    assert isinstance(sparsifier, Sparsifier)
    return sparsifier


def tokens(steps: int = 30, batch: int = 4, seed: int = 0) -> Tensor:
    return torch.randint(WORDS, (steps, batch), generator=torch.Generator().manual_seed(seed))


class Tagger(nn.Module):
    """A user's model: features through an LSTM in both directions, a hidden layer and a read-out."""

    def __init__(self, hidden: int = 6, **options: Any) -> None:
        super().__init__()
        self.lstm = nn.LSTM(5, hidden, **options)
        directions = 2 if self.lstm.bidirectional else 1
        self.middle = nn.Linear(directions * hidden, 7)
        self.head = nn.Linear(7, 3)

    def forward(self, features: Tensor) -> Tensor:
        scores: Tensor = self.head(self.middle(self.lstm(features)[0]).tanh())
        return scores


def sparse_tagger(seed: int, **options: Any) -> Tagger:
    torch.manual_seed(seed)
    model = Tagger(**options)
    Sparsifier(model, sparsity=0.5, rewirings=4, seed=seed)
    return model


def reorder(module: nn.Module, local: str, axis: int, order: Tensor) -> None:
    """Put the units of one side of a matrix, or of a bias, into another order; the gates in its rows move together."""
    parameter = module.get_parameter(local)
    if axis == 0:
        blocks = len(parameter) // len(order)
        order = torch.cat([block * len(order) + order for block in range(blocks)])
    with torch.no_grad():
        parameter.copy_(parameter.detach().index_select(axis, order))
