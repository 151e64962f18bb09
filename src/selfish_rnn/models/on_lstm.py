"""The ordered-neurons LSTM language model of Shen et al. (2019)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn

from selfish_rnn.models.base import (
    Dropouts,
    Encoded,
    LanguageModel,
    State,
    check_init_range,
    check_probabilities,
    check_sizes,
)
from selfish_rnn.models.cells.ordered_neurons import CellOutput, OrderedNeuronsCell
from selfish_rnn.models.regularisers import embed, locked_dropout


class MasterDistances(NamedTuple):
    """Distances of the master gates in the order of neurons, from 0 to 1; layer x time x batch.

    Attributes:
        forget: one minus the mean of the master forget gate; a word with a large value closes a large constituent.
        input: mean of the master input gate.
    """

    forget: Tensor
    input: Tensor


class OrderedNeuronsLSTM(LanguageModel):
    """Embedding, :class:`~selfish_rnn.models.cells.ordered_neurons.OrderedNeuronsCell` layers, tied output layer.

    All layers except the last have ``hidden`` units; the last is as wide as the embedding. All dropout masks are drawn
    once per window. The defaults are the paper's Penn Treebank network (25,232,180 weights with 10,000 words).

    >>> model = OrderedNeuronsLSTM(10_000, embedding=200, hidden=400)
    >>> scores, state = model(tokens)  # tokens: time x batch
    >>> model.eval().distances(tokens).forget.shape  # layers x time x batch
    """

    activation_penalty_on: ClassVar[Literal["output", "raw"]] = "raw"

    def __init__(
        self,
        vocabulary: int,
        *,
        embedding: int = 400,
        hidden: int = 1150,
        layers: int = 3,
        chunk: int = 10,
        dropout_word: float = 0.1,
        dropout_input: float = 0.5,
        dropout_hidden: float = 0.3,
        dropout_output: float = 0.45,
        weight_drop: float = 0.45,
        init_range: float = 0.1,
    ) -> None:
        super().__init__()
        check_init_range(init_range)
        check_sizes(vocabulary=vocabulary, embedding=embedding, hidden=hidden, layers=layers, chunk=chunk)
        check_probabilities(weight_drop=weight_drop)
        self.init_range = init_range
        self.dropouts = Dropouts(dropout_word, dropout_input, dropout_hidden, dropout_output)
        widths = [embedding, *[hidden] * (layers - 1), embedding]
        self.embedding = nn.Embedding(vocabulary, embedding)
        cells = (OrderedNeuronsCell(*pair, chunk, weight_drop) for pair in itertools.pairwise(widths))
        self.cells = cast(Sequence[OrderedNeuronsCell], nn.ModuleList(cells))
        self.decoder = nn.Linear(embedding, vocabulary)
        self.decoder.weight = self.embedding.weight
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the embedding from U(±init_range) and the cells from U(±1/√fan-in); zero the output bias."""
        self._reset_embedding_and_decoder()
        for cell in self.cells:
            cell.reset_parameters()

    def initial_state(self, batch_size: int) -> State:
        """Return zeros: h and c of the first layer, h and c of the second, …; each batch x width of the layer."""
        return tuple(self.decoder.bias.new_zeros(batch_size, cell.hidden) for cell in self.cells for _ in "hc")

    def encode(self, tokens: Tensor, state: State) -> Encoded:
        outputs = self._run(tokens, state)
        raw = outputs[-1].hidden
        state = tuple(tensor for output in outputs for tensor in (output.hidden[-1], output.cell))
        return Encoded(locked_dropout(raw, self.dropouts.output, self.training), raw, state)

    @torch.no_grad()
    def distances(self, tokens: Tensor, state: State | None = None) -> MasterDistances:
        """Return the distances of the master gates at every word; call it in evaluation mode."""
        outputs = self._run(tokens, self.initial_state(tokens.shape[1]) if state is None else state)
        return MasterDistances(
            torch.stack([output.forget_distance for output in outputs]),
            torch.stack([output.input_distance for output in outputs]),
        )

    def _run(self, tokens: Tensor, state: State) -> list[CellOutput]:
        """Return the output of every layer before dropout."""
        entering = embed(self.embedding, tokens, self.dropouts.word, self.training)
        probability, outputs = self.dropouts.input, list[CellOutput]()
        for layer, hidden, cell in zip(self.cells, state[::2], state[1::2], strict=True):
            entering = locked_dropout(entering, probability, self.training)
            outputs.append(layer(entering, hidden, cell))
            entering, probability = outputs[-1].hidden, self.dropouts.hidden
        return outputs
