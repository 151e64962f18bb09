"""Optimizer state of single weights: reset, and moved with the weights."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Adagrad, Optimizer, Rprop

SECOND_MOMENTS = frozenset(
    {
        "exp_avg_sq",  # Adam, AdamW, NAdam, RAdam, SparseAdam
        "max_exp_avg_sq",  # amsgrad
        "exp_inf",  # Adamax
        "square_avg",  # RMSprop, Adadelta
        "acc_delta",  # Adadelta, of its steps: with square_avg it makes the length of the next one
        "sum",  # Adagrad
        "variance",  # Adafactor, of what is no matrix
    }
)
"""State that scales steps: averages or sums of squared gradients or steps."""


_reported: weakref.WeakKeyDictionary[Optimizer, set[str]] = weakref.WeakKeyDictionary()
"""Keys of state without a known layout that a warning has named, by optimizer."""


def reset_state(
    optimizer: Optimizer, parameter: nn.Parameter, positions: Tensor, survivors: Tensor | None = None
) -> None:
    """Reset every state tensor of the shape of the parameter at some row-major positions.

    Works for any optimizer: state of single weights has the shape of the parameter, or is flat with as many numbers. It
    is reset to the initial value of the optimizer, zero for most. With ``survivors``, the positions of the surviving
    weights, second moments start at their mean, ``v = mean(v[survivors])``. Other tensors do not change. A warning
    names those that may belong to single weights.

    The code that RigL was published with starts them at zero too. Such an optimizer counts the steps of the whole
    matrix, not of one weight, so its correction for a young average is long over, and the first step after growth is

        lr (1 - beta_1) g / sqrt((1 - beta_2) g²) = lr (1 - beta_1) / sqrt(1 - beta_2)

    whatever the gradient: 3.2 learning rates for betas (0.9, 0.999) and 31.6 for (0, 0.999), where other weights make
    steps of one or less. From the mean, a grown weight makes steps of the length usual in its matrix.
    """
    for key, tensor, fresh_value in _per_weight(optimizer, parameter):
        if survivors is not None and len(survivors) and key in SECOND_MOMENTS:
            fresh_value = _mean(_at(tensor, survivors), len(survivors))
        fill_(tensor, positions, fresh_value)


def move_state(optimizer: Optimizer, parameter: nn.Parameter, origin: Tensor, fresh: Tensor) -> None:
    """Rearrange every state tensor of a flat parameter with :func:`gather_with_fill`, before the parameter itself.

    State moves with its weight. At the places ``fresh`` it is reset as in :func:`reset_state`, with second moments at
    the mean over the surviving weights.
    """
    staying = len(origin) - len(fresh)
    for key, tensor, fresh_value in _per_weight(optimizer, parameter):
        if staying and key in SECOND_MOMENTS:
            moved = gather_with_fill(tensor, origin, fresh, 0.0)
            moved.index_fill_(0, fresh, _mean(moved, staying))
        else:
            moved = gather_with_fill(tensor, origin, fresh, fresh_value)
        optimizer.state[parameter][key] = moved


def _mean(tensor: Tensor, count: int) -> float:
    """Return the mean, summed in double precision: the engines have different orders."""
    return float(tensor.sum(dtype=torch.float64)) / count


@torch.no_grad()
def gather_with_fill(tensor: Tensor, origin: Tensor, fresh: Tensor, fresh_value: float) -> Tensor:
    """Return ``tensor[origin]``, with ``fresh_value`` at the places ``fresh``."""
    if len(tensor) == 0:
        return tensor.new_full((len(origin),), fresh_value)
    return tensor[origin].index_fill_(0, fresh, fresh_value)


def _per_weight(optimizer: Optimizer, parameter: nn.Parameter) -> list[tuple[str, Tensor, float]]:
    """Return the state of single weights: key, tensor and initial value."""
    state = []
    for key, value in optimizer.state.get(parameter, {}).items():
        if not isinstance(value, Tensor) or value.ndim == 0:
            continue
        per_weight = value.shape in (parameter.shape, (parameter.numel(),))
        if per_weight and value.dtype != torch.uint8:
            state.append((key, value, _fresh_value(optimizer, parameter, key)))
        elif per_weight or not _of_whole_matrix(value, parameter.shape):  # bytes are codes of quantized numbers
            _warn_of_unknown_layout(optimizer, key, value, parameter)
    return state


def _of_whole_matrix(value: Tensor, shape: Sequence[int]) -> bool:
    """Return whether state holds statistics of rows, columns or the matrix: Adafactor's, Shampoo's, step counts."""
    return all(size in (1, *shape) for size in value.shape) and (len(shape) > 1 or value.numel() == 1)


def _warn_of_unknown_layout(optimizer: Optimizer, key: str, value: Tensor, parameter: nn.Parameter) -> None:
    reported = _reported.setdefault(optimizer, set())
    if key not in reported:
        reported.add(key)
        warnings.warn(
            f"{type(optimizer).__name__} keeps {key!r} of shape {tuple(value.shape)} for a weight of shape "
            f"{tuple(parameter.shape)}: rewiring leaves it as it is, and it may describe removed weights. If it "
            "belongs to single weights, choose an option that keeps it in full (slice_p=1 for Prodigy), or make a new "
            "optimizer after every rewiring",
            stacklevel=2,
        )


@torch.no_grad()
def fill_(tensor: Tensor, positions: Tensor, value: float) -> None:
    """Set row-major positions of a tensor of any memory layout."""
    positions = positions.to(tensor.device)
    if tensor.is_contiguous():
        tensor.view(-1).index_fill_(0, positions, value)
    else:
        tensor[torch.unravel_index(positions, tensor.shape)] = value


def _at(tensor: Tensor, positions: Tensor) -> Tensor:
    """Return the values at row-major positions of a tensor of any memory layout."""
    return tensor.flatten()[positions.to(tensor.device)]


def optimizers_of(parameters: Iterable[nn.Parameter]) -> list[Optimizer]:
    """Return the optimizers that hold some of the parameters.

    An optimizer that has made no step has announced itself to nobody, so the garbage collector is asked.
    """
    ids = set(map(id, parameters))
    return [
        optimizer
        for optimizer in gc.get_objects()
        if issubclass(type(optimizer), Optimizer)
        and any(id(parameter) in ids for group in optimizer.param_groups for parameter in group["params"])
    ]


def keeps_momentum(optimizer: Optimizer) -> bool:
    """Return whether an optimizer has momentum."""
    return any("betas" in group or group.get("momentum", 0) > 0 for group in optimizer.param_groups)


def momentum(optimizer: Optimizer, parameter: nn.Parameter) -> Tensor | None:
    """Return the momentum of an optimizer; for Adam ``m / (sqrt(v) + 1e-8)``."""
    state = optimizer.state.get(parameter, {})
    if "exp_avg" in state and "exp_avg_sq" in state:
        direction: Tensor = state["exp_avg"] / (state["exp_avg_sq"].sqrt() + 1e-8)
        return direction
    remembered: Tensor | None = state.get("exp_avg", state.get("momentum_buffer"))
    return remembered


def _fresh_value(optimizer: Optimizer, parameter: nn.Parameter, key: str) -> float:
    """Return the initial value of a state: zero, except in two optimizers of torch."""
    if isinstance(optimizer, Adagrad) and key == "sum":
        return float(_group(optimizer, parameter)["initial_accumulator_value"])
    if isinstance(optimizer, Rprop) and key == "step_size":
        return float(_group(optimizer, parameter)["lr"])
    return 0.0


def _group(optimizer: Optimizer, parameter: nn.Parameter) -> dict[str, Any]:
    for group in optimizer.param_groups:
        if any(member is parameter for member in group["params"]):
            return group
    raise LookupError("the optimizer does not hold this parameter")
