"""What optimizers remember of single weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Adagrad, Optimizer, Rprop


def forget(optimizer: Optimizer, parameter: nn.Parameter, positions: Tensor) -> None:
    """Start afresh, at some row-major positions, every state tensor of the shape of the parameter.

    Works for any optimizer: per-weight state is what has the parameter's shape.
    """
    state = optimizer.state.get(parameter, {})
    for key, value in state.items():
        if isinstance(value, Tensor) and value.shape == parameter.shape and value.ndim > 0:
            fresh = _fresh_value(optimizer, parameter, key)
            fill_(value, positions, fresh)


@torch.no_grad()
def fill_(tensor: Tensor, positions: Tensor, value: float) -> None:
    """Set some row-major positions of a tensor, however it lies in memory."""
    tensor[torch.unravel_index(positions.to(tensor.device), tensor.shape)] = value


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
