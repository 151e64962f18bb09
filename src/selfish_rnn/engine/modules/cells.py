"""Single steps of recurrent layers that store and multiply only the weights that exist."""

from __future__ import annotations

import math
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from selfish_rnn.engine.modules.layers import run_window
from selfish_rnn.engine.modules.parameters import give_parameters, random_weight, take_parameters
from selfish_rnn.engine.operators.recurrent import GATES
from selfish_rnn.engine.packed_weight import PackedWeight
from selfish_rnn.engine.registry import register_packed

Self = TypeVar("Self", bound="PackedRecurrentCell")


class PackedRecurrentCell(nn.Module):
    """What the packed cells have in common; arguments, names and shapes are those of torch's cells."""

    kind: ClassVar[type[nn.RNNCellBase]]
    cell: str
    """The name of the cell among the kernels."""

    weight_ih: PackedWeight
    weight_hh: PackedWeight
    bias_ih: nn.Parameter | None
    bias_hh: nn.Parameter | None

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        *,
        sparsity: float,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        gates = (hidden_size,) * GATES[self.cell]
        for name, columns in (("ih", input_size), ("hh", hidden_size)):
            self.add_module(f"weight_{name}", random_weight((sum(gates), columns), sparsity, generator, gates))
            self.register_parameter(f"bias_{name}", nn.Parameter(torch.empty(sum(gates))) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        bound = 1 / math.sqrt(self.hidden_size)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    @classmethod
    def from_dense(cls: type[Self], dense: nn.RNNCellBase, **weights: PackedWeight) -> Self:
        """A cell with the non-zero weights of a dense one, or with ``weights`` in the place of those of their names."""
        if not isinstance(dense, cls.kind):
            raise TypeError(f"{cls.__name__} is made from {cls.kind.__name__}, not from {type(dense).__name__}")
        packed = cls.__new__(cls)
        nn.Module.__init__(packed)
        packed.input_size, packed.hidden_size, packed.bias = dense.input_size, dense.hidden_size, dense.bias
        for name in ("bias_ih", "bias_hh"):
            packed.register_parameter(name, None)
        packed._take_more(dense)
        take_parameters(packed, dense, (dense.hidden_size,) * GATES[packed.cell], weights)
        return packed.train(dense.training)

    def _take_more(self, dense: nn.RNNCellBase) -> None:
        """Take over what only some cells have."""

    def _more(self) -> dict[str, Any]:
        """What only some cells are made with."""
        return {}

    def to_dense(self) -> nn.RNNCellBase:
        """torch's cell with zeros where no weight exists."""
        make: Any = self.kind
        dense: nn.RNNCellBase = make(self.input_size, self.hidden_size, self.bias, **self._more())
        give_parameters(self, dense)
        return dense.train(self.training)

    def _step(self, x: Tensor, h: Tensor | None, c: Tensor | None) -> tuple[Tensor, Tensor]:
        if x.ndim not in (1, 2) or x.shape[-1] != self.input_size:
            raise ValueError(f"the input must have {self.input_size} features, its shape is {tuple(x.shape)}")
        expected = (*x.shape[:-1], self.hidden_size)
        lstm = self.cell == "lstm"
        h, c = (x.new_zeros(expected) if state is None else state for state in (h, c))
        for state in (h, c):
            if tuple(state.shape) != expected:
                raise ValueError(f"the state must be of shape {expected}, it is of shape {tuple(state.shape)}")
        rows = [tensor.reshape(-1, tensor.shape[-1]) for tensor in (x, h, c)]
        biases = (self.bias_ih, self.bias_hh)
        _, h, c = run_window(
            self.cell,
            self.weight_ih,
            self.weight_hh,
            None,
            biases,
            rows[0].unsqueeze(0),
            rows[1],
            rows[2] if lstm else rows[2].new_empty(0),
        )
        return h.view(expected), c.view(expected) if lstm else c

    def extra_repr(self) -> str:
        more = [f"{name}={value}" for name, value in self._more().items()]
        return ", ".join([f"{self.input_size}, {self.hidden_size}", *([] if self.bias else ["bias=False"]), *more])


class PackedLSTMCell(PackedRecurrentCell):
    """``torch.nn.LSTMCell`` with sparse weights.

    >>> cell = PackedLSTMCell(200, 300, sparsity=0.9)
    >>> h, c = cell(inputs, (h, c))                # inputs: batch x features
    >>> cell = PackedLSTMCell.from_dense(dense)    # the non-zeros of an nn.LSTMCell exist
    """

    kind = nn.LSTMCell
    cell = "lstm"

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        return self._step(x, *((None, None) if state is None else state))


class _WithoutCell(PackedRecurrentCell):
    """What has no c beside its h."""

    def forward(self, x: Tensor, state: Tensor | None = None) -> Tensor:
        return self._step(x, state, None)[0]


class PackedGRUCell(_WithoutCell):
    """``torch.nn.GRUCell`` with sparse weights; see :class:`PackedLSTMCell`."""

    kind = nn.GRUCell
    cell = "gru"


class Elman(nn.Module):
    """What is made with a ``nonlinearity``, ``"tanh"`` or ``"relu"``, and has a cell of its name."""

    nonlinearity: str

    def __init__(self, *arguments: Any, nonlinearity: str = "tanh", **named: Any) -> None:
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"nonlinearity must be tanh or relu, got {nonlinearity!r}")
        # Before the module itself is made: its weights have the rows of that cell.
        object.__setattr__(self, "nonlinearity", nonlinearity)
        super().__init__(*arguments, **named)

    @property
    def cell(self) -> str:
        return f"rnn_{self.nonlinearity}"


class PackedRNNCell(Elman, _WithoutCell):  # type: ignore[override]
    """``torch.nn.RNNCell`` with sparse weights; ``nonlinearity`` is ``"tanh"`` or ``"relu"``."""

    kind = nn.RNNCell

    def _take_more(self, dense: nn.RNNCellBase) -> None:
        self.nonlinearity = str(dense.nonlinearity)

    def _more(self) -> dict[str, Any]:
        return {"nonlinearity": self.nonlinearity}


register_packed(nn.LSTMCell, PackedLSTMCell)
register_packed(nn.GRUCell, PackedGRUCell)
register_packed(nn.RNNCell, PackedRNNCell)
