"""Products with a packed weight, as ``torch.nn.functional`` has them with a dense one."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from selfish_rnn.engine import operators
from selfish_rnn.engine.dense_gradients import is_collecting
from selfish_rnn.engine.packed_weight import PackedWeight


def linear(x: Tensor, weight: PackedWeight, bias: Tensor | None = None) -> Tensor:
    """``x W^T + bias``."""
    if x.shape[-1] != weight.shape[1]:
        raise ValueError(f"the input has {x.shape[-1]} features, the packed matrix {weight.shape[1]} columns")
    result: Tensor = operators.linear(x, weight.values, weight.index, bias, weight.shape[0])
    return result


def embedding(tokens: Tensor, weight: PackedWeight) -> Tensor:
    """The rows of W that ``tokens`` name."""
    _check_rows(tokens, weight, "token")
    rows: Tensor = operators.lookup(tokens.to(torch.int64), weight.values, weight.index, weight.shape[1])
    return rows


def linear_cross_entropy(x: Tensor, weight: PackedWeight, bias: Tensor | None, targets: Tensor) -> Tensor:
    """``cross_entropy(linear(x, weight, bias), targets)``, the mean over all targets, without keeping the scores.

    >>> loss = linear_cross_entropy(hidden, decoder.weight, decoder.bias, targets)
    """
    if is_collecting(weight.index):  # the dense gradient is a product with the scores' gradients
        return functional.cross_entropy(linear(x, weight, bias).flatten(0, -2), targets.flatten())
    if x.shape[:-1].numel() != targets.numel():
        raise ValueError(f"there are {x.shape[:-1].numel()} inputs and {targets.numel()} targets")
    _check_rows(targets, weight, "target")
    if bias is None:
        bias = x.new_zeros(weight.shape[0])
    gradients = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (x, weight.values, bias))
    targets = targets.to(torch.int64)
    loss: Tensor = operators.cross_entropy(x, weight.values, weight.index, bias, targets, gradients)[0]
    return loss


def _check_rows(numbers: Tensor, weight: PackedWeight, what: str) -> None:
    """A kernel reads wherever it is told to."""
    if numbers.numel() == 0:
        return
    lowest, highest = (int(bound) for bound in torch.aminmax(numbers))
    if lowest < 0 or highest >= weight.shape[0]:
        wrong = lowest if lowest < 0 else highest
        raise IndexError(f"{what} {wrong} is out of range: the packed matrix has {weight.shape[0]} rows")
