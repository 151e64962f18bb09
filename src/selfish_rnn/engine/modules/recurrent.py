"""Recurrent layers that store and multiply only the weights that exist."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout
from torch.nn.utils.rnn import PackedSequence

from selfish_rnn.engine.dense_gradients import is_collecting
from selfish_rnn.engine.functional import drop_weights
from selfish_rnn.engine.modules.basic import PackedCells, random_weight
from selfish_rnn.engine.modules.cells import Elman
from selfish_rnn.engine.modules.layers import Layer, over_sequences, over_window, projected_lstm, run_window
from selfish_rnn.engine.operators.recurrent import GATES
from selfish_rnn.engine.packed_weight import PackedWeight
from selfish_rnn.engine.registry import register_packed

Self = TypeVar("Self", bound="PackedRecurrent")


class PackedRecurrent(PackedCells[nn.RNNBase]):
    """Common part of the packed LSTM, GRU and RNN.

    ``weight_ih_l0`` and so on are :class:`~selfish_rnn.engine.PackedWeight`. Windows, single sequences and
    ``PackedSequence`` are taken, the latter without a step for a sequence that has ended.
    """

    arguments: ClassVar[Sequence[str]] = (
        "input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout", "bidirectional",
    )  # fmt: skip
    proj_size: int = 0
    weight_drop: float = 0.0

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
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
        self.bias, self.batch_first, self.bidirectional = bias, batch_first, bidirectional
        self.dropout, self.weight_drop = dropout, weight_drop
        gates = (hidden_size,) * GATES[self.cell]
        for layer, end in itertools.product(range(num_layers), self._ends):
            columns = {"ih": len(self._ends) * self._outputs if layer else input_size, "hh": self._outputs}
            for name in columns:
                weight = random_weight((sum(gates), columns[name]), sparsity, generator, gates)
                self.add_module(f"weight_{name}_l{layer}{end}", weight)
                if bias:
                    self.register_parameter(f"bias_{name}_l{layer}{end}", nn.Parameter(torch.empty(sum(gates))))
            if self.proj_size:
                projection = random_weight((self.proj_size, hidden_size), sparsity, generator)
                self.add_module(f"weight_hr_l{layer}{end}", projection)
        self.reset_parameters()

    @property
    def mode(self) -> str:
        """Mode in torch's words: ``"LSTM"``, ``"GRU"``, ``"RNN_TANH"`` or ``"RNN_RELU"``."""
        return self.cell.upper()

    @property
    def _ends(self) -> tuple[str, ...]:
        """Endings of the names of weights, for each direction."""
        return ("", "_reverse") if self.bidirectional else ("",)

    @property
    def _outputs(self) -> int:
        """Number of features of one direction of a layer."""
        return self.proj_size or self.hidden_size

    def flatten_parameters(self) -> None:
        """Nothing to do: code that is written for torch's modules calls it."""

    @classmethod
    def from_dense(cls: type[Self], dense: nn.RNNBase, **weights: PackedWeight) -> Self:
        """Layers with the non-zero weights of dense ones, or with ``weights`` in the place of those of their names.

        If the dense module has a ``weight_drop``, so has the packed one.
        """
        packed = super().from_dense(dense, **weights)
        packed.weight_drop = getattr(dense, "weight_drop", 0.0)
        return packed

    # Running

    def _forward(
        self, x: Tensor | PackedSequence, h: Tensor | None, c: Tensor | None
    ) -> tuple[Tensor | PackedSequence, Tensor, Tensor]:
        """Any kind of input; states are zero where none are given."""
        if isinstance(x, PackedSequence):
            return self._forward_sequences(x, h, c)
        time, single = (1 if self.batch_first and x.ndim == 3 else 0), x.ndim == 2
        if x.ndim not in (2, 3) or x.shape[-1] != self.input_size:
            raise ValueError(f"the input must have {self.input_size} features, its shape is {tuple(x.shape)}")
        if single or time:
            x = x.unsqueeze(1) if single else x.transpose(0, 1)
        if single:
            h, c = (None if state is None else state.unsqueeze(1) for state in (h, c))
        y, h, c = self._run(x, None, x.shape[1], h, c)
        if single:
            return y.squeeze(1), h.squeeze(1), c.squeeze(1) if self.cell == "lstm" else c
        return y.transpose(0, 1) if time else y, h, c

    def _forward_sequences(
        self, x: PackedSequence, h: Tensor | None, c: Tensor | None
    ) -> tuple[PackedSequence, Tensor, Tensor]:
        data, batch_sizes, order, back = x
        if data.shape[-1] != self.input_size:
            raise ValueError(f"the input must have {self.input_size} features, not {data.shape[-1]}")
        if order is not None:
            h, c = (None if state is None else state.index_select(1, order) for state in (h, c))
        y, h, c = self._run(data, batch_sizes, int(batch_sizes[0]), h, c)
        if back is not None:
            h, c = h.index_select(1, back), c.index_select(1, back) if self.cell == "lstm" else c
        return PackedSequence(y, batch_sizes, order, back), h, c

    def _run(
        self, x: Tensor, batch_sizes: Tensor | None, batch: int, h: Tensor | None, c: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """All layers in all directions; x is time x batch x features, or the data of a ``PackedSequence``."""
        h = self._state("hidden", x, batch, self._outputs, h)
        c = self._state("cell", x, batch, self.hidden_size, c) if self.cell == "lstm" else h.new_empty(len(h), 0)
        hidden: list[Tensor] = []
        cells: list[Tensor] = []
        before = list(zip(h.unbind(), c.unbind(), strict=True))
        for layer in range(self.num_layers):
            if layer and self.training:
                x = dropout(x, self.dropout)
            outputs = []
            for direction, end in enumerate(self._ends):
                run, backwards = self._layer(f"_l{layer}{end}", batch_sizes), direction == 1
                first = before[len(hidden)]
                if batch_sizes is None:
                    y, h_last, c_last = over_window(run, x, *first, backwards)
                else:
                    y, h_last, c_last = over_sequences(run, x, batch_sizes, *first, backwards)
                outputs.append(y)
                hidden.append(h_last)
                cells.append(c_last)
            x = torch.cat(outputs, -1) if len(outputs) > 1 else outputs[0]
        return x, torch.stack(hidden), torch.stack(cells)

    def _state(self, what: str, x: Tensor, batch: int, features: int, state: Tensor | None) -> Tensor:
        expected = (self.num_layers * len(self._ends), batch, features)
        if state is None:
            return x.new_zeros(expected)
        if tuple(state.shape) != expected:
            raise ValueError(f"the {what} state must be of shape {expected}, it is of shape {tuple(state.shape)}")
        return state

    def _layer(self, end: str, batch_sizes: Tensor | None) -> Layer:
        """Run one direction of a layer."""
        inputs: Any = self._modules[f"weight_ih{end}"]
        recurrence: Any = self._modules[f"weight_hh{end}"]
        biases = [self._bias(f"bias_{name}{end}") for name in ("ih", "hh")]
        if self.proj_size:
            return partial(projected_lstm, inputs, recurrence, getattr(self, f"weight_hr{end}"), biases)
        drops = self.training and self.weight_drop > 0
        if drops and batch_sizes is not None and is_collecting(recurrence.index):
            raise RuntimeError("dense gradients with weight_drop are not collected over sequences of different lengths")
        values = drop_weights(recurrence, self.weight_drop) if drops else None
        return partial(run_window, self.cell, inputs, recurrence, values, biases)

    def _bias(self, name: str) -> Tensor | None:
        """Return a bias, also if parametrizations or pruning of torch have moved it."""
        parameter = self._parameters.get(name)  # past nn.Module's search for attributes, which is slow
        return getattr(self, name, None) if parameter is None and self.bias else parameter

    def extra_repr(self) -> str:
        defaults = {"num_layers": 1, "bias": True, "batch_first": False, "dropout": 0, "bidirectional": False}
        named = {name: getattr(self, name) for name in self.arguments[2:]}
        unusual = [f"{name}={value}" for name, value in named.items() if value != defaults.get(name, 0)]
        return ", ".join([f"{self.input_size}, {self.hidden_size}", *unusual])


class PackedLSTM(PackedRecurrent):
    """``torch.nn.LSTM`` with sparse weights.

    >>> lstm = PackedLSTM(1500, 1500, num_layers=2, dropout=0.65, sparsity=0.9)
    >>> output, (h, c) = lstm(inputs)          # inputs: time x batch x features
    >>> lstm = PackedLSTM.from_dense(dense)    # the non-zeros of an nn.LSTM exist

    ``weight_drop`` drops recurrent weights in training, the same at all steps of a window (Merity et al. 2018).
    """

    kind: ClassVar[type[nn.LSTM]] = nn.LSTM
    cell = "lstm"
    arguments = (*PackedRecurrent.arguments, "proj_size")

    def __init__(self, *arguments: Any, proj_size: int = 0, **named: Any) -> None:
        # Before the module itself is made: its weights have that many columns.
        object.__setattr__(self, "proj_size", proj_size)
        super().__init__(*arguments, **named)

    def forward(
        self, x: Tensor | PackedSequence, state: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor | PackedSequence, tuple[Tensor, Tensor]]:
        h, c = (None, None) if state is None else state
        y, h, c = self._forward(x, h, c)
        return y, (h, c)


class _WithoutCell(PackedRecurrent):
    """Layers without a state c."""

    def forward(
        self, x: Tensor | PackedSequence, state: Tensor | None = None
    ) -> tuple[Tensor | PackedSequence, Tensor]:
        y, h, _ = self._forward(x, state, None)
        return y, h


class PackedGRU(_WithoutCell):
    """``torch.nn.GRU`` with sparse weights; see :class:`PackedLSTM`."""

    kind = nn.GRU
    cell = "gru"


class PackedRNN(Elman, _WithoutCell):  # type: ignore[override]
    """``torch.nn.RNN`` with sparse weights; ``nonlinearity`` is ``"tanh"`` or ``"relu"``; see :class:`PackedLSTM`."""

    kind = nn.RNN
    arguments = (*PackedRecurrent.arguments, "nonlinearity")


register_packed(nn.LSTM, PackedLSTM)
register_packed(nn.GRU, PackedGRU)
register_packed(nn.RNN, PackedRNN)
