"""A small classifier and its data, for whatever framework trains them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from selfish_rnn import engine

ENGINES = ["masked", *(["packed"] if engine.available() else [])]


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(4, 12, batch_first=True)
        self.output = nn.Linear(12, 2)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.output(self.rnn(x)[0][:, -1])
        return scores


def examples() -> TensorDataset:
    x = torch.randn(40, 5, 4, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, (x.sum((1, 2)) > 0).long())


def same(one: nn.Module, other: nn.Module) -> bool:
    left, right = one.state_dict(), other.state_dict()
    return left.keys() == right.keys() and all(torch.equal(left[key], right[key]) for key in left)
