"""The LSTM with DropConnect on its recurrent matrix (Merity et al. 2018)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from selfish_rnn.engine import PackedLSTM, register_packed
from selfish_rnn.engine.modules.basic import give_parameters
from selfish_rnn.models.regularisers import weight_drop


class WeightDropLSTM(nn.LSTM):
    """A one-layer ``nn.LSTM`` that in training drops recurrent weights with probability ``weight_drop``.

    Weights are drawn once for all time steps. In evaluation, and with probability 0, it is a plain ``nn.LSTM``.

    >>> lstm = WeightDropLSTM(200, 300, weight_drop=0.5)
    >>> output, (h, c) = lstm(inputs, (h, c))  # inputs: time x batch x features
    """

    def __init__(self, inputs: int, hidden: int, weight_drop: float) -> None:
        super().__init__(inputs, hidden)
        self.weight_drop = weight_drop

    def forward(  # type: ignore[override]
        self, inputs: Tensor, state: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        if not self.training or self.weight_drop == 0:
            output, (hidden, cell) = super().forward(inputs, state)
            return output, (hidden, cell)
        names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
        weights: list[Tensor] = [self.get_parameter(name) for name in names]
        weights[1] = weight_drop(weights[1], self.weight_drop, self.training, rescale="training")
        # The module reads its own parameters, so the dropped matrix goes to the function underneath it.
        one_layer: Any = {"has_biases": True, "num_layers": 1, "bidirectional": False, "batch_first": False}
        output, hidden, cell = torch.lstm(inputs, state, weights, dropout=0.0, train=True, **one_layer)
        return output, (hidden, cell)


class PackedWeightDropLSTM(PackedLSTM):
    """:class:`WeightDropLSTM` with packed weights."""

    kind = WeightDropLSTM

    def to_dense(self) -> WeightDropLSTM:
        return give_parameters(self, WeightDropLSTM(self.input_size, self.hidden_size, self.weight_drop))


register_packed(WeightDropLSTM, PackedWeightDropLSTM)
