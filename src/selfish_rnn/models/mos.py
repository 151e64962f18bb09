"""AWD-LSTM (Merity et al. 2018) with a mixture of softmaxes (Yang et al. 2018)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from selfish_rnn.engine.modules.basic import reset_uniform
from selfish_rnn.models.base import (
    Dropouts,
    Encoded,
    LanguageModel,
    State,
    check_init_range,
    check_probabilities,
    check_sizes,
)
from selfish_rnn.models.cells.mixture import MixtureDecoder
from selfish_rnn.models.cells.weight_drop import WeightDropLSTM
from selfish_rnn.models.regularisers import embed, locked_dropout


class MixtureOfSoftmaxesLSTM(LanguageModel):
    """Embedding, LSTM layers with weight drop, and an output layer that mixes the softmaxes of its experts.

    With x the top layer, K ``experts`` and the embedding D as output matrix,

        π = softmax(P x)
        [e_1; …; e_K] = dropout(tanh(L x + l))
        p = Σ_k π_k softmax(D e_k + d)

    All layers except the last have ``hidden`` units, the last has ``hidden_last``. All dropout masks are drawn once per
    window. P is so small that the paper leaves it dense. The defaults are the paper's WikiText-2 network (34,909,528
    weights with 33,278 words).

    >>> model = MixtureOfSoftmaxesLSTM(33_278, embedding=100, hidden=300, hidden_last=200, experts=5)
    >>> encoded = model.encode(tokens, model.initial_state(batch_size))  # tokens: time x batch
    >>> loss = model.loss(encoded.output, targets)
    """

    decoder: MixtureDecoder

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
        init_range: float = 0.1,
    ) -> None:
        super().__init__()
        check_init_range(init_range)
        check_sizes(vocabulary=vocabulary, embedding=embedding, hidden=hidden, hidden_last=hidden_last)
        check_sizes(layers=layers, experts=experts)
        check_probabilities(dropout_latent=dropout_latent, weight_drop=weight_drop)
        self.experts = experts
        self.init_range = init_range
        self.dropouts = Dropouts(dropout_word, dropout_input, dropout_hidden, dropout_output)
        self.dropout_latent = dropout_latent
        widths = [embedding, *[hidden] * (layers - 1), hidden_last]
        self.embedding = nn.Embedding(vocabulary, embedding)
        rnns = (WeightDropLSTM(*pair, weight_drop) for pair in itertools.pairwise(widths))
        self.rnns = cast(Sequence[WeightDropLSTM], nn.ModuleList(rnns))
        self.prior = nn.Linear(hidden_last, experts, bias=False)
        self.latent = nn.Linear(hidden_last, experts * embedding)
        self.decoder = MixtureDecoder(embedding, vocabulary)
        self.decoder.weight = self.embedding.weight
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the embedding from U(±init_range), other weights from U(±1/√width); zero the output bias."""
        self._reset_embedding_and_decoder()
        for rnn in self.rnns:
            reset_uniform(rnn, rnn.hidden_size)
        for module in (self.prior, self.latent):
            reset_uniform(module, self.rnns[-1].hidden_size)

    def initial_state(self, batch_size: int) -> State:
        """Return zeros: h and c of the first layer, h and c of the second, …; each 1 x batch x width of the layer."""
        return tuple(self.decoder.bias.new_zeros(1, batch_size, rnn.hidden_size) for rnn in self.rnns for _ in "hc")

    def encode(self, tokens: Tensor, state: State) -> Encoded:
        raw = embed(self.embedding, tokens, self.dropouts.word, self.training)
        probability, after = self.dropouts.input, list[Tensor]()
        for rnn, hidden, cell in zip(self.rnns, state[::2], state[1::2], strict=True):
            raw, carried = rnn(locked_dropout(raw, probability, self.training), (hidden, cell))
            after.extend(carried)
            probability = self.dropouts.hidden
        return Encoded(locked_dropout(raw, self.dropouts.output, self.training), raw, tuple(after))

    def logits(self, output: Tensor) -> Tensor:
        """Return the log-probabilities of all words. In training, :meth:`loss` takes a fraction of the memory."""
        log_probabilities: Tensor = self.decoder(*self._mixture(output))
        return log_probabilities

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        return self.decoder.loss(*self._mixture(output), targets)

    def _mixture(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """Return π (… x experts) and e (… x experts x features), which the decoder mixes."""
        latent = locked_dropout(torch.tanh(self.latent(output)), self.dropout_latent, self.training)
        return self.prior(output).softmax(-1), torch.unflatten(latent, -1, (self.experts, -1))
