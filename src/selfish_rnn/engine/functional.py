"""Products with a packed weight, as ``torch.nn.functional`` has them with a dense one."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from selfish_rnn.engine import operators
from selfish_rnn.engine.dense_gradients import note_dropped
from selfish_rnn.engine.inference import operators as int8
from selfish_rnn.engine.inference.quantized_weight import QuantizedWeight
from selfish_rnn.engine.operators.common import call, wants_gradients
from selfish_rnn.engine.packed_weight import PackedWeight

Weight = PackedWeight | QuantizedWeight
"""A sparse matrix: in single precision, or in int8 and for inference."""


def linear(x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
    """``x W^T + bias``."""
    if isinstance(weight, QuantizedWeight):
        return int8.linear(x, weight, bias)
    result: Tensor = call(operators.linear, x, weight.values, weight.index, bias, weight.shape[0])
    return result


def embedding(tokens: Tensor, weight: Weight) -> Tensor:
    """The rows of W that ``tokens`` name."""
    if isinstance(weight, QuantizedWeight):
        return int8.embedding(tokens, weight)
    rows: Tensor = call(operators.lookup, tokens.to(torch.int64), weight.values, weight.index, weight.shape[1])
    return rows


def linear_cross_entropy(x: Tensor, weight: Weight, bias: Tensor | None, targets: Tensor) -> Tensor:
    """``cross_entropy(linear(x, weight, bias), targets)``, the mean over all targets, without keeping the scores.

    >>> loss = linear_cross_entropy(hidden, decoder.weight, decoder.bias, targets)
    """
    if isinstance(weight, QuantizedWeight):
        return int8.linear_cross_entropy(x, weight, bias, targets)
    if bias is None:
        bias = x.new_zeros(weight.shape[0])
    gradients = wants_gradients(x, weight.values, bias)
    targets = targets.to(torch.int64)
    loss: Tensor = operators.cross_entropy(x, weight.values, weight.index, bias, targets, gradients)[0]
    return loss


def output_loss(decoder: nn.Module, x: Tensor, targets: Tensor) -> Tensor:
    """``cross_entropy(decoder(x), targets)``, the mean over all targets, for an output layer of any kind.

    A layer that has a method ``cross_entropy(x, targets)``, as a packed one does, computes it itself, with less memory.
    """
    own = getattr(decoder, "cross_entropy", None)
    loss: Tensor
    if own is not None:
        loss = own(x, targets)
    else:
        loss = functional.cross_entropy(decoder(x).flatten(0, -2), targets.flatten())
    return loss


def drop_weights(weight: PackedWeight, probability: float, rescaled: bool = True) -> Tensor:
    """The values of a weight, 0 with ``probability``, the others divided by ``1 - probability`` if ``rescaled``.

    Drawn for all positions of the matrix, so that a network drops the same weights in either engine.
    """
    drawn = functional.dropout(torch.ones(weight.shape), probability).flatten()
    if not rescaled:
        drawn.sign_()
    note_dropped(weight.index, drawn)
    positions, places = weight.sorted()
    factors = torch.empty_like(weight.values).index_copy_(0, places.to(torch.int64), drawn[positions])
    return weight.values * factors
