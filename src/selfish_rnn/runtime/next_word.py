"""Language models word by word: a program that takes a word and returns scores of the next."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from selfish_rnn.engine import library
from selfish_rnn.engine.int8.quantized_weight import QuantizedWeight
from selfish_rnn.engine.library import address
from selfish_rnn.runtime.compiled import CompiledProgram, Floats, functions
from selfish_rnn.runtime.program import Matrix, Program, Token, Value
from selfish_rnn.runtime.stored import save_program

WORD, SCORES = "word", "scores"


def word_program(words: int, describe: Callable[[Program, Token], Value]) -> Program:
    """Return the program of a language model with this many words.

    ``describe`` adds the operations from a word to the scores of the next, and returns the scores.
    """
    program = Program()
    scores = describe(program, program.token(WORD, words))
    if scores.size != words:
        raise ValueError(f"a model of {words} words needs as many scores, not {scores.size}")
    program.output(SCORES, scores)
    return program


class NextWord:
    """Scores of the next word, given words one at a time; embedding, layers and output in one call.

    >>> def describe(program, word):
    ...     x = recurrent(program, model.rnn, program.embedding(model.embedding.weight, word))
    ...     return product(program, model.decoder.weight, x, model.decoder.bias)
    >>> step = NextWord(word_program(10_000, describe))
    >>> scores = step(word)      # of every word; overwritten by the next call
    >>> step.reset()             # a new text

    The weights are copied: make a new one after they have changed.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self._words = program.tokens[WORD].count
        self._stream = CompiledProgram.of(program).stream()
        self._token = self._stream.tokens[WORD]
        self.scores = torch.from_numpy(self._stream.outputs[SCORES])

    def __call__(self, word: int) -> Tensor:
        if not 0 <= word < self._words:
            raise IndexError(f"word {word} is out of range: the model has {self._words}")
        self._token[0] = word
        self._stream.run()
        return self.scores

    @property
    def precision(self) -> str:
        """``"int8"`` if any matrix is, otherwise ``"float32"``."""
        quantized = any(isinstance(matrix, QuantizedWeight) for matrix in self.program.matrices.values())
        return "int8" if quantized else "float32"

    @property
    def state(self) -> dict[str, Floats]:
        """Copy of the state after the last word; assign it to continue from there."""
        return self._stream.state()

    @state.setter
    def state(self, state: Mapping[str, np.ndarray[Any, Any]]) -> None:
        self._stream.set_state(state)

    def reset(self) -> None:
        """Return to the state before the first word."""
        self._stream.reset()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the program to a file that C and C++ programs read."""
        save_program(self.program, path)


def product(program: Program, matrix: Matrix, x: Value, bias: Tensor | None = None, vectors: int = 1) -> Value:
    """Add ``matrix @ x + bias``; activations are rounded where the weights are int8."""
    activations: Any = "int8" if isinstance(matrix, QuantizedWeight) else "float32"
    return program.linear(matrix, x, bias, activations=activations, vectors=vectors)


def recurrent(program: Program, rnn: nn.Module, x: Value, name: str = "rnn") -> Value:
    """Add all layers of a packed, int8 or ordinary LSTM, GRU or RNN, and return the output of the last."""
    module: Any = rnn
    if module.bidirectional or getattr(module, "proj_size", 0):
        raise ValueError(f"{name} cannot run step by step: it is bidirectional or has a projection")
    for layer in range(module.num_layers):
        weights = [getattr(module, f"weight_{part}_l{layer}") for part in ("ih", "hh")]
        biases = [getattr(module, f"bias_{part}_l{layer}", None) for part in ("ih", "hh")]
        h = program.state(f"{name}.h{layer}", module.hidden_size)
        sums = [product(program, *parts) for parts in zip(weights, (x, h), biases, strict=True)]
        if module.mode == "LSTM":
            c = program.state(f"{name}.c{layer}", module.hidden_size)
            x, c_next = program.lstm_cell(sums[0], sums[1], c)
            program.set_state(c, c_next)
        elif module.mode == "GRU":
            x = program.gru_cell(sums[0], sums[1], h)
        else:
            x = program.rnn_cell(sums[0], sums[1], "relu" if module.mode == "RNN_RELU" else "tanh")
        program.set_state(h, x)
    return x


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
        drawn: int = functions().srnn_choose(address(scores), len(scores), temperature, top, none, number)
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
