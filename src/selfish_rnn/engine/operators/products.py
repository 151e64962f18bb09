"""Products with a packed matrix as operators of torch, with gradients.

Each takes the values and the index of packed weights as tensors, so that autograd, ``torch.compile`` and
``torch.library.opcheck`` see ordinary operators.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from selfish_rnn.engine import library
from selfish_rnn.engine.dense_gradients import collect, is_collecting
from selfish_rnn.engine.index import contents
from selfish_rnn.engine.library import address, panel_floats
from selfish_rnn.engine.operators import common
from selfish_rnn.engine.precision import bfloat16_index, call_in_workspace

# Linear


@common.operator("linear")
def linear(
    x: Tensor, values: Tensor, index: Tensor, bias: Tensor | None, rows: int, precision: str = "float32"
) -> Tensor:
    """Return ``x W^T + bias`` for x of … x columns."""
    x, values = common.contiguous(x, values)
    bias = common.contiguous_if(bias)
    columns = x.shape[-1]
    common.check_weight(values, index, rows, columns)
    common.check_shape("bias", bias, rows)
    n = x.numel() // columns
    y = x.new_empty(*x.shape[:-1], rows)
    if n and precision == "bfloat16":
        indexes = address(index), address(bfloat16_index(index))
        call_in_workspace("selfish_bf16_linear", *indexes, *map(address, (values, bias, x)), n, address(y))
    elif n:
        work = library.workspace(x_panels=panel_floats(n, columns) if n > 1 else 0)["x_panels"]
        library.kernels().selfish_linear(*map(address, (index, values, bias, x)), n, address(y), address(work))
    return y


@linear.register_fake
def _(x: Tensor, values: Tensor, index: Tensor, bias: Tensor | None, rows: int, precision: str = "float32") -> Tensor:
    return x.new_empty(*x.shape[:-1], rows)


@common.operator("linear_backward")
def linear_backward(
    x: Tensor, gradient: Tensor, values: Tensor, index: Tensor, needs: list[bool], precision: str = "float32"
) -> list[Tensor]:
    """Return the gradients of x, values and bias; empty where not needed."""
    x, gradient, values = common.contiguous(x, gradient, values)
    columns, rows = x.shape[-1], gradient.shape[-1]
    common.check_weight(values, index, rows, columns)
    common.check_shape("gradient", gradient, *x.shape[:-1], rows)
    n = x.numel() // columns
    gradients = _linear_gradients(x, gradient, values, needs)
    if n == 0:
        return [tensor.zero_() for tensor in gradients]
    if precision == "bfloat16":
        indexes = address(index), address(bfloat16_index(index))
        inputs, outputs = map(address, (values, x, gradient)), map(address, common.where_needed(gradients, needs))
        call_in_workspace("selfish_bf16_linear_backward", *indexes, *inputs, n, *outputs)
        return gradients
    work = library.workspace(panels=panel_floats(n, rows + columns))["panels"]
    scratch = library.transposed_scratch(values) if needs[0] else None
    results = *common.where_needed(gradients, needs), scratch, work
    library.kernels().selfish_linear_backward(*map(address, (index, values, x, gradient)), n, *map(address, results))
    return gradients


def _linear_gradients(x: Tensor, gradient: Tensor, values: Tensor, needs: list[bool]) -> list[Tensor]:
    return common.empty_where_needed(x, [x.shape, values.shape, gradient.shape[-1:]], needs)


@linear_backward.register_fake
def _(
    x: Tensor, gradient: Tensor, values: Tensor, index: Tensor, needs: list[bool], precision: str = "float32"
) -> list[Tensor]:
    return _linear_gradients(x, gradient, values, needs)


def _save_linear(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, values, index, bias, _, ctx.precision = inputs
    ctx.save_for_backward(x, values, index)
    ctx.has_bias = bias is not None


def _linear_autograd(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    x, values, index = ctx.saved_tensors
    needs = [ctx.needs_input_grad[0], ctx.needs_input_grad[1], ctx.has_bias and ctx.needs_input_grad[3]]
    collect(index, x, gradient)
    gradients = linear_backward(x, gradient, values, index, needs, ctx.precision)
    dx, dvalues, dbias = common.where_needed(gradients, needs)
    return dx, dvalues, None, dbias, None, None


linear.register_autograd(_linear_autograd, setup_context=_save_linear)
linear_backward.register_autograd(common.refuse_second_derivative)


# Lookup


@common.operator("lookup")
def lookup(tokens: Tensor, values: Tensor, index: Tensor, columns: int) -> Tensor:
    """Return the rows of W at ``tokens`` (int64): … x columns."""
    (values,) = common.contiguous(values)
    rows = contents(index).rows
    common.check_weight(values, index, rows, columns)
    tokens = common.row_numbers("token", tokens, rows)
    y = values.new_empty(*tokens.shape, columns)
    if tokens.numel():
        library.kernels().selfish_lookup(address(index), address(values), address(tokens), tokens.numel(), address(y))
    return y


@lookup.register_fake
def _(tokens: Tensor, values: Tensor, index: Tensor, columns: int) -> Tensor:
    return values.new_empty(*tokens.shape, columns)


@common.operator("lookup_backward")
def lookup_backward(tokens: Tensor, gradient: Tensor, values: Tensor, index: Tensor) -> Tensor:
    """Return the gradient of values."""
    gradient, values = common.contiguous(gradient, values)
    rows, columns = contents(index).rows, gradient.shape[-1]
    common.check_weight(values, index, rows, columns)
    tokens = common.row_numbers("token", tokens, rows)
    common.check_shape("gradient", gradient, *tokens.shape, columns)
    gradients = torch.empty_like(values)
    library.kernels().selfish_lookup_backward(
        address(index), address(tokens), address(gradient), tokens.numel(), address(gradients)
    )
    return gradients


@lookup_backward.register_fake
def _(tokens: Tensor, gradient: Tensor, values: Tensor, index: Tensor) -> Tensor:
    return torch.empty_like(values)


def _save_lookup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    tokens, values, index, _ = inputs
    ctx.save_for_backward(tokens, values, index)


def _lookup_autograd(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    tokens, values, index = ctx.saved_tensors
    collect(index, tokens, gradient)
    return None, lookup_backward(tokens, gradient, values, index), None, None


lookup.register_autograd(_lookup_autograd, setup_context=_save_lookup)
lookup_backward.register_autograd(common.refuse_second_derivative)


# Loss


@common.operator("cross_entropy")
def cross_entropy(
    x: Tensor,
    values: Tensor,
    index: Tensor,
    bias: Tensor,
    targets: Tensor,
    gradients: bool,
    precision: str = "float32",
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the mean cross-entropy of ``softmax(x W^T + bias)`` with ``targets``, and gradients of x, values and bias.

    Without ``gradients`` these are empty.
    """
    x, values, bias = common.contiguous(x, values, bias)
    columns, rows, n = x.shape[-1], len(bias), targets.numel()
    common.check_weight(values, index, rows, columns)
    common.check_shape("bias", bias, rows)
    targets = common.row_numbers("target", targets, rows)
    if x.numel() != n * columns:
        raise ValueError(f"there are {x.numel() // columns} inputs and {n} targets")
    gradient_memory = _loss_gradients(x, values, bias, gradients)
    if n == 0:
        return x.new_tensor(torch.nan), *(tensor.zero_() for tensor in gradient_memory)  # type: ignore[return-value]
    outputs = common.where_needed(gradient_memory, [gradients] * 3)
    if precision == "bfloat16":
        result = ctypes.c_double()
        indexes = address(index), address(bfloat16_index(index))
        inputs = map(address, (values, bias, x, targets))
        arguments = *indexes, *inputs, n, *map(address, outputs), ctypes.addressof(result)
        call_in_workspace("selfish_bf16_cross_entropy", *arguments)
        return x.new_tensor(result.value), *gradient_memory  # type: ignore[return-value]
    kernels = library.kernels()
    work = library.workspace(scores=kernels.selfish_cross_entropy_floats(n, rows, columns))["scores"]
    scratch = library.transposed_scratch(values) if gradients else None
    loss = kernels.selfish_cross_entropy(
        *map(address, (index, values, bias, x, targets)), n, *map(address, (*outputs, scratch, work))
    )
    return x.new_tensor(loss), *gradient_memory  # type: ignore[return-value]


def _loss_gradients(x: Tensor, values: Tensor, bias: Tensor, gradients: bool) -> list[Tensor]:
    return common.empty_where_needed(x, [x.shape, values.shape, bias.shape], [gradients] * 3)


@cross_entropy.register_fake
def _(
    x: Tensor,
    values: Tensor,
    index: Tensor,
    bias: Tensor,
    targets: Tensor,
    gradients: bool,
    precision: str = "float32",
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return x.new_empty(()), *_loss_gradients(x, values, bias, gradients)  # type: ignore[return-value]


def _save_loss(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, values, index, bias, targets, ctx.has_gradients, _ = inputs
    ctx.save_for_backward(*output[1:], x, values, index, bias, targets)
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _loss_autograd(ctx: Any, gradient: Tensor | None, *unused: Tensor | None) -> tuple[Tensor | None, ...]:
    if gradient is None or not ctx.has_gradients:
        return (None,) * 7
    *gradients, x, values, index, bias, targets = ctx.saved_tensors
    if is_collecting(index):
        collect(index, x, _score_gradients(x, values, index, bias, targets) * gradient)
    dx, dvalues, dbias = (common.once_differentiable(tensor, x, values, bias) * gradient for tensor in gradients)
    return dx, dvalues, None, dbias, None, None, None


def _score_gradients(x: Tensor, values: Tensor, index: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
    """Return the gradient of the mean cross-entropy in all scores, which the kernel makes a few columns at a time."""
    scores: Tensor = linear(x, values, index, bias, len(bias)).view(-1, len(bias)).softmax(-1)
    words = targets.flatten().unsqueeze(-1)
    return scores.scatter_add_(-1, words, scores.new_full(words.shape, -1.0)) / len(words)


cross_entropy.register_autograd(_loss_autograd, setup_context=_save_loss)
