"""The next word of a whole model in one call of the kernels."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from selfish_rnn.engine import library
from selfish_rnn.engine.library import address
from selfish_rnn.runtime.word_program import CompiledProgram, Place, Program


class NextWord:
    """Scores of the next word, given words one at a time; embedding, layers and output in one call.

    ``describe`` writes the model down and returns where the scores are:

    >>> def describe(program):
    ...     x = program.recurrent(model.rnn, program.row(model.embedding.weight))
    ...     return program.product(model.decoder.weight, x, model.decoder.bias)
    >>> step = NextWord(describe)
    >>> scores = step(word)      # of every word; overwritten by the next call
    >>> step.reset()             # a new text

    The weights are those the model has now: make it anew when they have changed.
    """

    def __init__(self, describe: Callable[[Program], Place]) -> None:
        self.program = Program()
        scores = describe(self.program)
        self._words = self.program.words
        self._memory = torch.zeros(self.program.size)
        self.scores = self._memory[scores.at : scores.at + scores.size]
        self._compiled = CompiledProgram(self.program, self._memory)

    def __call__(self, word: int) -> Tensor:
        if not 0 <= word < self._words:
            raise IndexError(f"word {word} is out of range: the model has {self._words}")
        self._compiled.run(word)
        return self.scores

    @property
    def precision(self) -> str:
        """``"int8"`` or ``"float32"``."""
        return self.program.precision

    @property
    def state(self) -> list[Tensor]:
        """A copy of the state after the last word, to be given back later: ``step.state = state``."""
        return [self._memory[place.at : place.at + place.size].clone() for place in self.program.states]

    @state.setter
    def state(self, state: list[Tensor]) -> None:
        for place, tensor in zip(self.program.states, state, strict=True):
            self._memory[place.at : place.at + place.size].copy_(tensor)

    def reset(self) -> None:
        """Begin with the zero state."""
        for place in self.program.states:
            self._memory[place.at : place.at + place.size].zero_()


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
        drawn: int = library.kernels().selfish_choose(address(scores), len(scores), temperature, top, none, number)
        return drawn
    if forbidden is not None:
        scores = scores.index_fill(0, torch.tensor(forbidden), -torch.inf)
    if temperature <= 0 or top == 1:
        return int(scores.argmax())
    if 0 < top < len(scores):
        scores = scores.masked_fill(scores < scores.topk(top).values[-1], -torch.inf)
    line = torch.softmax(scores / temperature, 0).double().cumsum(0)
    place = int(torch.searchsorted(line, number * line[-1], right=True))
    return min(place, len(scores) - 1)
