"""The recurrent highway layer as an operator of torch, with gradients."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from selfish_rnn.engine import library
from selfish_rnn.engine.dense_gradients import collect, is_collecting
from selfish_rnn.engine.library import Pointed, address, panel_floats, step_floats
from selfish_rnn.engine.operators import common
from selfish_rnn.engine.packed_weight import PackedWeight
from selfish_rnn.engine.precision import (
    bfloat16_index,
    check_precision,
    operand_floats,
    precision_of,
    run_in_workspace,
    step_columns,
    wide_columns,
)


class Saved(NamedTuple):
    """Tensors of the forward pass for the backward pass, by their names in the structures of the kernels."""

    gates: Tensor
    later_gates: Tensor
    states: Tensor
    h_panels: Tensor

    @staticmethod
    def sizes(x: Tensor, hidden: int, depth: int, keep: bool, precision: str) -> list[int]:
        """Return the number of entries of each."""
        steps, batch, _ = x.shape
        bfloat16 = precision == "bfloat16"
        step = step_columns(batch) * hidden if bfloat16 else step_floats(batch, hidden)
        panels = wide_columns(steps * batch) * hidden if bfloat16 else panel_floats(steps * batch, hidden)
        later = steps * (depth - 1) if keep else min(depth - 1, 1)
        return [
            steps * 2 * step,
            later * 2 * step,
            (steps * depth + 1 if keep else 2) * step,
            depth * panels if keep else 0,
        ]

    @classmethod
    def empty(cls, x: Tensor, hidden: int, depth: int, keep: bool, precision: str) -> Saved:
        """Memory for them; the last has the precision of operands."""
        check_precision(precision)
        *sizes, panels = cls.sizes(x, hidden, depth, keep, precision)
        return cls._make([*map(x.new_empty, sizes), x.new_empty(panels, dtype=getattr(torch, precision))])


class Gradients(NamedTuple):
    """Gradients; the recurrent matrices and biases have one for each depth."""

    dx: Tensor | None
    dh_first: Tensor | None
    input_gradients: Tensor | None
    recurrent_gradients: list[Tensor | None]
    bias_gradients: list[Tensor | None]

    @classmethod
    def of(cls, gradients: list[Tensor], needs: list[bool]) -> Gradients:
        dx, dh_first, input_gradients, *levels = common.where_needed(gradients, needs)
        depth = len(levels) // 2
        return cls(dx, dh_first, input_gradients, levels[:depth], levels[depth:])


def highway_window(
    x: Tensor,
    h: Tensor,
    mask: Tensor | None,
    inputs: PackedWeight,
    recurrence: Sequence[PackedWeight],
    biases: Sequence[Tensor],
) -> Tensor:
    """Return the states after each step of :class:`~selfish_rnn.models.cells.highway.HighwayCell`, with packed weights.

    x is steps x batch x inputs, h and ``mask`` batch x hidden; there is a recurrent matrix and a bias for each depth.
    """
    values, indices = [weight.values for weight in recurrence], [weight.index for weight in recurrence]
    keep = common.wants_gradients(x, h, inputs.values, *values, *biases)
    precision = precision_of(inputs.precision, x.shape[0] * x.shape[1])
    y: Tensor = highway(x, h, mask, inputs.values, inputs.index, values, indices, list(biases), keep, precision)[0]
    return y


def _pointers(tensors: Sequence[Tensor | None]) -> ctypes.Array[Any]:
    """Return an array of pointers."""
    return (ctypes.c_void_p * len(tensors))(*map(address, tensors))


@common.operator("highway")
def highway(
    x: Tensor,
    h: Tensor,
    mask: Tensor | None,
    input_values: Tensor,
    input_index: Tensor,
    values: list[Tensor],
    indices: list[Tensor],
    biases: list[Tensor],
    keep: bool,
    precision: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the state after each step, and the tensors of :class:`Saved` for the backward pass."""
    x, h, input_values = common.contiguous(x, h, input_values)
    mask, values, biases = common.contiguous_if(mask), common.contiguous(*values), common.contiguous(*biases)
    hidden, inputs, batch = h.shape[-1], x.shape[-1], x.shape[1]
    shape = common.window_shape(x, hidden, h, mask)
    _check_weights(input_values, input_index, values, indices, inputs, hidden)
    if len(biases) != len(values):
        raise ValueError(f"there are {len(values)} depths and {len(biases)} biases")
    for bias in biases:
        common.check_shape("bias", bias, 2 * hidden)
    y = x.new_empty(*x.shape[:2], hidden)
    saved = Saved.empty(x, hidden, len(values), keep, precision)
    if batch == 0:
        return y, *saved
    layer_fields: dict[str, Pointed | int | None] = {
        **shape,
        **saved._asdict(),
        "depth": len(values),
        "keep": keep,
        "input_index": input_index,
        "input_values": input_values,
        "recurrent_index": _pointers(indices),
        "recurrent_values": _pointers(values),
        "biases": _pointers(biases),
        "x": x,
        "h_first": h,
        "mask": mask,
        "y": y,
    }
    if precision == "bfloat16":
        run_in_workspace("bf16_highway_forward", layer_fields, _bfloat16_indexes(input_index, indices))
        return y, *saved
    work = library.workspace(
        x_panels=panel_floats(x.shape[0] * batch, inputs),
        mask_panels=0 if mask is None else step_floats(batch, hidden),
        masked=0 if mask is None else 2 * step_floats(batch, hidden),
    )
    library.run("highway_forward", layer_fields, work)
    return y, *saved


def _bfloat16_indexes(input_index: Tensor, indices: list[Tensor]) -> dict[str, Pointed]:
    """The indexes of the bfloat16 kernels, by their names in the kernels' structures."""
    return {
        "input_bf16_index": bfloat16_index(input_index),
        "recurrent_bf16_index": _pointers(list(map(bfloat16_index, indices))),
    }


def _check_weights(
    input_values: Tensor, input_index: Tensor, values: list[Tensor], indices: list[Tensor], inputs: int, hidden: int
) -> None:
    if not values or len(values) != len(indices):
        raise ValueError(f"every depth, at least one, has values and an index, not {len(values)} and {len(indices)}")
    common.check_weight(input_values, input_index, 2 * hidden, inputs)
    for level_values, index in zip(values, indices, strict=True):
        common.check_weight(level_values, index, 2 * hidden, hidden)
        common.check_gates(index, (hidden, hidden))


@highway.register_fake
def _(x: Tensor, h: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    *_, values, _, _, keep, precision = arguments
    return x.new_empty(*x.shape[:2], h.shape[-1]), *Saved.empty(x, h.shape[-1], len(values), keep, precision)


@common.operator("highway_backward")
def highway_backward(
    x: Tensor,
    mask: Tensor | None,
    input_values: Tensor,
    input_index: Tensor,
    values: list[Tensor],
    indices: list[Tensor],
    saved: list[Tensor],
    dy: Tensor,
    needs: list[bool],
    precision: str = "float32",
) -> list[Tensor]:
    """Return the :class:`Gradients`, those of the depths one after the other; empty where not needed."""
    x, dy, input_values = common.contiguous(x, dy, input_values)
    mask, values = common.contiguous_if(mask), common.contiguous(*values)
    hidden, inputs, batch, depth = dy.shape[-1], x.shape[-1], x.shape[1], len(values)
    shape, forward, tokens = (
        common.window_shape(x, hidden, mask),
        Saved._make([*common.contiguous(*saved[:-1]), saved[-1]]),
        x.shape[0] * batch,
    )
    _check_weights(input_values, input_index, values, indices, inputs, hidden)
    common.check_sizes(forward, Saved.sizes(x, hidden, depth, True, precision))
    common.check_operands(forward.h_panels, precision)
    common.check_shape("gradient", dy, *x.shape[:2], hidden)
    gradients = _gradients(x, input_values, values, dy, needs)
    if batch == 0:
        return [gradient.zero_() for gradient in gradients]
    outputs = Gradients.of(gradients, needs)
    fields: dict[str, Pointed | int | None] = {
        **shape,
        **forward._asdict(),
        **outputs._asdict(),
        "depth": depth,
        "input_index": input_index,
        "input_values": input_values,
        "recurrent_index": _pointers(indices),
        "recurrent_values": _pointers(values),
        "recurrent_gradients": _pointers(outputs.recurrent_gradients),
        "bias_gradients": _pointers(outputs.bias_gradients),
        "x": x,
        "mask": mask,
        "dy": dy,
    }
    if precision == "bfloat16":
        floats = {"d_panels": depth * operand_floats(tokens, 2 * hidden)}
        indexes = _bfloat16_indexes(input_index, indices)
        work = run_in_workspace("bf16_highway_backward", fields, indexes, floats=floats)
    else:
        step = step_floats(batch, hidden)
        work = library.workspace(
            d_panels=depth * panel_floats(tokens, 2 * hidden),
            values_t=max(sum(map(len, values)), len(input_values)),
            x_panels=panel_floats(tokens, inputs),
            d_gates=4 * step,
            d_state=step,
            d_through=0 if mask is None else step,
            mask_panels=0 if mask is None else step,
        )
        library.run("highway_backward", fields, work)
    panel_rows = common.PANEL_ROWS[precision]
    d_levels, seen = work["d_panels"].chunk(depth), forward.h_panels.chunk(depth)
    if is_collecting(input_index):
        collect(input_index, x, panel_rows(d_levels[0], tokens, 2 * hidden))
    for index, h_panels, d_level in zip(indices, seen, d_levels, strict=True):
        if is_collecting(index):
            collect(index, panel_rows(h_panels, tokens, hidden), panel_rows(d_level, tokens, 2 * hidden))
    return gradients


def _gradients(x: Tensor, input_values: Tensor, values: list[Tensor], dy: Tensor, needs: list[bool]) -> list[Tensor]:
    hidden = dy.shape[-1]
    levels = [*(tensor.shape for tensor in values), *[(2 * hidden,)] * len(values)]
    return common.empty_where_needed(x, [x.shape, (x.shape[1], hidden), input_values.shape, *levels], needs)


@highway_backward.register_fake
def _(x: Tensor, *arguments: Any) -> list[Tensor]:
    _, input_values, _, values, _, _, dy, needs = arguments[:8]
    return _gradients(x, input_values, values, dy, needs)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, _, mask, input_values, input_index, values, indices, _, ctx.keep, ctx.precision = inputs
    ctx.save_for_backward(x, mask, input_values, input_index, *output[1:], *values, *indices)
    ctx.depth = len(values)
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _autograd(ctx: Any, dy: Tensor | None, *unused: Tensor | None) -> tuple[Any, ...]:
    nothing = [None] * ctx.depth
    if dy is None:
        return None, None, None, None, None, nothing, nothing, nothing, None, None
    common.check_kept(ctx.keep)
    x, mask, input_values, input_index, *tensors = ctx.saved_tensors
    levels = len(Saved._fields)
    saved, values, indices = tensors[:levels], tensors[levels : levels + ctx.depth], tensors[levels + ctx.depth :]
    needed = ctx.needs_input_grad
    needs = [needed[0], needed[1], needed[3], *needed[5], *needed[7]]
    gradients = highway_backward(x, mask, input_values, input_index, values, indices, saved, dy, needs, ctx.precision)
    outputs = Gradients.of(gradients, needs)
    matrices, biases = outputs.recurrent_gradients, outputs.bias_gradients
    return outputs.dx, outputs.dh_first, None, outputs.input_gradients, None, matrices, nothing, biases, None, None


highway.register_autograd(_autograd, setup_context=_save)
highway_backward.register_autograd(common.refuse_second_derivative)
