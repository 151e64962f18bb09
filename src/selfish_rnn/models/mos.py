"""AWD-LSTM (Merity et al. 2018) with a mixture of softmaxes (Yang et al. 2018)."""

from __future__ import annotations

import itertools
import math
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from selfish_rnn.models.base import Encoded, LanguageModel, State, check_probabilities, check_sizes
from selfish_rnn.models.cells.mixture import mixture_log_probabilities, mixture_loss
from selfish_rnn.models.regularisers import embed, locked_dropout, lstm_with_weight_drop


class MixtureOfSoftmaxesLSTM(LanguageModel):
    """Embedding, LSTM layers with weight drop, and an output layer that mixes the softmaxes of its experts.

    With x the top layer, K ``experts`` and the embedding D as output matrix,

        π = softmax(P x)
        [e_1; …; e_K] = dropout(tanh(L x + l))
        p = Σ_k π_k softmax(D e_k + d)

    All layers but the last are ``hidden`` wide, the last is ``hidden_last`` wide. The masks of all dropouts are
    drawn once per window. P is so small that the paper leaves it dense. The defaults are the paper's
    WikiText-2 network (34,909,528 weights with 33,278 words).

    >>> model = MixtureOfSoftmaxesLSTM(33_278, embedding=100, hidden=300, hidden_last=200, experts=5)
    >>> encoded = model.encode(tokens, model.initial_state(batch_size))  # tokens: time x batch
    >>> loss = model.loss(encoded.output, targets)
    """

    dense_parameters: ClassVar[tuple[str, ...]] = ("prior.weight",)

    def __init__(
        self,
        vocabulary: int,
        *,
        embedding: int = 300,
        hidden: int = 1150,
        hidden_last: int = 650,
        layers: int = 3,
        experts: int = 15,
        dropout_word: float = 0.1,
        dropout_input: float = 0.55,
        dropout_hidden: float = 0.2,
        dropout_output: float = 0.4,
        dropout_latent: float = 0.29,
        weight_drop: float = 0.5,
    ) -> None:
        super().__init__()
        check_sizes(vocabulary=vocabulary, embedding=embedding, hidden=hidden, hidden_last=hidden_last)
        check_sizes(layers=layers, experts=experts)
        check_probabilities(
            dropout_word=dropout_word,
            dropout_input=dropout_input,
            dropout_hidden=dropout_hidden,
            dropout_output=dropout_output,
            dropout_latent=dropout_latent,
            weight_drop=weight_drop,
        )
        self.experts = experts
        self.dropout_word = dropout_word
        self.dropout_input = dropout_input
        self.dropout_hidden = dropout_hidden
        self.dropout_output = dropout_output
        self.dropout_latent = dropout_latent
        self.weight_drop = weight_drop
        widths = [embedding, *[hidden] * (layers - 1), hidden_last]
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.rnns = nn.ModuleList(nn.LSTM(inputs, outputs) for inputs, outputs in itertools.pairwise(widths))
        self.prior = nn.Linear(hidden_last, experts, bias=False)
        self.latent = nn.Linear(hidden_last, experts * embedding)
        self.decoder = nn.Linear(embedding, vocabulary)
        self.decoder.weight = self.embedding.weight
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Embedding U(±0.1), output bias 0, everything else U(±1/√n), n being the width of its layer's state."""
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)
        for module in (*self.rnns, self.prior, self.latent):
            width = module.hidden_size if isinstance(module, nn.LSTM) else self.prior.in_features
            for parameter in module.parameters():
                nn.init.uniform_(parameter, -1 / math.sqrt(width), 1 / math.sqrt(width))

    def initial_state(self, batch_size: int) -> State:
        """Zeros: h and c of the first layer, h and c of the second, …; each 1 x batch x width of the layer."""
        widths = [rnn.hidden_size for rnn in self._rnns()]
        return tuple(self.decoder.bias.new_zeros(1, batch_size, width) for width in widths for _ in "hc")

    def encode(self, tokens: Tensor, state: State) -> Encoded:
        raw = embed(self.embedding, tokens, self.dropout_word, self.training)
        probability, after = self.dropout_input, list[Tensor]()
        for rnn, hidden, memory in zip(self._rnns(), state[::2], state[1::2], strict=True):
            entering = locked_dropout(raw, probability, self.training)
            raw, carried = lstm_with_weight_drop(rnn, entering, (hidden, memory), self.weight_drop, self.training)
            after.extend(carried)
            probability = self.dropout_hidden
        return Encoded(locked_dropout(raw, self.dropout_output, self.training), raw, tuple(after))

    def logits(self, output: Tensor) -> Tensor:
        """Log-probabilities of every word. In training, :meth:`loss` takes a fraction of the memory."""
        return mixture_log_probabilities(*self._mixture(output), self.decoder.weight, self.decoder.bias)

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        return mixture_loss(*self._mixture(output), self.decoder.weight, self.decoder.bias, targets)

    def _mixture(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """π (… x experts) and e (… x experts x features)."""
        latent = locked_dropout(torch.tanh(self.latent(output)), self.dropout_latent, self.training)
        return self.prior(output).softmax(-1), torch.unflatten(latent, -1, (self.experts, -1))

    def _rnns(self) -> list[nn.LSTM]:
        return [cast(nn.LSTM, rnn) for rnn in self.rnns]
