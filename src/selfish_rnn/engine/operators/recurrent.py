"""Recurrent layers as operators of torch, with gradients; see :mod:`selfish_rnn.engine.operators.products`."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from selfish_rnn.engine import library
from selfish_rnn.engine.dense_gradients import collect, is_collecting
from selfish_rnn.engine.library import CELLS, panel_floats
from selfish_rnn.engine.operators.common import check_shape, check_weight
from selfish_rnn.engine.operators.products import contiguous, contiguous_if, operator, where_needed

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


def _kept(x: Tensor, hidden: int, cell: str, keep: bool) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Memory for gates, states, memories, what else a cell needs, and states as panels."""
    steps, batch, _ = x.shape
    step = panel_floats(batch, 1)
    return (
        x.new_empty(steps * step * hidden * GATES[cell]),
        x.new_empty((steps + 1) * step * hidden),
        x.new_empty((steps + 1) * step * hidden if cell == "lstm" else 0),
        x.new_empty(steps * step * hidden if cell == "gru" else 0),
        x.new_empty(panel_floats(steps * batch, hidden) if keep else 0),
    )


@operator("recurrent_layer")
def recurrent_layer(
    x: Tensor,
    h: Tensor,
    c: Tensor,
    input_values: Tensor,
    input_index: Tensor,
    recurrent_values: Tensor,
    recurrent_index: Tensor,
    bias: Tensor | None,
    recurrent_bias: Tensor | None,
    cell: str,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """A layer over a window: x is steps x batch x inputs, h and c batch x hidden (c empty but for an LSTM).

    Returns the output at every step and the last h and c; the rest is for the way back (``keep``).
    """
    x, h, c, input_values, recurrent_values = contiguous(x, h, c, input_values, recurrent_values)
    bias, recurrent_bias = contiguous_if(bias), contiguous_if(recurrent_bias)
    steps, batch, inputs = x.shape
    hidden = h.shape[-1]
    lines = GATES[cell] * hidden
    if steps == 0 or batch == 0:
        raise ValueError(f"a window needs at least one step and one sequence, this one is {steps} x {batch}")
    check_weight(input_values, input_index, lines, inputs)
    check_weight(recurrent_values, recurrent_index, lines, hidden)
    check_shape("state", h, batch, hidden)
    check_shape("memory", c if cell == "lstm" else None, batch, hidden)
    check_shape("bias", bias, lines)
    check_shape("bias", recurrent_bias, lines)
    if cell != "gru" and recurrent_bias is not None:
        bias, recurrent_bias = (recurrent_bias if bias is None else bias + recurrent_bias), None
    y, h_last, c_last = x.new_empty(steps, batch, hidden), torch.empty_like(h), torch.empty_like(c)
    kept = _kept(x, hidden, cell, keep)
    x_panels, apart = library.workspace(
        panel_floats(steps * batch, inputs), panel_floats(batch, hidden) * GATES[cell] if cell == "gru" else 0
    )
    library.run(
        "selfish_layer_forward",
        library.LayerForward,
        cell=CELLS[cell],
        steps=steps,
        batch=batch,
        hidden=hidden,
        input_index=input_index,
        input_values=input_values,
        recurrent_index=recurrent_index,
        recurrent_values=recurrent_values,
        bias=bias,
        recurrent_bias=recurrent_bias,
        x=x,
        h_first=h,
        c_first=c,
        y=y,
        h_last=h_last,
        c_last=c_last,
        gates=kept[0],
        states=kept[1],
        memories=kept[2],
        extra=kept[3],
        h_panels=kept[4] if keep else None,
        x_panels=x_panels,
        apart=apart,
    )
    return y, h_last, c_last, *kept


@recurrent_layer.register_fake
def _(x: Tensor, h: Tensor, c: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    *_, cell, keep = rest
    y = x.new_empty(*x.shape[:2], h.shape[-1])
    return y, torch.empty_like(h), torch.empty_like(c), *_kept(x, h.shape[-1], cell, keep)


@operator("recurrent_layer_backward")
def recurrent_layer_backward(
    x: Tensor,
    input_values: Tensor,
    input_index: Tensor,
    recurrent_values: Tensor,
    recurrent_index: Tensor,
    kept: list[Tensor],
    dy: Tensor,
    dh_last: Tensor | None,
    dc_last: Tensor | None,
    cell: str,
    hidden: int,
    needs: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of x, h, c, both values, and both biases; empty where not needed."""
    x, dy, input_values, recurrent_values = contiguous(x, dy, input_values, recurrent_values)
    dh_last, dc_last = contiguous_if(dh_last), contiguous_if(dc_last)
    steps, batch, inputs = x.shape
    check_weight(input_values, input_index, GATES[cell] * hidden, inputs)
    check_weight(recurrent_values, recurrent_index, GATES[cell] * hidden, hidden)
    found = _layer_gradients(x, input_values, recurrent_values, cell, hidden, needs)
    wide = functools.partial(panel_floats, steps * batch)
    step = panel_floats(batch, hidden)
    gates = GATES[cell]
    apart = 1 if cell == "gru" else 0
    x_panels, d_input_panels, d_recurrent_panels, *work = library.workspace(
        wide(inputs),
        wide(gates * hidden),
        apart * wide(gates * hidden),
        2 * gates * step,
        apart * 2 * gates * step,
        step,
        step,
    )
    dx, dh, dc, d_input, d_recurrent, dbias, d_recurrent_bias = where_needed(found, needs)
    library.run(
        "selfish_layer_backward",
        library.LayerBackward,
        cell=CELLS[cell],
        steps=steps,
        batch=batch,
        hidden=hidden,
        input_index=input_index,
        input_values=input_values,
        recurrent_index=recurrent_index,
        recurrent_values=recurrent_values,
        x=x,
        gates=kept[0],
        states=kept[1],
        memories=kept[2],
        extra=kept[3],
        h_panels=kept[4],
        dy=dy,
        dh_last=dh_last,
        dc_last=dc_last,
        dx=dx,
        dh_first=dh,
        dc_first=dc,
        input_gradients=d_input,
        recurrent_gradients=d_recurrent,
        bias_gradient=dbias,
        recurrent_bias_gradient=d_recurrent_bias,
        values_t=library.transposed_scratch(input_values, recurrent_values),
        x_panels=x_panels,
        d_input_panels=d_input_panels,
        d_recurrent_panels=d_recurrent_panels,
        d_input=work[0],
        d_recurrent=work[1],
        d_state=work[2],
        d_memory=work[3],
    )
    if is_collecting(input_index):
        collect(input_index, x, panel_rows(d_input_panels, steps * batch, gates * hidden))
    if is_collecting(recurrent_index):
        d_panels = d_recurrent_panels if apart else d_input_panels
        before = panel_rows(kept[4], steps * batch, hidden)
        collect(recurrent_index, before, panel_rows(d_panels, steps * batch, gates * hidden))
    return found  # type: ignore[return-value]


def panel_rows(panels: Tensor, columns: int, features: int) -> Tensor:
    """Panels as columns (tokens) x features, in memory of their own."""
    width = panel_floats(columns, 1) // -(-columns // library.WIDEST)
    return panels.view(-1, features, width).transpose(1, 2).reshape(-1, features)[:columns].clone()


def _layer_gradients(
    x: Tensor, input_values: Tensor, recurrent_values: Tensor, cell: str, hidden: int, needs: list[bool]
) -> tuple[Tensor, ...]:
    batch, lines = x.shape[1], GATES[cell] * hidden
    shapes = [
        x.shape,
        (batch, hidden),
        (batch, hidden),
        input_values.shape,
        recurrent_values.shape,
        (lines,),
        (lines,),
    ]
    return tuple(x.new_empty(shape if need else (0,)) for shape, need in zip(shapes, needs, strict=True))


@recurrent_layer_backward.register_fake
def _(x: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    input_values, _, recurrent_values, *_, cell, hidden, needs = rest
    return _layer_gradients(x, input_values, recurrent_values, cell, hidden, needs)


def _save_layer(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, h, _, input_values, input_index, recurrent_values, recurrent_index, *_, cell, keep = inputs
    ctx.save_for_backward(x, input_values, input_index, recurrent_values, recurrent_index, *output[3:])
    ctx.cell, ctx.keep, ctx.hidden = cell, keep, h.shape[-1]
    ctx.mark_non_differentiable(*output[3:])
    ctx.set_materialize_grads(False)


def _layer_autograd(
    ctx: Any, dy: Tensor | None, dh_last: Tensor | None, dc_last: Tensor | None, *unused: Tensor | None
) -> tuple[Tensor | None, ...]:
    if not ctx.keep:
        raise RuntimeError("this window was run without keeping what its gradients need")
    x, input_values, input_index, recurrent_values, recurrent_index, *kept = ctx.saved_tensors
    if dy is None:
        dy = x.new_zeros(*x.shape[:2], ctx.hidden)
    needed = ctx.needs_input_grad
    state = needed[1] or needed[2]
    needs = [needed[0], state, state and ctx.cell == "lstm", needed[3], needed[5], needed[7], needed[8]]
    found = recurrent_layer_backward(
        x,
        input_values,
        input_index,
        recurrent_values,
        recurrent_index,
        kept,
        dy,
        dh_last,
        dc_last if ctx.cell == "lstm" else None,
        ctx.cell,
        ctx.hidden,
        needs,
    )
    dx, dh, dc, d_input, d_recurrent, dbias, d_recurrent_bias = where_needed(found, needs)
    return dx, dh, dc, d_input, None, d_recurrent, None, dbias, d_recurrent_bias, None, None


recurrent_layer.register_autograd(_layer_autograd, setup_context=_save_layer)
