"""What every language model of the package offers to training, evaluation and generation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

State = tuple[Tensor, ...]
"""The recurrent state carried from one window to the next, as a flat tuple of tensors."""


@dataclass(frozen=True)
class Encoded:
    """What the recurrent layers make of a window of tokens.

    ``output`` (time x batch x features) is what the output layer reads, after the output dropout; ``raw`` is the
    same before that dropout; ``state`` is carried to the next window.
    """

    output: Tensor
    raw: Tensor
    state: State


class LanguageModel(nn.Module):
    """A recurrent language model: ``encode`` runs the recurrent layers, ``logits`` and ``loss`` read them out.

    Tokens are time x batch. A model defines :meth:`encode`, :meth:`initial_state` and :meth:`logits`; one that can
    compute its loss with less memory than all logits take overrides :meth:`loss`.
    """

    activation_penalty_on: ClassVar[Literal["output", "raw"]] = "output"
    """Which field of :class:`Encoded` the activation penalty (AR) of this model is taken on."""

    def initial_state(self, batch_size: int) -> State:
        """The zero state in which every epoch and every evaluation starts."""
        raise NotImplementedError

    def encode(self, tokens: Tensor, state: State) -> Encoded:
        """Run the recurrent layers over a window."""
        raise NotImplementedError

    def logits(self, output: Tensor) -> Tensor:
        """Scores of every word (… x vocabulary): log-probabilities up to a constant per position."""
        raise NotImplementedError

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        """Mean negative log-probability of ``targets``."""
        scores = self.logits(output)
        return functional.cross_entropy(scores.flatten(0, -2), targets.flatten())

    def forward(self, tokens: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Scores of the next word at every position, and the state after the window."""
        encoded = self.encode(tokens, self.initial_state(tokens.shape[1]) if state is None else state)
        return self.logits(encoded.output), encoded.state


def detach(state: State) -> State:
    """Cut the carried state from the graph of the window it comes from."""
    return tuple(tensor.detach() for tensor in state)


def uniform_(module: nn.Module, bound: float) -> None:
    """Draw every parameter of a module from U(-bound, bound)."""
    for parameter in module.parameters():
        torch.nn.init.uniform_(parameter, -bound, bound)
