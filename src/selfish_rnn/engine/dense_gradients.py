"""Dense gradients of packed weights, for the methods that grow by them.

A backward pass never makes one. While a weight is collected, it leaves what the gradient is a product of (activations,
much smaller than the matrix), and :func:`dense_gradient` multiplies them for one matrix at a time.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

if TYPE_CHECKING:
    from selfish_rnn.engine.packed_weight import PackedWeight


@dataclass
class _Collected:
    """Factors of the dense gradient of one weight: for each use its input, output gradient and dropped weights."""

    uses: list[tuple[Tensor | None, Tensor, Tensor | None]] = field(default_factory=list)
    dropped: Tensor | None = None
    paused: bool = False


# By the index of the weight, which is what operators are given of it; an entry goes when the index does.
_collected: MutableMapping[Tensor, _Collected] = WeakTensorKeyDictionary()


def is_collecting(index: Tensor) -> bool:
    """Return whether the gradient of this weight is collected."""
    return _open(index) is not None


def _open(index: Tensor) -> _Collected | None:
    collected = _collected.get(index) if len(_collected) else None
    return None if collected is None or collected.paused else collected


def collect(index: Tensor, x: Tensor | None, gradient: Tensor) -> None:
    """Keep the factors of one use of a weight: its input (or tokens) and the gradient of its output.

    Where these would be larger than their product, that is given in place of the gradient, and no input.
    """
    collected = _open(index)
    if collected is not None:
        collected.uses.append((None if x is None else x.detach(), gradient.detach(), collected.dropped))
        collected.dropped = None


def note_dropped(index: Tensor, factors: Tensor) -> None:
    """Record the factors that DropConnect multiplies the next use of a weight by, one for each position."""
    collected = _open(index)
    if collected is not None:
        collected.dropped = factors


def start_collecting(weight: PackedWeight) -> None:
    """Keep the factors of backward passes until :func:`stop_collecting`."""
    _collected[weight.index] = _Collected()


def pause_collecting(weight: PackedWeight) -> None:
    """Keep the factors, and add none."""
    if weight.index in _collected:
        _collected[weight.index].paused = True


def stop_collecting(weight: PackedWeight) -> None:
    """Free the factors."""
    _collected.pop(weight.index, None)


def move(before: Tensor | None, after: Tensor | None) -> None:
    """Let factors follow a weight to another index; they belong to positions of the matrix."""
    if before is not None and after is not None and before in _collected:
        _collected[after] = _collected.pop(before)


def has_collected(weight: PackedWeight) -> bool:
    """Return whether there are factors of a backward pass."""
    return weight.index in _collected and bool(_collected[weight.index].uses)


def dense_gradient(weight: PackedWeight) -> Tensor:
    """Return the gradient of all positions of a matrix over the passes since collecting started."""
    total = torch.zeros(weight.shape)
    for x, gradient, dropped in _collected[weight.index].uses:
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


def gradient_at(weight: PackedWeight, positions: Tensor) -> Tensor:
    """Return the gradient at some positions of a matrix, over the passes since collecting started.

    Time and memory go with the number of positions. Each use adds, for row r and column c,

        sum over t of gradient[t, r] x[t, c]
    """
    rows, columns = positions // weight.shape[1], positions % weight.shape[1]
    total = torch.zeros(len(positions))
    for x, gradient, dropped in _collected[weight.index].uses:
        if x is None:
            total += gradient[rows, columns]
            continue
        if x.is_floating_point():
            # One row of memory for each unit, so that a position reads two runs of numbers.
            of_row = gradient.reshape(-1, weight.shape[0]).t().contiguous()
            of_column = x.reshape(-1, weight.shape[1]).t().contiguous()
            parts = zip(*(torch.split(positions, _POSITIONS_AT_ONCE) for positions in (rows, columns)), strict=True)
            use = torch.cat([(of_row[row] * of_column[column]).sum(1) for row, column in parts])
        else:
            use = _of_tokens(x.flatten(), gradient.reshape(-1, weight.shape[1]), rows, columns)
        total += use if dropped is None else use * dropped.view(weight.shape)[rows, columns]
    return total


_POSITIONS_AT_ONCE = 2**13


def _of_tokens(tokens: Tensor, gradient: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return the gradient of an embedding at some positions: the sum over the tokens that are their row."""
    present, places = torch.unique(tokens, return_inverse=True)
    sums = torch.zeros(len(present), gradient.shape[1]).index_add_(0, places, gradient)
    indices = torch.searchsorted(present, rows).clamp_(max=len(present) - 1)
    return torch.where(present[indices] == rows, sums[indices, columns], torch.zeros(()))
