"""The parameters of packed modules: how they are drawn, and go from dense modules and back."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from selfish_rnn.engine.inference.quantized_weight import QuantizedWeight
from selfish_rnn.engine.packed_weight import PackedWeight
from selfish_rnn.topology.sampling import sample


def random_weight(
    shape: tuple[int, int], sparsity: float, generator: torch.Generator | None, gate_rows: tuple[int, ...] | None = None
) -> PackedWeight:
    """Weights at random positions, all zero."""
    if not 0 <= sparsity < 1:
        raise ValueError(f"sparsity must be at least 0 and less than 1, got {sparsity}")
    size = shape[0] * shape[1]
    positions = sample(size, round((1 - sparsity) * size), generator or torch.default_generator)
    return PackedWeight(shape, positions, gate_rows=gate_rows)


def take_parameters(
    packed: nn.Module, dense: nn.Module, gates: tuple[int, ...], weights: Mapping[str, PackedWeight]
) -> None:
    """Give a packed module the parameters of a dense one; its matrices packed, or ``weights`` in their place."""
    for name, parameter in dense.named_parameters():
        if not name.startswith("weight"):
            packed.register_parameter(name, nn.Parameter(parameter.detach().clone()))
            continue
        rows = (parameter.shape[0],) if name.startswith("weight_hr") else gates
        given = weights.get(name)
        if given is not None and (given.shape != parameter.shape or given.gate_rows != rows):
            raise ValueError(f"{name} needs a packed weight of {tuple(parameter.shape)} with gates of {rows}")
        packed.add_module(name, PackedWeight.from_dense(parameter, None, rows) if given is None else given)


@torch.no_grad()
def give_parameters(packed: nn.Module, dense: nn.Module) -> None:
    """Give a dense module the parameters of a packed one, with zeros where no weight exists."""
    for name, parameter in dense.named_parameters():
        own = getattr(packed, name)
        parameter.copy_(own.to_dense() if isinstance(own, PackedWeight | QuantizedWeight) else own)
