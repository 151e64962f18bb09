"""The choice of the next word by its scores."""

from __future__ import annotations

import torch
from torch import Tensor

from selfish_rnn.engine import library
from selfish_rnn.engine.library import address
from selfish_rnn.runtime.compiled import functions


def choose(
    scores: Tensor, *, temperature: float = 1.0, top: int = 0, forbidden: int | None = None, number: float = 0.0
) -> int:
    """A word drawn with probabilities softmax(scores / temperature); temperature 0 takes the likeliest.

    ``number``, uniform in [0, 1), decides: the words are lined up in their order, each as long as it is likely. With
    ``top`` only so many of the likeliest words count; ``forbidden`` never does.
    """
    scores = scores.detach().to("cpu", torch.float32).contiguous()
    if library.available():
        none = -1 if forbidden is None else forbidden
        word: int = functions().srnn_choose(address(scores), len(scores), temperature, top, none, number)
        return word
    if forbidden is not None:
        scores = scores.index_fill(0, torch.tensor(forbidden), -torch.inf)
    if temperature <= 0 or top == 1:
        return int(scores.argmax())
    if 0 < top < len(scores):
        scores = scores.masked_fill(scores < scores.topk(top).values[-1], -torch.inf)
    line = torch.softmax(scores / temperature, 0).double().cumsum(0)
    place = int(torch.searchsorted(line, number * line[-1], right=True))
    return min(place, len(scores) - 1)
