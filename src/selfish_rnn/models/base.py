"""What every language model of the package offers to training, evaluation and generation."""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from selfish_rnn.engine import output_loss
from selfish_rnn.engine.int8.quantized_weight import quantized_weights
from selfish_rnn.engine.packed_weight import packed_weights
from selfish_rnn.errors import UserError
from selfish_rnn.runtime.next_word import NextWord
from selfish_rnn.runtime.word_program import Place, Program
from selfish_rnn.sparsifier.iss import UnitLayer
from selfish_rnn.sparsifier.selection import Chosen, choose_weights

State = tuple[Tensor, ...]
"""The recurrent state carried from one window to the next, as a flat tuple of tensors."""


@dataclass(frozen=True)
class Encoded:
    """What the recurrent layers make of a window of tokens.

    ``output`` (time x batch x features) is what the output layer reads, after the output dropout; ``raw`` is
    the same before that dropout; ``state`` is carried to the next window.
    """

    output: Tensor
    raw: Tensor
    state: State


class LanguageModel(nn.Module, abc.ABC):
    """A recurrent language model: ``encode`` runs the recurrent layers, ``logits`` and ``loss`` read out.

    Tokens are time x batch. A model defines :meth:`encode` and :meth:`initial_state`; one whose output is not that of
    its ``decoder`` overrides :meth:`logits` and :meth:`loss`.
    """

    embedding: nn.Embedding

    decoder: nn.Linear
    """The output layer; :func:`~selfish_rnn.engine.pack` puts a packed one in its place."""

    init_range: float = 0.1
    """Embedding and output matrix start uniformly within ± this."""

    vocabulary: Any = None
    """The words of a model that was trained, where they are known."""

    activation_penalty_on: ClassVar[Literal["output", "raw"]] = "output"
    """Which field of :class:`Encoded` the activation penalty (AR) of this model is taken on."""

    dense_parameters: ClassVar[tuple[str, ...]] = ()
    """Name patterns (as in :mod:`fnmatch`) of the weights that stay dense although their module is known."""

    def sparse_matrices(self) -> list[Chosen]:
        """The weights that are made sparse: all of known modules but :attr:`dense_parameters`."""
        return list(choose_weights(self, None, self.dense_parameters))

    @abc.abstractmethod
    def initial_state(self, batch_size: int) -> State:
        """The zero state in which every epoch and every evaluation starts."""

    @abc.abstractmethod
    def encode(self, tokens: Tensor, state: State) -> Encoded:
        """Run the recurrent layers over a window."""

    def logits(self, output: Tensor) -> Tensor:
        """Scores of every word (… x vocabulary): log-probabilities up to a constant per position."""
        scores: Tensor = self.decoder(output)
        return scores

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        """Mean negative log-probability of ``targets``."""
        return output_loss(self.decoder, output, targets)

    @abc.abstractmethod
    def describe(self, program: Program) -> Place:
        """Write down what is computed for the next word, without dropout; the place of its scores."""

    def next_word(self) -> NextWord | None:
        """Scores word by word, each in one call of the kernels; only a packed or int8 model has that.

        >>> step = model.next_word()
        >>> scores = step(word)
        """
        return NextWord(self.describe) if packed_weights(self) or quantized_weights(self) else None

    def unit_layers(self) -> list[UnitLayer]:
        """The recurrent layers as units, for intrinsic sparse structures; not every model has such a description."""
        raise self._without_units()

    def resized(self, sizes: Sequence[int]) -> LanguageModel:
        """A new model like this one, with fresh weights, whose :meth:`unit_layers` have these sizes."""
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
        """Scores of the next word at every position, and the state after the window."""
        encoded = self.encode(tokens, self.initial_state(tokens.shape[1]) if state is None else state)
        return self.logits(encoded.output), encoded.state


def detach(state: State) -> State:
    """Cut the carried state from the graph of the window it comes from."""
    return tuple(tensor.detach() for tensor in state)


@dataclass(frozen=True)
class Dropouts:
    """The probabilities with which a model drops words, the input, the state or what passes between layers, the output.

    They are the arguments ``dropout_word``, … of its constructor.
    """

    word: float
    input: float
    hidden: float
    output: float

    def __post_init__(self) -> None:
        check_probabilities(**self.arguments())

    def arguments(self) -> dict[str, float]:
        """As the constructor of a model takes them."""
        return {f"dropout_{name}": probability for name, probability in asdict(self).items()}


def check_sizes(**sizes: int) -> None:
    """Refuse a size below one, by the name the user gave it."""
    for name, size in sizes.items():
        if size < 1:
            raise UserError(f"{name} must be at least 1, got {size}")


def check_init_range(init_range: float) -> None:
    """Raise an error if the range of the starting weights is not a positive number."""
    if not 0 < init_range < math.inf:
        raise UserError(f"init_range must be a number greater than 0, got {init_range}")


def check_probabilities(**probabilities: float) -> None:
    """Refuse a dropout probability outside [0, 1): at 1 nothing would be left to scale up."""
    for name, probability in probabilities.items():
        if not 0 <= probability < 1:
            raise UserError(f"{name} must be at least 0 and less than 1, got {probability}")
