"""Dense gradients of packed weights, for the methods that grow by them.

A backward pass never makes one. While a weight is collected, it leaves what the gradient is a product of (activations,
much smaller than the matrix), and :func:`dense_gradient` multiplies them for one matrix at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from selfish_rnn.engine.packed_weight import PackedWeight

_factors: dict[int, list[tuple[Tensor | None, Tensor, Tensor | None]]] = {}
_paused: set[int] = set()
_dropped: dict[int, Tensor] = {}


def is_collecting(index: Tensor) -> bool:
    """Whether the factors of this weight's gradient are wanted."""
    return bool(_factors) and index.data_ptr() in _factors and index.data_ptr() not in _paused


def collect(index: Tensor, x: Tensor, gradient: Tensor) -> None:
    """Keep the factors of one use of a weight: its input (or tokens) and the gradient of its output."""
    if is_collecting(index):
        _factors[index.data_ptr()].append((x.detach(), gradient.detach(), _dropped.pop(index.data_ptr(), None)))


def collect_product(index: Tensor, product: Tensor) -> None:
    """Keep a dense gradient itself, where its factors would be larger."""
    if is_collecting(index):
        _factors[index.data_ptr()].append((None, product.detach(), None))


def note_dropped(index: Tensor, factors: Tensor) -> None:
    """The next use of a weight is multiplied by these factors, one for every position of the matrix."""
    if is_collecting(index):
        _dropped[index.data_ptr()] = factors


def start_collecting(weight: PackedWeight) -> None:
    """From now on, until :func:`stop_collecting`, backward passes leave the factors of the dense gradient."""
    stop_collecting(weight)
    _factors[weight.index.data_ptr()] = []


def pause_collecting(weight: PackedWeight) -> None:
    """Keep the factors, and add no more."""
    _paused.add(weight.index.data_ptr())


def stop_collecting(weight: PackedWeight) -> None:
    """Forget the factors."""
    _factors.pop(weight.index.data_ptr(), None)
    _paused.discard(weight.index.data_ptr())
    _dropped.pop(weight.index.data_ptr(), None)


def has_collected(weight: PackedWeight) -> bool:
    """Whether a backward pass has left anything."""
    return bool(_factors.get(weight.index.data_ptr()))


def dense_gradient(weight: PackedWeight) -> Tensor:
    """The gradient of all positions of a matrix, existing or not, over the passes since collecting started."""
    total = torch.zeros(weight.shape)
    for x, gradient, dropped in _factors[weight.index.data_ptr()]:
        if x is None:
            total += gradient
        elif not x.is_floating_point():
            total.index_add_(0, x.flatten(), gradient.reshape(-1, weight.shape[1]))
        elif dropped is None:
            total.addmm_(gradient.reshape(-1, weight.shape[0]).t(), x.reshape(-1, weight.shape[1]))
        else:
            product = gradient.reshape(-1, weight.shape[0]).t() @ x.reshape(-1, weight.shape[1])
            total.addcmul_(product, dropped.view(weight.shape))
    return total
