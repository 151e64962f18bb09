"""What the optimizer tests share: golden files, tolerance, and the small language model of the training traces."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

GOLDEN = Path(__file__).parents[1] / "golden"
Arrays = dict[str, Tensor]


def golden(name: str) -> Arrays:
    with np.load(GOLDEN / f"{name}.npz") as arrays:
        return {key: torch.from_numpy(np.asarray(arrays[key])) for key in arrays.files}


def assert_golden(got: Tensor, want: Tensor) -> None:
    """The tolerance the golden files state for float64."""
    error = (got - want).abs().max() / (1 + want.abs().max())
    assert error <= 1e-9


GOLDEN_NAMES = {
    "embedding.weight": "emb",
    **{f"rnn.weight_ih_l{layer}": f"W_in_l{layer}" for layer in (0, 1)},
    **{f"rnn.weight_hh_l{layer}": f"W_rec_l{layer}" for layer in (0, 1)},
    **{f"rnn.bias_ih_l{layer}": f"b_in_l{layer}" for layer in (0, 1)},
    **{f"rnn.bias_hh_l{layer}": f"b_rec_l{layer}" for layer in (0, 1)},
    "decoder.weight": "dec_W",
    "decoder.bias": "dec_b",
}


class TraceModel(nn.Module):
    """The two-layer LSTM of ``train_dense`` and ``train_selfish``, from torch's parts only."""

    def __init__(self, trace: Arrays) -> None:
        super().__init__()
        vocabulary, width = trace["init_emb"].shape
        self.embedding = nn.Embedding(vocabulary, width)
        self.rnn = nn.LSTM(width, width, num_layers=2)
        self.decoder = nn.Linear(width, vocabulary)
        self.double()
        self.load_state_dict({name: trace[f"init_{short}"] for name, short in GOLDEN_NAMES.items()})

    def loss(self, window: Tensor, targets: Tensor, state: object) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        hidden, state = self.rnn(self.embedding(window), state)
        loss = functional.cross_entropy(self.decoder(hidden).flatten(0, 1), targets.flatten())
        return loss, (state[0].detach(), state[1].detach())

    def windows(self, stream: Tensor, length: int) -> list[tuple[Tensor, Tensor]]:
        rows = len(stream) - 1
        return [
            (stream[start : min(start + length, rows)], stream[start + 1 : min(start + length, rows) + 1])
            for start in range(0, rows, length)
        ]
