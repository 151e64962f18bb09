"""The ordered-neurons LSTM as an operator of torch, with gradients."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from selfish_rnn.engine import library
from selfish_rnn.engine.library import panel_floats, step_floats
from selfish_rnn.engine.operators import common
from selfish_rnn.engine.packed_weight import PackedWeight


class Results(NamedTuple):
    """Results of the forward pass, by their names in the kernels; from ``gates`` on for the backward pass."""

    y: Tensor
    c_last: Tensor
    input_distance: Tensor
    forget_distance: Tensor
    gates: Tensor
    masters: Tensor
    states: Tensor
    cells: Tensor
    h_panels: Tensor

    @classmethod
    def empty(cls, x: Tensor, hidden: int, chunk: int, keep: bool) -> Results:
        steps, batch, _ = x.shape
        gates, masters, cells, h_panels = Saved.sizes(x, hidden, chunk)
        return cls(
            y=x.new_empty(steps, batch, hidden),
            c_last=x.new_empty(batch, hidden),
            input_distance=x.new_empty(steps, batch),
            forget_distance=x.new_empty(steps, batch),
            gates=x.new_empty(gates),
            masters=x.new_empty(masters),
            states=x.new_empty(cells),
            cells=x.new_empty(cells),
            h_panels=x.new_empty(h_panels if keep else 0),
        )


class Saved(NamedTuple):
    """Results that the backward pass reads."""

    gates: Tensor
    masters: Tensor
    cells: Tensor
    h_panels: Tensor

    @staticmethod
    def sizes(x: Tensor, hidden: int, chunk: int) -> list[int]:
        """Return the number of floats of each."""
        steps, batch, _ = x.shape
        step = step_floats(batch, 1)
        return [
            steps * step * _rows(hidden, chunk),
            steps * step * 2 * (hidden // chunk),
            (steps + 1) * step * hidden,
            panel_floats(steps * batch, hidden),
        ]


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
    """Return the results of :class:`~selfish_rnn.models.cells.ordered_neurons.OrderedNeuronsCell`, with packed weights.

    x is steps x batch x inputs, h and c batch x hidden. ``recurrent_values`` stand for those of ``recurrence``, of
    which some may be dropped.
    """
    keep = common.wants_gradients(x, h, c, inputs.values, recurrent_values, bias)
    results = Results(
        *ordered_neurons(x, h, c, inputs.values, inputs.index, recurrent_values, recurrence.index, bias, chunk, keep)
    )
    return results.y, results.c_last, results.input_distance, results.forget_distance


def _rows(hidden: int, chunk: int) -> int:
    return sum(_gate_rows(hidden, chunk))


def _gate_rows(hidden: int, chunk: int) -> tuple[int, ...]:
    if chunk < 1 or hidden % chunk:
        raise ValueError(f"chunks of {chunk} units do not divide {hidden} units")
    return (*(hidden // chunk,) * 2, *(hidden,) * 4)


@common.operator("ordered_neurons")
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
    """Return the :class:`Results`: h at every step, the last c, both master gate distances, and saved tensors."""
    x, h, c, bias = common.contiguous(x, h, c, bias)
    weights = common.LayerWeights(input_values, input_index, recurrent_values, recurrent_index).contiguous()
    hidden, inputs = h.shape[-1], x.shape[-1]
    shape = common.window_shape(x, hidden, h, c)
    weights.check(_gate_rows(hidden, chunk), inputs, hidden)
    common.check_shape("bias", bias, _rows(hidden, chunk))
    results = Results.empty(x, hidden, chunk, keep)
    if x.shape[1] == 0:
        return results
    library.run(
        "ordered_forward",
        shape,
        weights._asdict(),
        {**results._asdict(), "h_panels": results.h_panels if keep else None},
        library.workspace(x_panels=panel_floats(x.shape[0] * x.shape[1], inputs)),
        chunk=chunk,
        bias=bias,
        x=x,
        h_first=h,
        c_first=c,
    )
    return results


@ordered_neurons.register_fake
def _(x: Tensor, h: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    *_, chunk, keep = arguments
    return tuple(Results.empty(x, h.shape[-1], chunk, keep))


@common.operator("ordered_neurons_backward")
def ordered_neurons_backward(
    x: Tensor,
    input_values: Tensor,
    input_index: Tensor,
    recurrent_values: Tensor,
    recurrent_index: Tensor,
    saved: list[Tensor],
    dy: Tensor,
    dc_last: Tensor | None,
    chunk: int,
    needs: list[bool],
) -> list[Tensor]:
    """Return the :class:`~selfish_rnn.engine.operators.common.LayerGradients`; empty where not needed."""
    x, dy = common.contiguous(x, dy)
    weights = common.LayerWeights(input_values, input_index, recurrent_values, recurrent_index).contiguous()
    dc_last = common.contiguous_if(dc_last)
    hidden, inputs, forward = dy.shape[-1], x.shape[-1], Saved(*common.contiguous(*saved))
    shape = common.window_shape(x, hidden, dc_last)
    weights.check(_gate_rows(hidden, chunk), inputs, hidden)
    rows = _rows(hidden, chunk)
    common.check_sizes(forward, Saved.sizes(x, hidden, chunk))
    common.check_shape("gradient", dy, *x.shape[:2], hidden)
    common.check_together(needs, 1, 2, "of h and c")
    gradients = common.LayerGradients.empty(x, weights, rows, hidden, needs)
    tokens, batch = x.shape[0] * x.shape[1], x.shape[1]
    if batch == 0:
        return [gradient.zero_() for gradient in gradients]
    work = library.workspace(
        x_panels=panel_floats(tokens, inputs),
        d_panels=panel_floats(tokens, rows),
        d_gates=step_floats(batch, rows),
        d_masters=step_floats(batch, 2 * hidden),
        d_state=step_floats(batch, hidden),
        d_cell=step_floats(batch, hidden),
    )
    library.run(
        "ordered_backward",
        shape,
        weights._asdict(),
        forward._asdict(),
        common.LayerGradients(*common.where_needed(gradients, needs))._asdict(),
        work,
        chunk=chunk,
        x=x,
        dy=dy,
        dc_last=dc_last,
        values_t=library.transposed_scratch(weights.input_values, weights.recurrent_values),
    )
    weights.collect(x, forward.h_panels, work["d_panels"], work["d_panels"], hidden)
    return gradients


@ordered_neurons_backward.register_fake
def _(x: Tensor, *arguments: Any) -> list[Tensor]:
    *_, dy, _, chunk, needs = arguments
    hidden = dy.shape[-1]
    return common.LayerGradients.empty(x, common.LayerWeights(*arguments[:4]), _rows(hidden, chunk), hidden, needs)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, _, _, *weights = inputs[:7]
    ctx.chunk, ctx.keep = inputs[-2:]
    results = Results(*output)
    saved = Saved(results.gates, results.masters, results.cells, results.h_panels)
    ctx.save_for_backward(x, *weights, *saved)
    ctx.mark_non_differentiable(*output[2:])
    ctx.hidden = results.y.shape[-1]
    ctx.set_materialize_grads(False)


def _autograd(ctx: Any, dy: Tensor | None, dc_last: Tensor | None, *unused: Tensor | None) -> tuple[Tensor | None, ...]:
    common.check_kept(ctx.keep)
    x, *tensors = ctx.saved_tensors
    weights, saved = tensors[:4], tensors[4:]
    if dy is None:
        dy = x.new_zeros(*x.shape[:2], ctx.hidden)
    needed = ctx.needs_input_grad
    state = needed[1] or needed[2]
    needs = [needed[0], state, state, needed[3], needed[5], needed[7], False]
    gradients = ordered_neurons_backward(x, *weights, saved, dy, dc_last, ctx.chunk, needs)
    dx, dh, dc, d_input, d_recurrent, dbias, _ = common.where_needed(gradients, needs)
    return dx, dh, dc, d_input, None, d_recurrent, None, dbias, None, None


ordered_neurons.register_autograd(_autograd, setup_context=_save)
ordered_neurons_backward.register_autograd(common.refuse_second_derivative)
