"""What optimizers remember of single weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Adagrad, Optimizer, Rprop


def reset_state(optimizer: Optimizer, parameter: nn.Parameter, positions: Tensor) -> None:
    """Start afresh, at some row-major positions, every state tensor of the shape of the parameter.

    Works for any optimizer: per-weight state is what has the parameter's shape.
    """
    for _, tensor, fresh_value in _per_weight(optimizer, parameter):
        fill_(tensor, positions, fresh_value)


def move_state(optimizer: Optimizer, parameter: nn.Parameter, origin: Tensor, fresh: Tensor) -> None:
    """Rearrange every state tensor of a flat parameter as :func:`gather_with_fill` does; call it before the parameter
    itself is.

    Weights keep what the optimizer remembers of them when they move; those at the places ``fresh`` start anew.
    """
    for key, tensor, fresh_value in _per_weight(optimizer, parameter):
        optimizer.state[parameter][key] = gather_with_fill(tensor, origin, fresh, fresh_value)


@torch.no_grad()
def gather_with_fill(tensor: Tensor, origin: Tensor, fresh: Tensor, fresh_value: float) -> Tensor:
    """``tensor[origin]``, with ``fresh_value`` at the places ``fresh``; how many values there are may change."""
    if len(tensor) == 0:
        return tensor.new_full((len(origin),), fresh_value)
    return tensor[origin].index_fill_(0, fresh, fresh_value)


def _per_weight(optimizer: Optimizer, parameter: nn.Parameter) -> list[tuple[str, Tensor, float]]:
    """What is remembered of single weights: key, tensor, and what it starts with."""
    return [
        (key, value, _fresh_value(optimizer, parameter, key))
        for key, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor) and value.shape == parameter.shape and value.ndim > 0
    ]


@torch.no_grad()
def fill_(tensor: Tensor, positions: Tensor, value: float) -> None:
    """Set some row-major positions of a tensor, however it lies in memory."""
    positions = positions.to(tensor.device)
    if tensor.is_contiguous():
        tensor.view(-1).index_fill_(0, positions, value)
    else:
        tensor[torch.unravel_index(positions, tensor.shape)] = value


def keeps_momentum(optimizer: Optimizer) -> bool:
    """Whether an optimizer remembers past gradients of every weight."""
    return any("betas" in group or group.get("momentum", 0) > 0 for group in optimizer.param_groups)


def momentum(optimizer: Optimizer, parameter: nn.Parameter) -> Tensor | None:
    """The direction an optimizer remembers: its momentum, or for Adam ``m / (sqrt(v) + 1e-8)``."""
    state = optimizer.state.get(parameter, {})
    if "exp_avg" in state and "exp_avg_sq" in state:
        direction: Tensor = state["exp_avg"] / (state["exp_avg_sq"].sqrt() + 1e-8)
        return direction
    remembered: Tensor | None = state.get("exp_avg", state.get("momentum_buffer"))
    return remembered


def _fresh_value(optimizer: Optimizer, parameter: nn.Parameter, key: str) -> float:
    """Zero, but for the two optimizers of torch whose state starts elsewhere."""
    if isinstance(optimizer, Adagrad) and key == "sum":
        return float(_group(optimizer, parameter)["initial_accumulator_value"])
    if isinstance(optimizer, Rprop) and key == "step_size":
        return float(_group(optimizer, parameter)["lr"])
    return 0.0


def _group(optimizer: Optimizer, parameter: nn.Parameter) -> dict[str, Any]:
    for group in optimizer.param_groups:
        if any(held is parameter for held in group["params"]):
            return group
    raise LookupError("the optimizer does not hold this parameter")
