"""Products with a packed weight, as ``torch.nn.functional`` has them with a dense one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from selfish_rnn.engine import library, operators
from selfish_rnn.engine.dense_gradients import is_collecting, note_dropped
from selfish_rnn.engine.index import check_count, contents
from selfish_rnn.engine.int8 import operators as int8
from selfish_rnn.engine.int8.quantized_weight import QuantizedWeight
from selfish_rnn.engine.library import address
from selfish_rnn.engine.operators.common import call, wants_gradients
from selfish_rnn.engine.packed_weight import PackedWeight
from selfish_rnn.engine.precision import precision_of

Weight = PackedWeight | QuantizedWeight
"""A sparse matrix: in single precision, or in int8 and for inference."""


def linear(x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
    """Return ``x W^T + bias``."""
    if isinstance(weight, QuantizedWeight):
        return int8.linear(x, weight, bias)
    precision = precision_of(weight.precision, x.numel() // weight.shape[1])
    result: Tensor = call(operators.linear, x, weight.values, weight.index, bias, weight.shape[0], precision)
    return result


def embedding(tokens: Tensor, weight: Weight) -> Tensor:
    """Return the rows of W at ``tokens``."""
    if isinstance(weight, QuantizedWeight):
        return int8.embedding(tokens, weight)
    if tokens.dtype != torch.int64:
        tokens = tokens.to(torch.int64)
    rows: Tensor = call(operators.lookup, tokens, weight.values, weight.index, weight.shape[1])
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
    precision = precision_of(weight.precision, targets.numel())
    loss: Tensor = operators.cross_entropy(x, weight.values, weight.index, bias, targets, gradients, precision)[0]
    return loss


def output_loss(decoder: nn.Module, x: Tensor, targets: Tensor) -> Tensor:
    """``cross_entropy(decoder(x), targets)``, the mean over all targets, for an output layer of any kind.

    A layer that has a method ``cross_entropy(x, targets)``, as a packed one does, computes it itself, with less memory.
    """
    cross_entropy = getattr(decoder, "cross_entropy", None)
    loss: Tensor
    if cross_entropy is not None:
        loss = cross_entropy(x, targets)
    else:
        loss = functional.cross_entropy(decoder(x).flatten(0, -2), targets.flatten())
    return loss


def drop_weights(weight: PackedWeight, probability: float, rescaled: bool = True) -> Tensor:
    """The values of a weight, 0 with ``probability``, the others divided by ``1 - probability`` if ``rescaled``.

    A network drops the same weights in either engine (:func:`drop_factors`), and drawing goes with the weights that
    exist, not with the positions.
    """
    index, keys = weight.index, drop_keys("cpu")
    check_count(weight.values, contents(index).count)
    if is_collecting(index):
        note_dropped(index, drop_factors(weight.shape, probability, rescaled, keys).flatten())
    factors = torch.empty_like(weight.values, requires_grad=False)
    library.kernels().selfish_index_kept(address(index), *keys.tolist(), _limit(probability), address(factors))
    return weight.values * factors.mul_(_scale(probability, rescaled))


def drop_keys(device: torch.device | str) -> Tensor:
    """Two random numbers, from which :func:`drop_factors` makes one for every position of a matrix."""
    return torch.randint(2**31, (2,), dtype=torch.int32, device=device)


def drop_factors(shape: Sequence[int], probability: float, rescaled: bool, keys: Tensor) -> Tensor:
    """Return the factors of DropConnect: 0 with ``probability``, else 1 or its rescaled value.

    The number of a position is a hash of its row, its column and the keys. So it is known without those of all other
    positions, which need not exist.
    """
    rows, columns = (
        _mixed(torch.arange(size, dtype=torch.int32, device=keys.device) + key)
        for size, key in zip(shape, keys, strict=True)
    )
    # Torch compares with the sign: 2^31 less on both sides is the same as comparing without.
    survives = _mixed(rows[:, None] ^ columns).bitwise_xor_(-(2**31)) > _limit(probability) - 2**31 - 1
    return survives * torch.full((), _scale(probability, rescaled), device=keys.device)


def _scale(probability: float, rescaled: bool) -> float:
    return 1 / (1 - probability) if rescaled and probability < 1 else 1.0


def _limit(probability: float) -> int:
    """Return the number below 2^32 under which positions are dropped."""
    return max(round(probability * 2**32), 1)


def _mixed(numbers: Tensor) -> Tensor:
    """Spread the bits of every number over all of them, in place; ``mixed`` in ``kernels/packing.cpp``."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B - 2**32)):
        numbers.bitwise_xor_((numbers >> shift).bitwise_and_(2 ** (32 - shift) - 1)).mul_(factor)
    return numbers.bitwise_xor_((numbers >> 16).bitwise_and_(2**16 - 1))
