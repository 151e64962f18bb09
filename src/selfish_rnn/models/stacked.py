"""The stacked LSTM language model of Zaremba et al. (2014), and its GRU and vanilla RNN siblings."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional

from selfish_rnn.errors import UserError
from selfish_rnn.models.base import Encoded, LanguageModel, State, check_probabilities, check_sizes

Cell = Literal["lstm", "gru", "rnn"]

_KINDS: dict[str, Callable[..., nn.RNNBase]] = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}


class StackedRNN(LanguageModel):
    """Embedding, ``layers`` recurrent layers, output layer, with dropout on everything but the recurrence.

    For ``cell="lstm"`` every layer computes, from its input x and its state (h, c),

        [i; f; g; o] = W x + w + R h + r
        c' = σ(f) c + σ(i) tanh(g)
        h' = σ(o) tanh(c')

    Dropout is drawn afresh for every element: after the embedding, between layers and after the top layer.
    The defaults are the paper's Penn Treebank network (66,034,000 weights with 10,000 words).

    >>> model = StackedRNN(10_000, embedding=200, hidden=200, cell="gru")
    >>> scores, state = model(tokens)  # tokens: time x batch
    """

    def __init__(
        self,
        vocabulary: int,
        *,
        embedding: int = 1500,
        hidden: int = 1500,
        layers: int = 2,
        dropout: float = 0.65,
        cell: Cell = "lstm",
        tied: bool = False,
    ) -> None:
        super().__init__()
        check_sizes(vocabulary=vocabulary, embedding=embedding, hidden=hidden, layers=layers)
        check_probabilities(dropout=dropout)
        if cell not in _KINDS:
            raise UserError(f"cell must be one of {', '.join(_KINDS)}, got {cell!r}")
        if tied and embedding != hidden:
            raise UserError(
                f"tied needs embedding and hidden of the same size, got embedding {embedding} and hidden {hidden}"
            )
        self.dropout = dropout
        self.embedding = nn.Embedding(vocabulary, embedding)
        # One layer has nothing in between, and torch warns about a dropout it cannot place.
        self.rnn = _KINDS[cell](embedding, hidden, layers, dropout=dropout if layers > 1 else 0.0)
        self.decoder = nn.Linear(hidden, vocabulary)
        if tied:
            self.decoder.weight = self.embedding.weight
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Embedding and output matrix U(±0.1), output bias 0, recurrent layers U(±1/√hidden)."""
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        if self.decoder.weight is not self.embedding.weight:
            nn.init.uniform_(self.decoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)
        bound = 1 / math.sqrt(self.rnn.hidden_size)
        for parameter in self.rnn.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def initial_state(self, batch_size: int) -> State:
        """Zeros: (h, c) for the LSTM, (h,) for the others; each layers x batch x hidden."""
        zeros = self.embedding.weight.new_zeros(self.rnn.num_layers, batch_size, self.rnn.hidden_size)
        return (zeros, zeros.clone()) if isinstance(self.rnn, nn.LSTM) else (zeros,)

    def encode(self, tokens: Tensor, state: State) -> Encoded:
        embedded = functional.dropout(self.embedding(tokens), self.dropout, self.training)
        if isinstance(self.rnn, nn.LSTM):
            raw, state = self.rnn(embedded, state)
        else:
            raw, hidden = self.rnn(embedded, *state)
            state = (hidden,)
        return Encoded(functional.dropout(raw, self.dropout, self.training), raw, state)

    def logits(self, output: Tensor) -> Tensor:
        scores: Tensor = self.decoder(output)
        return scores
