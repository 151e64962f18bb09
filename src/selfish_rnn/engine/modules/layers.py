"""Recurrent layers over a window or over sequences of different lengths, in either direction."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from selfish_rnn.engine.functional import Weight, linear
from selfish_rnn.engine.int8 import operators as int8
from selfish_rnn.engine.int8.quantized_weight import QuantizedWeight
from selfish_rnn.engine.operators.common import call, wants_gradients
from selfish_rnn.engine.operators.recurrent import recurrent_layer
from selfish_rnn.engine.packed_weight import PackedWeight
from selfish_rnn.engine.precision import precision_of

Layer = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
"""Takes a window (steps x batch x features), h and c to the output at every step and the last h and c."""


def run_window(
    cell: str,
    inputs: Weight,
    recurrence: Weight,
    recurrent_values: Tensor | None,
    biases: Sequence[Tensor | None],
    x: Tensor,
    h: Tensor,
    c: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run a layer over steps x batch x inputs; return the output at every step and the last h and c.

    ``recurrent_values`` are others than those of the recurrent weight, for instance some of them dropped.
    """
    if isinstance(inputs, QuantizedWeight) and isinstance(recurrence, QuantizedWeight):
        return int8.window(cell, inputs, recurrence, biases, x, h, c)
    input_values = inputs.values
    recurrent_values = recurrence.values if recurrent_values is None else recurrent_values
    keep = wants_gradients(x, h, c, input_values, recurrent_values, *biases)
    assert isinstance(inputs, PackedWeight)
    precision = precision_of(inputs.precision, x.shape[0] * x.shape[1])
    matrices = input_values, inputs.index, recurrent_values, recurrence.index
    y, h_last, c_last, *_ = call(recurrent_layer, x, h, c, *matrices, *biases, cell, keep, precision)
    return y, h_last, c_last


def projected_lstm(
    inputs: Weight,
    recurrence: Weight,
    projection: Weight,
    biases: Sequence[Tensor | None],
    x: Tensor,
    h: Tensor,
    c: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run an LSTM with a projected state (Sak et al. 2014), h = R (o tanh(c)), step by step."""
    if len(x) == 0:
        raise ValueError("a window needs at least one step")
    from_inputs, outputs = linear(x, inputs, biases[0]), []
    for step in from_inputs.unbind():
        gates = (step + linear(h, recurrence, biases[1])).chunk(4, -1)
        c = gates[1].sigmoid() * c + gates[0].sigmoid() * gates[2].tanh()
        h = linear(gates[3].sigmoid() * c.tanh(), projection)
        outputs.append(h)
    return torch.stack(outputs), h, c


def over_window(layer: Layer, x: Tensor, h: Tensor, c: Tensor, backwards: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Run a layer over a window of sequences of one length, ``backwards`` from the last step to the first."""
    if not backwards:
        return layer(x, h, c)
    y, h, c = layer(x.flip(0), h, c)
    return y.flip(0), h, c


def over_sequences(
    layer: Layer, data: Tensor, batch_sizes: Tensor, h: Tensor, c: Tensor, backwards: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Run a layer over the data of a ``PackedSequence``, whose sequences are sorted from the longest on.

    Steps that have equally many sequences are one window, so none is computed for a sequence that has ended. Forwards
    the states of those that end at a window are set aside; backwards those that begin there join.
    """
    outputs, ended = [], []
    here, cell_here = (h[:0], c[:0]) if backwards else (h, c)
    for first, steps, batch in reversed(list(_windows(batch_sizes))) if backwards else _windows(batch_sizes):
        if backwards:
            here, cell_here = (torch.cat([now, all_[len(now) : batch]]) for now, all_ in ((here, h), (cell_here, c)))
        else:
            ended.append((here[batch:], cell_here[batch:]))
            here, cell_here = here[:batch], cell_here[:batch]
        x = data[first : first + steps * batch].view(steps, batch, -1)
        y, here, cell_here = over_window(layer, x, here, cell_here, backwards)
        outputs.append(y.flatten(0, 1))
    if backwards:
        outputs.reverse()
    h_last, c_last = (torch.cat(states[::-1]) for states in zip(*ended, (here, cell_here), strict=True))
    return torch.cat(outputs), h_last, c_last


def _windows(batch_sizes: Tensor) -> Iterator[tuple[int, int, int]]:
    """Steps in a row that have equally many sequences: the first token, how many steps, how many sequences."""
    first = 0
    for batch, run in itertools.groupby(batch_sizes.tolist()):
        steps = len(list(run))
        yield first, steps, batch
        first += steps * batch
