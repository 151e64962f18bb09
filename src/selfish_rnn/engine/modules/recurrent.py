"""Recurrent layers that store and multiply only the weights that exist."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

from selfish_rnn.engine.functional import drop_weights
from selfish_rnn.engine.modules.basic import random_weight
from selfish_rnn.engine.operators.common import wants_gradients
from selfish_rnn.engine.operators.recurrent import GATES, recurrent_layer
from selfish_rnn.engine.packed_weight import PackedWeight
from selfish_rnn.engine.registry import register_packed

Self = TypeVar("Self", bound="PackedRecurrent")


class PackedRecurrent(nn.Module):
    """What the packed LSTM, GRU and RNN have in common; arguments, names and shapes are those of torch's modules.

    ``weight_ih_l0`` and so on are :class:`~selfish_rnn.engine.PackedWeight`. Not there: ``bidirectional`` and
    ``proj_size``.
    """

    kind: ClassVar[type[nn.RNNBase]]
    arguments: ClassVar[Sequence[str]] = ("input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout")
    """Those that torch's module is made with, and keeps under the same names."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        *,
        sparsity: float,
        weight_drop: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        for name, probability in (("dropout", dropout), ("weight_drop", weight_drop)):
            if not 0 <= probability <= 1:
                raise ValueError(f"{name} must be from 0 to 1, got {probability}")
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.bias, self.batch_first = bias, batch_first
        self.dropout, self.weight_drop = dropout, weight_drop
        gates = (hidden_size,) * GATES[self.cell]
        for layer in range(num_layers):
            for name, columns in (("ih", input_size if layer == 0 else hidden_size), ("hh", hidden_size)):
                weight = random_weight((sum(gates), columns), sparsity, generator, gates)
                self.add_module(f"weight_{name}_l{layer}", weight)
                if bias:
                    self.register_parameter(f"bias_{name}_l{layer}", nn.Parameter(torch.empty(sum(gates))))
        self.reset_parameters()

    @property
    def cell(self) -> str:
        """The name of the cell among the kernels."""
        return "lstm"

    def reset_parameters(self) -> None:
        bound = 1 / math.sqrt(self.hidden_size)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    # Forms

    @classmethod
    def from_dense(cls: type[Self], dense: nn.RNNBase, **weights: PackedWeight) -> Self:
        """Layers with the non-zero weights of dense ones, or with ``weights`` in the place of those of their names.

        If the dense module has a ``weight_drop``, so has the packed one.
        """
        if not isinstance(dense, cls.kind):
            raise TypeError(f"{cls.__name__} is made from {cls.kind.__name__}, not from {type(dense).__name__}")
        if _obstacle(dense) is not None:
            raise ValueError("a packed recurrent module is neither bidirectional nor does it have a proj_size")
        packed = cls.__new__(cls)
        nn.Module.__init__(packed)
        for name in cls.arguments:
            setattr(packed, name, getattr(dense, name))
        packed.weight_drop = getattr(dense, "weight_drop", 0.0)
        gates = (dense.hidden_size,) * GATES[packed.cell]
        for name, parameter in dense.named_parameters():
            if name.startswith("weight"):
                given = weights.get(name)
                if given is not None and (given.shape != parameter.shape or given.gate_rows != gates):
                    raise ValueError(f"{name} needs a packed weight of {tuple(parameter.shape)} with gates of {gates}")
                packed.add_module(name, PackedWeight.from_dense(parameter, None, gates) if given is None else given)
            else:
                packed.register_parameter(name, nn.Parameter(parameter.detach().clone()))
        return packed.train(dense.training)

    def to_dense(self) -> nn.RNNBase:
        """torch's module with zeros where no weight exists."""
        make: Callable[..., nn.RNNBase] = self.kind
        dense = make(**{name: getattr(self, name) for name in self.arguments})
        with torch.no_grad():
            for name, parameter in dense.named_parameters():
                own = getattr(self, name)
                parameter.copy_(own.to_dense() if isinstance(own, PackedWeight) else own)
        return dense.train(self.training)

    # Running

    def _run(self, x: Tensor, h: Tensor, c: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """All layers over a window; x is time x batch x features (or the other way round with ``batch_first``)."""
        single = x.ndim == 2
        if single:
            x = x.unsqueeze(0 if self.batch_first else 1)
            h, c = h.unsqueeze(1), None if c is None else c.unsqueeze(1)
        if x.ndim != 3 or x.shape[-1] != self.input_size:
            raise ValueError(f"the input must have {self.input_size} features, its shape is {tuple(x.shape)}")
        if self.batch_first:
            x = x.transpose(0, 1)
        expected = (self.num_layers, x.shape[1], self.hidden_size)
        for state in (h, c):
            if state is not None and tuple(state.shape) != expected:
                raise ValueError(f"the state must be of shape {expected}, it is of shape {tuple(state.shape)}")
        hidden, cell = [], []
        for layer in range(self.num_layers):
            if layer:
                x = dropout(x, self.dropout, self.training)
            x, h_last, c_last = self._run_layer(layer, x, h[layer], h.new_empty(0) if c is None else c[layer])
            hidden.append(h_last)
            cell.append(c_last)
        if self.batch_first:
            x = x.transpose(0, 1)
        h, c = torch.stack(hidden), torch.stack(cell)
        if single:
            return x.squeeze(0 if self.batch_first else 1), h.squeeze(1), c.squeeze(1) if self.cell == "lstm" else c
        return x, h, c

    def _run_layer(self, layer: int, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        inputs: PackedWeight = getattr(self, f"weight_ih_l{layer}")
        recurrence: PackedWeight = getattr(self, f"weight_hh_l{layer}")
        biases = [getattr(self, f"bias_{name}_l{layer}", None) for name in ("ih", "hh")]
        drops = self.training and self.weight_drop > 0
        recurrent_values = drop_weights(recurrence, self.weight_drop) if drops else recurrence.values
        keep = wants_gradients(x, h, c, inputs.values, recurrent_values, *biases)
        y, h_last, c_last, *_ = recurrent_layer(
            x, h, c, inputs.values, inputs.index, recurrent_values, recurrence.index, *biases, self.cell, keep
        )
        return y, h_last, c_last

    def _state(self, x: Tensor) -> Tensor:
        batch = x.shape[0 if self.batch_first else 1]
        shape = (self.num_layers, self.hidden_size) if x.ndim == 2 else (self.num_layers, batch, self.hidden_size)
        return x.new_zeros(shape)

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}, num_layers={self.num_layers}"


def _obstacle(dense: nn.RNNBase) -> str | None:
    return "bidirectional" if dense.bidirectional else "proj_size" if dense.proj_size else None


class PackedLSTM(PackedRecurrent):
    """``torch.nn.LSTM`` with sparse weights.

    >>> lstm = PackedLSTM(1500, 1500, num_layers=2, dropout=0.65, sparsity=0.9)
    >>> output, (h, c) = lstm(inputs)          # inputs: time x batch x features
    >>> lstm = PackedLSTM.from_dense(dense)    # the non-zeros of an nn.LSTM exist

    ``weight_drop`` drops recurrent weights in training, the same at all steps of a window (Merity et al. 2018).
    """

    kind = nn.LSTM

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        h, c = (self._state(x), self._state(x)) if state is None else state
        y, h, c = self._run(x, h, c)
        return y, (h, c)


class PackedGRU(PackedRecurrent):
    """``torch.nn.GRU`` with sparse weights; see :class:`PackedLSTM`."""

    kind = nn.GRU

    @property
    def cell(self) -> str:
        return "gru"

    def forward(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        y, h, _ = self._run(x, self._state(x) if state is None else state, None)
        return y, h


class PackedRNN(PackedRecurrent):
    """``torch.nn.RNN`` with sparse weights; ``nonlinearity`` is ``"tanh"`` or ``"relu"``; see :class:`PackedLSTM`."""

    kind = nn.RNN
    arguments = (*PackedRecurrent.arguments, "nonlinearity")
    nonlinearity: str

    def __init__(self, *arguments: Any, nonlinearity: str = "tanh", **named: Any) -> None:
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"nonlinearity must be tanh or relu, got {nonlinearity!r}")
        object.__setattr__(self, "nonlinearity", nonlinearity)
        super().__init__(*arguments, **named)

    @property
    def cell(self) -> str:
        return f"rnn_{self.nonlinearity}"

    def forward(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        y, h, _ = self._run(x, self._state(x) if state is None else state, None)
        return y, h


register_packed(nn.LSTM, PackedLSTM, _obstacle)
register_packed(nn.GRU, PackedGRU, _obstacle)
register_packed(nn.RNN, PackedRNN, _obstacle)
