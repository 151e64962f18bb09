"""Products with a packed weight, as ``torch.nn.functional`` has them with a dense one."""

from __future__ import annotations

import torch
from torch import Tensor

from selfish_rnn.engine import operators
from selfish_rnn.engine.packed_weight import PackedWeight


def linear(x: Tensor, weight: PackedWeight, bias: Tensor | None = None) -> Tensor:
    """``x W^T + bias``."""
    result: Tensor = operators.linear(x, weight.values, weight.index, bias, weight.shape[0])
    return result


def embedding(tokens: Tensor, weight: PackedWeight) -> Tensor:
    """The rows of W that ``tokens`` name."""
    rows: Tensor = operators.lookup(tokens.to(torch.int64), weight.values, weight.index, weight.shape[1])
    return rows


def linear_cross_entropy(x: Tensor, weight: PackedWeight, bias: Tensor | None, targets: Tensor) -> Tensor:
    """``cross_entropy(linear(x, weight, bias), targets)``, the mean over all targets, without keeping the scores.

    >>> loss = linear_cross_entropy(hidden, decoder.weight, decoder.bias, targets)
    """
    if bias is None:
        bias = x.new_zeros(weight.shape[0])
    gradients = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (x, weight.values, bias))
    targets = targets.to(torch.int64)
    loss: Tensor = operators.cross_entropy(x, weight.values, weight.index, bias, targets, gradients)[0]
    return loss
