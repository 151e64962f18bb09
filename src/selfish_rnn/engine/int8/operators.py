"""Products with int8 weights, as operators of torch. They have no gradients; torch raises an error for them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from selfish_rnn.engine import library
from selfish_rnn.engine.int8.quantized_weight import QuantizedWeight, windows_shape
from selfish_rnn.engine.library import address
from selfish_rnn.engine.operators import common
from selfish_rnn.engine.operators.recurrent import gate_rows

_VECTORS = 8
"""Vectors that a layer multiplies at once, by joining steps: kernels take eight, and sums stay in cache."""


def linear(x: Tensor, weight: QuantizedWeight, bias: Tensor | None) -> Tensor:
    """``x W^T + bias``; every vector of x is rounded to ``scale * q`` with whole numbers q from -127 to 127."""
    y: Tensor = common.call(int8_linear, x, weight.windows, bias, weight.shape[0])
    return y


def embedding(tokens: Tensor, weight: QuantizedWeight) -> Tensor:
    """Return the rows of W at ``tokens``, in single precision."""
    rows: Tensor = common.call(int8_lookup, tokens.to(torch.int64), weight.windows, weight.shape[1])
    return rows


def linear_cross_entropy(x: Tensor, weight: QuantizedWeight, bias: Tensor | None, targets: Tensor) -> Tensor:
    """``cross_entropy(linear(x, weight, bias), targets)``, the mean over all targets, some vectors at a time."""
    vectors, labels = x.reshape(-1, x.shape[-1]), targets.flatten()
    pieces = zip(torch.split(vectors, 512), torch.split(labels, 512), strict=True)
    losses = [functional.cross_entropy(linear(some, weight, bias), their, reduction="sum") for some, their in pieces]
    return torch.stack(losses).sum() / len(labels)


def window(
    cell: str,
    inputs: QuantizedWeight,
    recurrence: QuantizedWeight,
    biases: Sequence[Tensor | None],
    x: Tensor,
    h: Tensor,
    c: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run a layer over steps x batch x inputs; return the output at every step and the last h and c."""
    y, c = common.call(int8_layer, x, h, c, inputs.windows, recurrence.windows, *biases, cell)
    return y, y[-1], c


@common.operator("int8_linear")
def int8_linear(x: Tensor, windows: Tensor, bias: Tensor | None, rows: int) -> Tensor:
    (x,), bias = common.contiguous(x), common.contiguous_if(bias)
    height, columns = windows_shape(windows)
    if height != rows:
        raise ValueError(f"an int8 matrix of {height} rows does not give {rows} features")
    common.check_shape("input", x, *x.shape[:-1], columns)
    common.check_shape("bias", bias, rows)
    y = x.new_empty(*x.shape[:-1], rows)
    library.kernels().selfish_int8_linear(*map(address, (windows, bias, x)), x.numel() // columns, address(y))
    return y


@int8_linear.register_fake
def _(x: Tensor, windows: Tensor, bias: Tensor | None, rows: int) -> Tensor:
    return x.new_empty(*x.shape[:-1], rows)


@common.operator("int8_lookup")
def int8_lookup(tokens: Tensor, windows: Tensor, columns: int) -> Tensor:
    rows, width = windows_shape(windows)
    if width != columns:
        raise ValueError(f"rows of an int8 matrix with {width} columns do not have {columns}")
    tokens = common.row_numbers("token", tokens, rows)
    y = torch.empty(*tokens.shape, columns, dtype=torch.float32, device="cpu")
    library.kernels().selfish_int8_lookup(address(windows), address(tokens), tokens.numel(), address(y))
    return y


@int8_lookup.register_fake
def _(tokens: Tensor, windows: Tensor, columns: int) -> Tensor:
    return torch.empty(*tokens.shape, columns, device=tokens.device)


@common.operator("int8_layer")
def int8_layer(
    x: Tensor,
    h: Tensor,
    c: Tensor,
    inputs: Tensor,
    recurrence: Tensor,
    bias: Tensor | None,
    recurrent_bias: Tensor | None,
    cell: str,
) -> tuple[Tensor, Tensor]:
    """A layer over a window: the output at every step and the last c; c is empty but for an LSTM."""
    x, h, c = common.contiguous(x, h, c)
    bias, recurrent_bias = common.contiguous_if(bias), common.contiguous_if(recurrent_bias)
    (rows, columns), (recurrent_rows, hidden) = windows_shape(inputs), windows_shape(recurrence)
    lstm = cell == "lstm"
    shape = common.window_shape(x, hidden, h, c if lstm else None)
    common.check_shape("input", x, *x.shape[:2], columns)
    if {rows, recurrent_rows} != {sum(gate_rows(cell, hidden))}:
        raise ValueError(f"matrices of {rows} and {recurrent_rows} rows do not fit the {cell} of a state of {hidden}")
    common.check_shape("bias", bias, rows)
    common.check_shape("bias", recurrent_bias, rows)
    y, c_last = x.new_empty(*x.shape[:2], hidden), torch.empty_like(c)
    if x.shape[1] == 0:
        return y, c_last
    batch = x.shape[1]
    ahead = -(-_VECTORS // batch)
    library.run(
        "int8_layer",
        shape,
        library.workspace(input_sums=ahead * batch * rows, recurrent_sums=batch * rows),
        kind=library.cell_kind(cell),
        ahead=ahead,
        input=inputs,
        recurrent=recurrence,
        bias=bias,
        recurrent_bias=recurrent_bias,
        x=x,
        h_first=h,
        c_first=c if lstm else None,
        y=y,
        c_last=c_last if lstm else None,
    )
    return y, c_last


@int8_layer.register_fake
def _(x: Tensor, h: Tensor, c: Tensor, *arguments: object) -> tuple[Tensor, Tensor]:
    return x.new_empty(*x.shape[:2], h.shape[-1]), torch.empty_like(c)
