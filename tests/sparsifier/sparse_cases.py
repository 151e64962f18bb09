"""What the sparsifier tests share."""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor, nn

from selfish_rnn import Sparsifier


class Classifier(nn.Module):
    """Embedding, LSTM and linear layer: gates, no gates, biases."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = nn.Embedding(10, 6)
        self.rnn = nn.LSTM(6, 5, num_layers=2)
        self.decoder = nn.Linear(5, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.decoder(self.rnn(self.embedding(tokens))[0])


def tokens(seed: int = 0) -> Tensor:
    return torch.randint(10, (7, 3), generator=torch.Generator().manual_seed(seed))


def backward(model: nn.Module, seed: int = 0) -> None:
    model(tokens(seed)).pow(2).mean().backward()


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 3, seed: int = 0) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        backward(model, seed + step)
        optimizer.step()


def sgd(model: nn.Module, lr: float = 0.1) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=lr)


def masks(sparsifier: Sparsifier) -> list[Tensor]:
    return [weight.mask.clone() for weight in sparsifier.weights]


def same(first: list[Tensor], second: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def layer_counts(sparsifier: Sparsifier) -> Counter[str]:
    """The number of weights of every layer: embedding, decoder, and ``l0`` and ``l1`` of the recurrent module."""
    counts: Counter[str] = Counter()
    for weight in sparsifier.weights:
        counts[weight.name.rpartition("_")[2]] += weight.count
    return counts


def assert_inside_masks(sparsifier: Sparsifier) -> None:
    for weight in sparsifier.weights:
        assert not weight.parameter[weight.mask == 0].any(), f"{weight.name} has weights that do not exist"
