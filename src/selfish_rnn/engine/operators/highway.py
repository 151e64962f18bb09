"""The recurrent highway layer as an operator of torch, with gradients."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from selfish_rnn.engine import library
from selfish_rnn.engine.dense_gradients import collect, is_collecting
from selfish_rnn.engine.library import address, panel_floats
from selfish_rnn.engine.operators.common import check_shape, check_weight
from selfish_rnn.engine.operators.products import contiguous, contiguous_if, operator, where_needed
from selfish_rnn.engine.operators.recurrent import panel_rows
from selfish_rnn.engine.packed_weight import PackedWeight


def highway_window(
    x: Tensor,
    h: Tensor,
    mask: Tensor | None,
    inputs: PackedWeight,
    recurrence: Sequence[PackedWeight],
    biases: Sequence[Tensor],
) -> Tensor:
    """The states after each step of :class:`~selfish_rnn.models.cells.highway.HighwayCell` with packed weights.

    x is steps x batch x inputs, h and ``mask`` batch x hidden; there is a recurrent matrix and a bias for each depth.
    """
    check_gates(recurrence, (h.shape[-1],) * 2)
    values = [weight.values for weight in recurrence]
    tensors = (x, h, inputs.values, *values, *biases)
    keep = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    indices = [weight.index for weight in recurrence]
    y: Tensor = highway(x, h, mask, inputs.values, inputs.index, values, indices, list(biases), keep)[0]
    return y


def check_gates(weights: Sequence[PackedWeight], gate_rows: tuple[int, ...]) -> None:
    """Each thread of a kernel takes the same units of all gates."""
    for weight in weights:
        if weight.gate_rows != gate_rows:
            raise ValueError(f"a recurrent matrix with gates of {gate_rows} rows is needed, not {weight.gate_rows}")


def check_window(x: Tensor, hidden: int, *states: Tensor | None) -> None:
    """Whether there is anything to do, and the states fit it."""
    steps, batch, _ = x.shape
    if steps == 0 or batch == 0:
        raise ValueError(f"a window needs at least one step and one sequence, this one is {steps} x {batch}")
    for state in states:
        check_shape("state", state, batch, hidden)


def _addresses(tensors: Sequence[Tensor | None]) -> Any:
    """An array of pointers."""
    return (ctypes.c_void_p * len(tensors))(*map(address, tensors))


def _kept(x: Tensor, hidden: int, depth: int, keep: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Memory for the gates of first and of later micro-steps, states, and what each matrix saw, as panels."""
    steps, batch, _ = x.shape
    step = panel_floats(batch, hidden)
    later = steps * (depth - 1) if keep else min(depth - 1, 1)
    return (
        x.new_empty(steps * 2 * step),
        x.new_empty(later * 2 * step),
        x.new_empty((steps * depth + 1 if keep else 2) * step),
        x.new_empty(depth * panel_floats(steps * batch, hidden) if keep else 0),
    )


@operator("highway")
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
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The state after each step; the rest is for the way back (``keep``)."""
    x, h, input_values = contiguous(x, h, input_values)
    mask, values, biases = contiguous_if(mask), contiguous(*values), contiguous(*biases)
    steps, batch, inputs = x.shape
    hidden, depth = h.shape[-1], len(values)
    check_window(x, hidden, h, mask)
    check_weight(input_values, input_index, 2 * hidden, inputs)
    for level_values, index, bias in zip(values, indices, biases, strict=True):
        check_weight(level_values, index, 2 * hidden, hidden)
        check_shape("bias", bias, 2 * hidden)
    y = x.new_empty(steps, batch, hidden)
    kept = _kept(x, hidden, depth, keep)
    step = panel_floats(batch, hidden) if mask is not None else 0
    work = library.workspace(panel_floats(steps * batch, inputs), step, 2 * step)
    arrays = [_addresses(tensors) for tensors in (indices, values, biases)]
    library.run(
        "selfish_highway_forward",
        library.HighwayForward,
        steps=steps,
        batch=batch,
        hidden=hidden,
        depth=depth,
        keep=keep,
        input_index=input_index,
        input_values=input_values,
        recurrent_index=ctypes.addressof(arrays[0]),
        recurrent_values=ctypes.addressof(arrays[1]),
        biases=ctypes.addressof(arrays[2]),
        x=x,
        h_first=h,
        mask=mask,
        y=y,
        gates=kept[0],
        later_gates=kept[1],
        states=kept[2],
        h_panels=kept[3],
        x_panels=work[0],
        mask_panels=work[1],
        masked=work[2],
    )
    return y, *kept


@highway.register_fake
def _(x: Tensor, h: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    *_, values, _, _, keep = rest
    return x.new_empty(*x.shape[:2], h.shape[-1]), *_kept(x, h.shape[-1], len(values), keep)


@operator("highway_backward")
def highway_backward(
    x: Tensor,
    mask: Tensor | None,
    input_values: Tensor,
    input_index: Tensor,
    values: list[Tensor],
    indices: list[Tensor],
    kept: list[Tensor],
    dy: Tensor,
    needs: list[bool],
) -> list[Tensor]:
    """The gradients of x, h, the values of the input matrix, and for each depth of values and bias.

    Empty where not needed.
    """
    x, dy, input_values = contiguous(x, dy, input_values)
    mask, values = contiguous_if(mask), contiguous(*values)
    steps, batch, inputs = x.shape
    hidden, depth = dy.shape[-1], len(values)
    check_window(x, hidden, mask)
    check_weight(input_values, input_index, 2 * hidden, inputs)
    for level_values, index in zip(values, indices, strict=True):
        check_weight(level_values, index, 2 * hidden, hidden)
    found = _highway_gradients(x, input_values, values, dy, needs)
    given = where_needed(found, needs)
    step = panel_floats(batch, hidden)
    masked = step if mask is not None else 0
    d_panels, scratch, *work = library.workspace(
        depth * panel_floats(steps * batch, 2 * hidden),
        max(sum(map(len, values)), len(input_values)),
        panel_floats(steps * batch, inputs),
        4 * step,
        step,
        masked,
        masked,
    )
    arrays = [_addresses(tensors) for tensors in (indices, values, given[3 : 3 + depth], given[3 + depth :])]
    library.run(
        "selfish_highway_backward",
        library.HighwayBackward,
        steps=steps,
        batch=batch,
        hidden=hidden,
        depth=depth,
        input_index=input_index,
        input_values=input_values,
        recurrent_index=ctypes.addressof(arrays[0]),
        recurrent_values=ctypes.addressof(arrays[1]),
        x=x,
        mask=mask,
        gates=kept[0],
        later_gates=kept[1],
        states=kept[2],
        h_panels=kept[3],
        dy=dy,
        dx=given[0],
        dh_first=given[1],
        input_gradients=given[2],
        recurrent_gradients=ctypes.addressof(arrays[2]),
        bias_gradients=ctypes.addressof(arrays[3]),
        values_t=scratch,
        x_panels=work[0],
        d_panels=d_panels,
        d_gates=work[1],
        d_state=work[2],
        d_through=work[3],
        mask_panels=work[4],
    )
    d_levels, seen = d_panels.chunk(depth), kept[3].chunk(depth)
    if is_collecting(input_index):
        collect(input_index, x, panel_rows(d_levels[0], steps * batch, 2 * hidden))
    for index, h_panels, d_level in zip(indices, seen, d_levels, strict=True):
        if is_collecting(index):
            before = panel_rows(h_panels, steps * batch, hidden)
            collect(index, before, panel_rows(d_level, steps * batch, 2 * hidden))
    return found


def _highway_gradients(
    x: Tensor, input_values: Tensor, values: list[Tensor], dy: Tensor, needs: list[bool]
) -> list[Tensor]:
    hidden = dy.shape[-1]
    shapes = [x.shape, (x.shape[1], hidden), input_values.shape]
    shapes += [*(tensor.shape for tensor in values), *[(2 * hidden,)] * len(values)]
    return [x.new_empty(shape if need else (0,)) for shape, need in zip(shapes, needs, strict=True)]


@highway_backward.register_fake
def _(x: Tensor, *rest: Any) -> list[Tensor]:
    _, input_values, _, values, *_, dy, needs = rest
    return _highway_gradients(x, input_values, values, dy, needs)


def _save_highway(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, _, mask, input_values, input_index, values, indices, _, ctx.keep = inputs
    ctx.save_for_backward(x, mask, input_values, input_index, *output[1:], *values, *indices)
    ctx.depth = len(values)
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _highway_autograd(ctx: Any, dy: Tensor | None, *unused: Tensor | None) -> tuple[Any, ...]:
    depth = ctx.depth
    if dy is None:
        return None, None, None, None, None, [None] * depth, [None] * depth, [None] * depth, None
    if not ctx.keep:
        raise RuntimeError("this window was run without keeping what its gradients need")
    x, mask, input_values, input_index, *rest = ctx.saved_tensors
    kept, values, indices = rest[:4], rest[4 : 4 + depth], rest[4 + depth :]
    needed = ctx.needs_input_grad
    needs = [needed[0], needed[1], needed[3], *needed[5], *needed[7]]
    found = highway_backward(x, mask, input_values, input_index, values, indices, kept, dy, needs)
    dx, dh, d_input, *rest = where_needed(found, needs)
    return dx, dh, None, d_input, None, rest[:depth], [None] * depth, rest[depth:], None


highway.register_autograd(_highway_autograd, setup_context=_save_highway)
