"""Interface of all language models for training, evaluation and generation."""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from selfish_rnn.engine import output_loss
from selfish_rnn.engine.int8.quantized_weight import quantized_weights
from selfish_rnn.engine.packed_weight import packed_weights
from selfish_rnn.errors import UserError
from selfish_rnn.runtime import Stream, UntranslatableError, stream
from selfish_rnn.sparsifier.iss import UnitLayer
from selfish_rnn.sparsifier.selection import Candidate, choose_weights

State = tuple[Tensor, ...]
"""Recurrent state that is carried from one window to the next, as a flat tuple of tensors."""


@dataclass(frozen=True)
class Encoded:
    """Output of the recurrent layers for a window of tokens.

    Attributes:
        output: input of the output layer (time x batch x features), after the output dropout.
        raw: the same before that dropout.
        state: state for the next window.
    """

    output: Tensor
    raw: Tensor
    state: State


class LanguageModel(nn.Module, abc.ABC):
    """A recurrent language model: ``encode`` runs the recurrent layers, ``logits`` and ``loss`` the output layer.

    Tokens are time x batch. A subclass defines :meth:`encode` and :meth:`initial_state`. It overrides :meth:`logits`
    and :meth:`loss` if its output is not that of its ``decoder``.
    """

    embedding: nn.Embedding

    decoder: nn.Linear
    """Output layer; :func:`~selfish_rnn.engine.pack` replaces it by a packed one."""

    init_range: float = 0.1
    """Bound of the uniform distribution from which embedding and output matrix start."""

    vocabulary: Any = None
    """Words of a trained model, if known."""

    activation_penalty_on: ClassVar[Literal["output", "raw"]] = "output"
    """Field of :class:`Encoded` that the activation penalty (AR) of this model applies to."""

    dense_parameters: ClassVar[tuple[str, ...]] = ()
    """Name patterns (as in :mod:`fnmatch`) of the weights that stay dense although their module is known."""

    def sparse_matrices(self) -> list[Candidate]:
        """Return the weights that become sparse: all of known modules except :attr:`dense_parameters`."""
        return list(choose_weights(self, None, self.dense_parameters))

    @abc.abstractmethod
    def initial_state(self, batch_size: int) -> State:
        """Return the zero state in which every epoch and every evaluation starts."""

    @abc.abstractmethod
    def encode(self, tokens: Tensor, state: State) -> Encoded:
        """Run the recurrent layers over a window."""

    def logits(self, output: Tensor) -> Tensor:
        """Return the scores of all words (… x vocabulary): log-probabilities up to a constant per position."""
        scores: Tensor = self.decoder(output)
        return scores

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        """Return the mean negative log-probability of ``targets``."""
        return output_loss(self.decoder, output, targets)

    def next_word(self) -> Stream | None:
        """Return a stream of words, which computes the scores of the next one in one call of the kernels.

        Return None for a model without packed or int8 weights, and for one that cannot be streamed.

        >>> step = model.next_word()
        >>> scores = step(word)
        """
        if not (packed_weights(self) or quantized_weights(self)):
            return None
        try:
            step = stream(self, torch.zeros(1, 1, dtype=torch.int64), time_axis=0)
        except UntranslatableError:
            return None
        if self.vocabulary is not None:
            step.program.words = list(self.vocabulary.tokens)
        return step

    def unit_layers(self) -> list[UnitLayer]:
        """Return the recurrent layers as units, for intrinsic sparse structures; not every model defines them."""
        raise self._without_units()

    def resized(self, sizes: Sequence[int]) -> LanguageModel:
        """Return a new model like this one, with fresh weights and these sizes of its :meth:`unit_layers`."""
        raise self._without_units()

    def _without_units(self) -> UserError:
        return UserError(
            f"{type(self).__name__} does not describe its units, which intrinsic sparse structures (iss) need; "
            "the models that do are stacked-lstm, stacked-gru, stacked-rnn and rhn"
        )

    def _reset_embedding_and_decoder(self) -> None:
        """Draw embedding and output matrix, which may be one, from U(±init_range); set the output bias to 0."""
        for parameter in nn.ModuleList([self.embedding, self.decoder]).parameters():
            if parameter is not self.decoder.bias:
                nn.init.uniform_(parameter, -self.init_range, self.init_range)
        nn.init.zeros_(self.decoder.bias)

    def forward(self, tokens: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Return the scores of the next word at every position, and the state after the window."""
        encoded = self.encode(tokens, self.initial_state(tokens.shape[1]) if state is None else state)
        return self.logits(encoded.output), encoded.state


def detach(state: State) -> State:
    """Detach the carried state from the graph of its window."""
    return tuple(tensor.detach() for tensor in state)


@dataclass(frozen=True)
class Dropouts:
    """Dropout probabilities of words, input, state or layer outputs, and output.

    The fields are the arguments ``dropout_word``, … of the model's constructor.
    """

    word: float
    input: float
    hidden: float
    output: float

    def __post_init__(self) -> None:
        check_probabilities(**self.arguments())

    def arguments(self) -> dict[str, float]:
        """Return the probabilities as keyword arguments of a model's constructor."""
        return {f"dropout_{name}": probability for name, probability in asdict(self).items()}


def check_sizes(**sizes: int) -> None:
    """Raise an error if a size is below one; name it as the user did."""
    for name, size in sizes.items():
        if size < 1:
            raise UserError(f"{name} must be at least 1, got {size}")


def check_init_range(init_range: float) -> None:
    """Raise an error if the range of the initial weights is not a positive number."""
    if not 0 < init_range < math.inf:
        raise UserError(f"init_range must be a number greater than 0, got {init_range}")


def check_probabilities(**probabilities: float) -> None:
    """Raise an error if a dropout probability is outside [0, 1); at 1 no activation would be left to scale."""
    for name, probability in probabilities.items():
        if not 0 <= probability < 1:
            raise UserError(f"{name} must be at least 0 and less than 1, got {probability}")
