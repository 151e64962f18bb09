"""The ordered-neurons LSTM as an operator of torch, with gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from selfish_rnn.engine import library
from selfish_rnn.engine.dense_gradients import collect, is_collecting
from selfish_rnn.engine.library import panel_floats
from selfish_rnn.engine.operators.common import check_shape, check_weight
from selfish_rnn.engine.operators.highway import check_gates, check_window
from selfish_rnn.engine.operators.products import contiguous, contiguous_if, operator, where_needed
from selfish_rnn.engine.operators.recurrent import panel_rows
from selfish_rnn.engine.packed_weight import PackedWeight


def ordered_window(
    x: Tensor,
    h: Tensor,
    c: Tensor,
    inputs: PackedWeight,
    recurrence: PackedWeight,
    recurrent_values: Tensor,
    bias: Tensor,
    chunk: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What :class:`~selfish_rnn.models.cells.ordered_neurons.OrderedNeuronsCell` gives, with packed weights.

    x is steps x batch x inputs, h and c batch x hidden. ``recurrent_values`` stand for those of ``recurrence``, of
    which some may be dropped.
    """
    hidden = h.shape[-1]
    check_gates([recurrence], (*(hidden // chunk,) * 2, *(hidden,) * 4))
    tensors = (x, h, c, inputs.values, recurrent_values, bias)
    keep = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    y, c_last, input_distance, forget_distance, *_ = ordered_neurons(
        x, h, c, inputs.values, inputs.index, recurrent_values, recurrence.index, bias, chunk, keep
    )
    return y, c_last, input_distance, forget_distance


def _lines(hidden: int, chunk: int) -> int:
    return 4 * hidden + 2 * (hidden // chunk)


def _results(x: Tensor, h: Tensor, chunk: int, keep: bool) -> tuple[Tensor, ...]:
    """Memory for y, the last c and both distances; then gates, master gates, states, memories, states as panels."""
    steps, batch, _ = x.shape
    hidden, step = h.shape[-1], panel_floats(batch, 1)
    return (
        x.new_empty(steps, batch, hidden),
        x.new_empty(batch, hidden),
        x.new_empty(steps, batch),
        x.new_empty(steps, batch),
        x.new_empty(steps * step * _lines(hidden, chunk)),
        x.new_empty(steps * step * 2 * (hidden // chunk)),
        x.new_empty((steps + 1) * step * hidden),
        x.new_empty((steps + 1) * step * hidden),
        x.new_empty(panel_floats(steps * batch, hidden) if keep else 0),
    )


@operator("ordered_neurons")
def ordered_neurons(
    x: Tensor,
    h: Tensor,
    c: Tensor,
    input_values: Tensor,
    input_index: Tensor,
    recurrent_values: Tensor,
    recurrent_index: Tensor,
    bias: Tensor,
    chunk: int,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """h at every step, the last c, the distances of both master gates; the rest is for the way back (``keep``)."""
    x, h, c, bias, input_values, recurrent_values = contiguous(x, h, c, bias, input_values, recurrent_values)
    steps, batch, inputs = x.shape
    hidden = h.shape[-1]
    lines = _lines(hidden, chunk)
    check_window(x, hidden, h, c)
    check_weight(input_values, input_index, lines, inputs)
    check_weight(recurrent_values, recurrent_index, lines, hidden)
    check_shape("bias", bias, lines)
    results = _results(x, h, chunk, keep)
    y, c_last, input_distance, forget_distance, gates, masters, states, memories, h_panels = results
    (x_panels,) = library.workspace(panel_floats(steps * batch, inputs))
    library.run(
        "selfish_ordered_forward",
        library.OrderedForward,
        steps=steps,
        batch=batch,
        hidden=hidden,
        chunk=chunk,
        input_index=input_index,
        input_values=input_values,
        recurrent_index=recurrent_index,
        recurrent_values=recurrent_values,
        bias=bias,
        x=x,
        h_first=h,
        c_first=c,
        y=y,
        c_last=c_last,
        input_distance=input_distance,
        forget_distance=forget_distance,
        gates=gates,
        masters=masters,
        states=states,
        memories=memories,
        h_panels=h_panels if keep else None,
        x_panels=x_panels,
    )
    return results  # type: ignore[return-value]


@ordered_neurons.register_fake
def _(x: Tensor, h: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    *_, chunk, keep = rest
    return _results(x, h, chunk, keep)


@operator("ordered_neurons_backward")
def ordered_neurons_backward(
    x: Tensor,
    input_values: Tensor,
    input_index: Tensor,
    recurrent_values: Tensor,
    recurrent_index: Tensor,
    kept: list[Tensor],
    dy: Tensor,
    dc_last: Tensor | None,
    chunk: int,
    needs: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of x, h, c, both values and the bias; empty where not needed."""
    x, dy, input_values, recurrent_values = contiguous(x, dy, input_values, recurrent_values)
    dc_last = contiguous_if(dc_last)
    steps, batch, inputs = x.shape
    hidden = dy.shape[-1]
    lines = _lines(hidden, chunk)
    check_window(x, hidden, dc_last)
    check_weight(input_values, input_index, lines, inputs)
    check_weight(recurrent_values, recurrent_index, lines, hidden)
    found = _gradients(x, input_values, recurrent_values, dy, chunk, needs)
    dx, dh, dc, d_input, d_recurrent, dbias = where_needed(found, needs)
    step = panel_floats(batch, 1)
    x_panels, d_panels, *work = library.workspace(
        *(panel_floats(steps * batch, count) for count in (inputs, lines)),
        *(step * count for count in (lines, 2 * hidden, hidden, hidden)),
    )
    library.run(
        "selfish_ordered_backward",
        library.OrderedBackward,
        steps=steps,
        batch=batch,
        hidden=hidden,
        chunk=chunk,
        input_index=input_index,
        input_values=input_values,
        recurrent_index=recurrent_index,
        recurrent_values=recurrent_values,
        x=x,
        gates=kept[0],
        masters=kept[1],
        memories=kept[2],
        h_panels=kept[3],
        dy=dy,
        dc_last=dc_last,
        dx=dx,
        dh_first=dh,
        dc_first=dc,
        input_gradients=d_input,
        recurrent_gradients=d_recurrent,
        bias_gradient=dbias,
        values_t=library.transposed_scratch(input_values, recurrent_values),
        x_panels=x_panels,
        d_panels=d_panels,
        d_gates=work[0],
        d_masters=work[1],
        d_state=work[2],
        d_memory=work[3],
    )
    if is_collecting(input_index):
        collect(input_index, x, panel_rows(d_panels, steps * batch, lines))
    if is_collecting(recurrent_index):
        before = panel_rows(kept[3], steps * batch, hidden)
        collect(recurrent_index, before, panel_rows(d_panels, steps * batch, lines))
    return found  # type: ignore[return-value]


def _gradients(
    x: Tensor, input_values: Tensor, recurrent_values: Tensor, dy: Tensor, chunk: int, needs: list[bool]
) -> tuple[Tensor, ...]:
    batch, hidden = dy.shape[1:]
    state = (batch, hidden)
    shapes = [x.shape, state, state, input_values.shape, recurrent_values.shape, (_lines(hidden, chunk),)]
    return tuple(x.new_empty(shape if need else (0,)) for shape, need in zip(shapes, needs, strict=True))


@ordered_neurons_backward.register_fake
def _(x: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    input_values, _, recurrent_values, *_, dy, _, chunk, needs = rest
    return _gradients(x, input_values, recurrent_values, dy, chunk, needs)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, _, _, input_values, input_index, recurrent_values, recurrent_index, _, ctx.chunk, ctx.keep = inputs
    gates, masters, _, memories, h_panels = output[4:]
    weights = input_values, input_index, recurrent_values, recurrent_index
    ctx.save_for_backward(x, *weights, gates, masters, memories, h_panels)
    ctx.mark_non_differentiable(*output[2:])
    ctx.hidden = output[0].shape[-1]
    ctx.set_materialize_grads(False)


def _autograd(ctx: Any, dy: Tensor | None, dc_last: Tensor | None, *unused: Tensor | None) -> tuple[Tensor | None, ...]:
    if not ctx.keep:
        raise RuntimeError("this window was run without keeping what its gradients need")
    x, *weights_and_kept = ctx.saved_tensors
    weights, kept = weights_and_kept[:4], weights_and_kept[4:]
    if dy is None:
        dy = x.new_zeros(*x.shape[:2], ctx.hidden)
    needed = ctx.needs_input_grad
    state = needed[1] or needed[2]
    needs = [needed[0], state, state, needed[3], needed[5], needed[7]]
    found = ordered_neurons_backward(x, *weights, kept, dy, dc_last, ctx.chunk, needs)
    dx, dh, dc, d_input, d_recurrent, dbias = where_needed(found, needs)
    return dx, dh, dc, d_input, None, d_recurrent, None, dbias, None, None


ordered_neurons.register_autograd(_autograd, setup_context=_save)
