"""The layers of LSTM, GRU and RNN as operators of torch, with gradients."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from selfish_rnn.engine import library
from selfish_rnn.engine.library import panel_floats, step_floats
from selfish_rnn.engine.operators import common
from selfish_rnn.engine.precision import check_precision, operand_floats, run_in_workspace, step_columns, wide_columns
from selfish_rnn.errors import unknown

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


class Saved(NamedTuple):
    """Tensors of the forward pass for the backward pass, by their names in the structures of the kernels."""

    gates: Tensor
    states: Tensor
    cells: Tensor
    extra: Tensor
    h_panels: Tensor

    @staticmethod
    def sizes(steps: int, batch: int, hidden: int, cell: str, precision: str) -> list[int]:
        """Return the number of entries of each."""
        bfloat16 = precision == "bfloat16"
        step = step_columns(batch) * hidden if bfloat16 else step_floats(batch, hidden)
        return [
            steps * sum(gate_rows(cell, step)),
            (steps + 1) * step if cell == "gru" else 0,
            (steps + 1) * step if cell == "lstm" else 0,
            steps * step if cell == "gru" else 0,
            wide_columns(steps * batch) * hidden if bfloat16 else panel_floats(steps * batch, hidden),
        ]

    @classmethod
    def empty(cls, x: Tensor, hidden: int, cell: str, keep: bool, precision: str) -> Saved:
        """Memory for them; of no size if nothing is to be kept. The last has the precision of operands."""
        check_precision(precision)
        sizes = cls.sizes(x.shape[0], x.shape[1], hidden, cell, precision) if keep else [0] * len(cls._fields)
        operands = x.new_empty(sizes.pop(), dtype=getattr(torch, precision))
        return cls._make([*map(x.new_empty, sizes), operands])


def gate_rows(cell: str, hidden: int) -> tuple[int, ...]:
    if cell not in GATES:
        raise ValueError(unknown("cell", cell, GATES))
    return (hidden,) * GATES[cell]


@common.operator("recurrent_layer")
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
    precision: str = "float32",
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Run a layer over a window: x is steps x batch x inputs, h and c batch x hidden (c empty but for an LSTM).

    Returns the output at every step and the last h and c; the rest is :class:`Saved` for the backward pass.
    """
    common.window_shape(x, h.shape[-1])
    gate_rows(cell, h.shape[-1])
    saved = Saved.empty(x, h.shape[-1], cell, keep, precision)
    weights = common.LayerWeights(input_values, input_index, recurrent_values, recurrent_index)
    return *_run(x, h, c, weights, bias, recurrent_bias, cell, saved if keep else None, precision), *saved


def _run(
    x: Tensor,
    h: Tensor,
    c: Tensor,
    weights: common.LayerWeights,
    bias: Tensor | None,
    recurrent_bias: Tensor | None,
    cell: str,
    saved: Saved | None,
    precision: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the output at every step and the last h and c; without ``saved`` the rest is in reused memory."""
    x, h, c = common.contiguous(x, h, c)
    weights = weights.contiguous()
    bias, recurrent_bias = common.contiguous_if(bias), common.contiguous_if(recurrent_bias)
    hidden = h.shape[-1]
    common.window_shape(x, hidden, h, c if cell == "lstm" else None)
    plan = _plan(*x.shape, hidden, cell, saved is None)
    rows = sum(plan.gates)
    weights.check(plan.gates, x.shape[-1], hidden)
    common.check_shape("bias", bias, rows)
    common.check_shape("bias", recurrent_bias, rows)
    if cell != "gru" and recurrent_bias is not None:
        bias, recurrent_bias = (recurrent_bias if bias is None else bias + recurrent_bias), None
    y, h_last, c_last = x.new_empty(plan.output), torch.empty_like(h), torch.empty_like(c)
    if len(h) == 0:
        return y, h_last, c_last
    inputs_of_layer = {"bias": bias, "recurrent_bias": recurrent_bias, "x": x, "h_first": h, "c_first": c}
    results = {"y": y, "h_last": h_last, "c_last": c_last}
    memory = {} if saved is None else saved._asdict()
    if precision == "bfloat16":
        run_in_workspace(
            "bf16_layer_forward",
            plan.numbers,
            weights.with_indexes(),
            memory,
            inputs_of_layer,
            results,
            keep=int(saved is not None),
        )
    else:
        workspace = library.workspace(**plan.work)
        library.run("layer_forward", plan.numbers, weights._asdict(), memory, workspace, inputs_of_layer, results)
    return y, h_last, c_last


class _Plan(NamedTuple):
    """Sizes for a window of one shape: made once, because it takes longer than a small window."""

    gates: tuple[int, ...]
    output: tuple[int, int, int]
    numbers: dict[str, int]
    """Fields of the kernels' structure."""
    work: dict[str, int]
    """Numbers of floats of reused memory, by the names in the structure of the kernels."""


@functools.lru_cache(maxsize=1024)
def _plan(steps: int, batch: int, inputs: int, hidden: int, cell: str, infer: bool) -> _Plan:
    gates = gate_rows(cell, hidden)
    work = {"x_panels": panel_floats(steps * batch, inputs)}
    if cell == "gru":
        work["apart"] = step_floats(batch, sum(gates))
    if infer:  # all that is kept otherwise, but for what only a backward pass looks at
        work.update(zip(Saved._fields[:-1], Saved.sizes(steps, batch, hidden, cell, "float32"), strict=False))
    if cell != "gru":
        work["states"] = 2 * step_floats(batch, hidden)
    numbers = {"kind": library.cell_kind(cell), "steps": steps, "batch": batch, "hidden": hidden}
    return _Plan(gates, (steps, batch, hidden), numbers, work)


def _infer(x: Tensor, h: Tensor, c: Tensor, *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    *weights, bias, recurrent_bias, cell, _, precision = arguments
    return _run(x, h, c, common.LayerWeights(*weights), bias, recurrent_bias, cell, None, precision)


recurrent_layer.direct = _infer  # no gradient is wanted, so there is nothing to keep


@recurrent_layer.register_fake
def _(x: Tensor, h: Tensor, c: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    cell, keep, precision = arguments[6:] if len(arguments) == 9 else (*arguments[6:], "float32")
    y = x.new_empty(*x.shape[:2], h.shape[-1])
    return y, torch.empty_like(h), torch.empty_like(c), *Saved.empty(x, h.shape[-1], cell, keep, precision)


@common.operator("recurrent_layer_backward")
def recurrent_layer_backward(
    x: Tensor,
    input_values: Tensor,
    input_index: Tensor,
    recurrent_values: Tensor,
    recurrent_index: Tensor,
    saved: list[Tensor],
    dy: Tensor,
    dh_last: Tensor | None,
    dc_last: Tensor | None,
    cell: str,
    hidden: int,
    needs: list[bool],
    precision: str = "float32",
) -> list[Tensor]:
    """Return the :class:`~selfish_rnn.engine.operators.common.LayerGradients`; empty where not needed."""
    x, dy = common.contiguous(x, dy)
    weights = common.LayerWeights(input_values, input_index, recurrent_values, recurrent_index).contiguous()
    dh_last, dc_last = common.contiguous_if(dh_last), common.contiguous_if(dc_last)
    gates, inputs, forward = (
        gate_rows(cell, hidden),
        x.shape[-1],
        Saved._make([*common.contiguous(*saved[:-1]), saved[-1]]),
    )
    rows = sum(gates)
    shape = common.window_shape(x, hidden, dh_last, dc_last)
    weights.check(gates, inputs, hidden)
    common.check_sizes(forward, Saved.sizes(x.shape[0], x.shape[1], hidden, cell, precision))
    common.check_operands(forward.h_panels, precision)
    common.check_shape("gradient", dy, *x.shape[:2], hidden)
    if cell == "lstm":
        common.check_together(needs, 1, 2, "of h and c")
    gradients = common.LayerGradients.empty(x, weights, rows, hidden, needs)
    if x.shape[1] == 0:
        return [gradient.zero_() for gradient in gradients]
    tokens, apart = x.shape[0] * x.shape[1], cell == "gru"
    inputs_of_layer = {"x": x, "dy": dy, "dh_last": dh_last, "dc_last": dc_last, "kind": library.cell_kind(cell)}
    outputs = common.LayerGradients(*common.where_needed(gradients, needs))._asdict()
    if precision == "bfloat16":
        floats = {"d_input_panels": operand_floats(tokens, rows)}
        if apart:
            floats["d_recurrent_panels"] = floats["d_input_panels"]
        work = run_in_workspace(
            "bf16_layer_backward",
            shape,
            weights.with_indexes(),
            forward._asdict(),
            outputs,
            inputs_of_layer,
            floats=floats,
        )
        d_recurrent = work["d_recurrent_panels" if apart else "d_input_panels"]
        weights.collect(x, forward.h_panels, work["d_input_panels"], d_recurrent, hidden, precision)
        return gradients
    window = functools.partial(panel_floats, tokens)
    step = functools.partial(step_floats, x.shape[1])
    work = library.workspace(
        x_panels=window(inputs),
        d_input_panels=window(rows),
        d_recurrent_panels=window(rows) if apart else 0,
        d_input=2 * step(rows),
        d_recurrent=2 * step(rows) if apart else 0,
        d_state=step(hidden),
        d_cell=step(hidden),
    )
    library.run(
        "layer_backward",
        shape,
        weights._asdict(),
        forward._asdict(),
        outputs,
        work,
        inputs_of_layer,
        values_t=library.transposed_scratch(weights.input_values, weights.recurrent_values),
    )
    d_recurrent = work["d_recurrent_panels" if apart else "d_input_panels"]
    weights.collect(x, forward.h_panels, work["d_input_panels"], d_recurrent, hidden, precision)
    return gradients


@recurrent_layer_backward.register_fake
def _(x: Tensor, *arguments: Any) -> list[Tensor]:
    cell, hidden, needs = arguments[8:11]
    return common.LayerGradients.empty(
        x, common.LayerWeights(*arguments[:4]), sum(gate_rows(cell, hidden)), hidden, needs
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, h, _, *weights = inputs[:7]
    ctx.save_for_backward(x, *weights, *output[3:])
    ctx.cell, ctx.keep, ctx.precision = inputs[-3:]
    ctx.hidden = h.shape[-1]
    ctx.mark_non_differentiable(*output[3:])
    ctx.set_materialize_grads(False)


def _autograd(
    ctx: Any, dy: Tensor | None, dh_last: Tensor | None, dc_last: Tensor | None, *unused: Tensor | None
) -> tuple[Tensor | None, ...]:
    common.check_kept(ctx.keep)
    x, *tensors = ctx.saved_tensors
    weights, saved = tensors[:4], tensors[4:]
    if dy is None:
        dy = x.new_zeros(*x.shape[:2], ctx.hidden)
    lstm = ctx.cell == "lstm"
    needed = ctx.needs_input_grad
    state = needed[1] or needed[2]
    needs = [needed[0], state, state and lstm, needed[3], needed[5], needed[7], needed[8]]
    gradients = recurrent_layer_backward(
        x, *weights, saved, dy, dh_last, dc_last if lstm else None, ctx.cell, ctx.hidden, needs, ctx.precision
    )
    dx, dh, dc, d_input, d_recurrent, dbias, d_recurrent_bias = common.where_needed(gradients, needs)
    return dx, dh, dc, d_input, None, d_recurrent, None, dbias, d_recurrent_bias, None, None, None


recurrent_layer.register_autograd(_autograd, setup_context=_save)
recurrent_layer_backward.register_autograd(common.refuse_second_derivative)
