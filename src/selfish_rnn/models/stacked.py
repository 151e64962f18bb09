"""Stacked LSTM language model of Zaremba et al. (2014), and its GRU and vanilla RNN variants."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Literal, cast

from torch import Tensor, nn
from torch.nn import functional

from selfish_rnn.engine.modules.basic import reset_uniform
from selfish_rnn.errors import UserError
from selfish_rnn.models.base import Encoded, LanguageModel, State, check_init_range, check_probabilities, check_sizes
from selfish_rnn.sparsifier.iss import UnitLayer, UnitPart

Cell = Literal["lstm", "gru", "rnn"]

_KINDS: dict[str, Callable[..., nn.RNNBase]] = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}


class StackedRNN(LanguageModel):
    """Embedding, ``layers`` recurrent layers and an output layer, with dropout everywhere except in the recurrence.

    For ``cell="lstm"`` every layer computes, from its input x and its state (h, c),

        [i; f; g; o] = W x + w + R h + r
        c' = σ(f) c + σ(i) tanh(g)
        h' = σ(o) tanh(c')

    Dropout is drawn per element: after the embedding, between layers and after the top layer. ``hidden`` is the width
    of all layers, or one width for each. The defaults are the paper's Penn Treebank network (66,034,000 weights with
    10,000 words).

    >>> model = StackedRNN(10_000, embedding=200, hidden=200, cell="gru")
    >>> scores, state = model(tokens)  # tokens: time x batch
    """

    def __init__(
        self,
        vocabulary: int,
        *,
        embedding: int = 1500,
        hidden: int | tuple[int, ...] = 1500,
        layers: int = 2,
        dropout: float = 0.65,
        cell: Cell = "lstm",
        tied: bool = False,
        init_range: float = 0.1,
    ) -> None:
        super().__init__()
        check_init_range(init_range)
        check_sizes(vocabulary=vocabulary, embedding=embedding, layers=layers)
        check_probabilities(dropout=dropout)
        if cell not in _KINDS:
            raise UserError(f"cell must be one of {', '.join(_KINDS)}, got {cell!r}")
        widths = _widths(hidden, layers)
        if tied and embedding != widths[-1]:
            raise UserError(
                f"tied needs embedding and hidden of the same size, got embedding {embedding} and hidden {widths[-1]}"
            )
        self.init_range = init_range
        self.kind: Cell = cell
        self.dropout = dropout
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.rnn: nn.RNNBase | nn.ModuleList
        if len(set(widths)) == 1:
            # torch warns about dropout between layers if there is only one layer.
            self.rnn = _KINDS[cell](embedding, widths[0], layers, dropout=dropout if layers > 1 else 0.0)
        else:
            # torch's modules have layers of one width only.
            pairs = itertools.pairwise((embedding, *widths))
            self.rnn = nn.ModuleList(_KINDS[cell](inputs, outputs) for inputs, outputs in pairs)
        self.decoder = nn.Linear(widths[-1], vocabulary)
        if tied:
            self.decoder.weight = self.embedding.weight
        self.reset_parameters()

    @property
    def tied(self) -> bool:
        """Whether the output matrix is the embedding."""
        return self.decoder.weight is self.embedding.weight

    def reset_parameters(self) -> None:
        """Draw embedding and output matrix from U(±init_range), layers from U(±1/√hidden); zero the output bias."""
        self._reset_embedding_and_decoder()
        for rnn in self._rnns():
            reset_uniform(rnn, rnn.hidden_size)

    def initial_state(self, batch_size: int) -> State:
        """Return zeros: (h, c) for the LSTM, (h,) for other cells; each layers x batch x hidden.

        Layers of different widths have separate tensors: those of the first layer, of the second, …; each 1 x batch x
        width.
        """
        zeros = self.decoder.bias.new_zeros
        shapes = [(rnn.num_layers, batch_size, rnn.hidden_size) for rnn in self._rnns()]
        return tuple(zeros(shape) for shape in shapes for _ in range(self._tensors_per_state))

    def encode(self, tokens: Tensor, state: State) -> Encoded:
        raw, after = self.embedding(tokens), list[Tensor]()
        for index, rnn in enumerate(self._rnns()):
            entering = functional.dropout(raw, self.dropout, self.training)
            first = index * self._tensors_per_state
            if self.kind == "lstm":
                raw, carried = rnn(entering, (state[first], state[first + 1]))
                after.extend(carried)
            else:
                raw, hidden = rnn(entering, state[first])
                after.append(hidden)
        return Encoded(functional.dropout(raw, self.dropout, self.training), raw, tuple(after))

    def unit_layers(self) -> list[UnitLayer]:
        """Return one entry per recurrent layer; the next layer, or the decoder, reads it.

        With ``tied``, a unit of the last layer is also a dimension of the embedding and a column of the first input
        matrix.
        """
        cells = [(rnn, layer) for rnn in self._rnns() for layer in range(rnn.num_layers)]
        readers = [rnn.get_parameter(f"weight_ih_l{layer}") for rnn, layer in cells[1:]]
        readers.append(self.decoder.get_parameter("weight"))
        layers = []
        for index, ((rnn, layer), reader) in enumerate(zip(cells, readers, strict=True)):
            inputs, recurrent, *biases = (
                rnn.get_parameter(f"{name}_l{layer}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            )
            gates = len(recurrent) // rnn.hidden_size
            parts = [
                UnitPart(inputs, axis=0, blocks=gates),
                UnitPart(recurrent, axis=0, blocks=gates),
                UnitPart(recurrent, axis=1, reads=True),
                UnitPart(reader, axis=1, reads=True),
            ]
            if self.tied and index == len(cells) - 1:
                parts.append(UnitPart(self._rnns()[0].get_parameter("weight_ih_l0"), axis=1))
            both = tuple(UnitPart(bias, axis=0, blocks=gates) for bias in biases)
            layers.append(UnitLayer(f"layer_{index}", rnn.hidden_size, tuple(parts), both))
        return layers

    def resized(self, sizes: Sequence[int]) -> StackedRNN:
        return StackedRNN(
            self.embedding.num_embeddings,
            embedding=sizes[-1] if self.tied else self.embedding.embedding_dim,
            hidden=tuple(sizes),
            layers=len(sizes),
            dropout=self.dropout,
            cell=self.kind,
            tied=self.tied,
            init_range=self.init_range,
        )

    @property
    def _tensors_per_state(self) -> int:
        return 2 if self.kind == "lstm" else 1

    def _rnns(self) -> list[nn.RNNBase]:
        """Return the recurrent modules in order: one module, or one per layer if the widths differ."""
        return [cast(nn.RNNBase, rnn) for rnn in self.rnn] if isinstance(self.rnn, nn.ModuleList) else [self.rnn]


def _widths(hidden: int | tuple[int, ...], layers: int) -> tuple[int, ...]:
    widths = (hidden,) * layers if isinstance(hidden, int) else tuple(hidden)
    if len(widths) != layers:
        raise UserError(f"hidden must be one width, or one for each of the {layers} layers, got {list(widths)}")
    for width in widths:
        check_sizes(hidden=width)
    return widths
