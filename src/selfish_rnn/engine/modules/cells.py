"""Single steps of recurrent layers that store and multiply only the weights that exist."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from selfish_rnn.engine.modules.basic import PackedCells, random_weight
from selfish_rnn.engine.modules.layers import run_window
from selfish_rnn.engine.operators.recurrent import GATES
from selfish_rnn.engine.packed_weight import PackedWeight
from selfish_rnn.engine.registry import register_packed


class PackedRecurrentCell(PackedCells[nn.RNNCellBase]):
    """Common part of the packed cells."""

    arguments: ClassVar[Sequence[str]] = ("input_size", "hidden_size", "bias")

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
        more = [f"{name}={getattr(self, name)}" for name in self.arguments[3:]]
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
    """Cells without a state c."""

    def forward(self, x: Tensor, state: Tensor | None = None) -> Tensor:
        return self._step(x, state, None)[0]


class PackedGRUCell(_WithoutCell):
    """``torch.nn.GRUCell`` with sparse weights; see :class:`PackedLSTMCell`."""

    kind = nn.GRUCell
    cell = "gru"


class Elman(nn.Module):
    """Modules with a ``nonlinearity``, ``"tanh"`` or ``"relu"``, that selects the cell."""

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
    arguments = (*PackedRecurrentCell.arguments, "nonlinearity")


register_packed(nn.LSTMCell, PackedLSTMCell)
register_packed(nn.GRUCell, PackedGRUCell)
register_packed(nn.RNNCell, PackedRNNCell)
