"""The recurrent highway language model of Zilly et al. (2017) with variational dropout."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from selfish_rnn.models.base import Dropouts, Encoded, LanguageModel, State, check_init_range, check_sizes
from selfish_rnn.models.cells.highway import HIGHWAY_GATES, HighwayCell
from selfish_rnn.models.regularisers import dropout_mask, embed, locked_dropout
from selfish_rnn.sparsifier.iss import UnitLayer, UnitPart


class RecurrentHighwayNetwork(LanguageModel):
    """Embedding, one :class:`~selfish_rnn.models.cells.highway.HighwayCell`, output layer tied to the embedding.

    Every dropout mask is drawn once per window: for whole words, for input and output at all time steps, and for the
    state at all time steps and depths. ``transform_bias`` is the initial bias of the transform gate; None draws it at
    random, as in the paper's experiments, while Zilly et al. use -2. The defaults are the paper's Penn Treebank network
    (23,484,060 weights with 10,000 words).

    >>> model = RecurrentHighwayNetwork(10_000, hidden=200, depth=4, transform_bias=-2)
    >>> scores, state = model(tokens)  # tokens: time x batch
    """

    def __init__(
        self,
        vocabulary: int,
        *,
        hidden: int = 830,
        depth: int = 10,
        dropout_word: float = 0.2,
        dropout_input: float = 0.65,
        dropout_hidden: float = 0.25,
        dropout_output: float = 0.65,
        transform_bias: float | None = None,
        init_range: float = 0.1,
    ) -> None:
        super().__init__()
        check_init_range(init_range)
        check_sizes(vocabulary=vocabulary, hidden=hidden, depth=depth)
        self.dropouts = Dropouts(dropout_word, dropout_input, dropout_hidden, dropout_output)
        self.init_range = init_range
        self.transform_bias = transform_bias
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.cell = HighwayCell(hidden, hidden, depth)
        self.decoder = nn.Linear(hidden, vocabulary)
        self.decoder.weight = self.embedding.weight
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the embedding from U(±init_range) and the cell from U(±1/√hidden); zero the output bias."""
        self._reset_embedding_and_decoder()
        self.cell.reset_parameters(self.transform_bias)

    def initial_state(self, batch_size: int) -> State:
        """Return one tensor of zeros, batch x hidden."""
        return (self.decoder.bias.new_zeros(batch_size, self.cell.hidden),)

    def encode(self, tokens: Tensor, state: State) -> Encoded:
        embedded = embed(self.embedding, tokens, self.dropouts.word, self.training)
        embedded = locked_dropout(embedded, self.dropouts.input, self.training)
        (initial,) = state
        mask = None
        if self.training and self.dropouts.hidden:
            mask = dropout_mask(initial.shape, self.dropouts.hidden, initial)
        raw = self.cell(embedded, initial, mask)
        return Encoded(locked_dropout(raw, self.dropouts.output, self.training), raw, (raw[-1],))

    def unit_layers(self) -> list[UnitLayer]:
        """Return one layer: a unit spans all depths, because the carry path connects its states.

        The output matrix is the embedding, so a unit is also a dimension of the embedding and a column of W. That
        column reads the unit's dimension of the embedding and not its state. The dimension is zero where the output
        does not read the unit.
        """
        parts = [
            UnitPart(self.embedding.get_parameter("weight"), axis=1, reads=True),
            UnitPart(self.cell.get_parameter("weight_input"), axis=1),
        ]
        biases = list[UnitPart]()
        for name, parameter in self.cell.named_parameters():
            rows = UnitPart(parameter, axis=0, blocks=len(HIGHWAY_GATES))
            (biases if name.startswith("bias") else parts).append(rows)
            if name.startswith("weight_recurrent"):
                parts.append(UnitPart(parameter, axis=1, reads=True))
        return [UnitLayer("cell", self.cell.hidden, tuple(parts), tuple(biases))]

    def resized(self, sizes: Sequence[int]) -> RecurrentHighwayNetwork:
        (hidden,) = sizes
        return RecurrentHighwayNetwork(
            self.embedding.num_embeddings,
            hidden=hidden,
            depth=self.cell.depth,
            transform_bias=self.transform_bias,
            init_range=self.init_range,
            **self.dropouts.arguments(),
        )
