"""The parameters of packed modules: how they are drawn, and go from dense modules and back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import nn

from selfish_rnn.engine.inference.quantized_weight import QuantizedWeight
from selfish_rnn.engine.operators.recurrent import GATES
from selfish_rnn.engine.packed_weight import PackedWeight
from selfish_rnn.engine.registry import StandIn
from selfish_rnn.topology.sampling import sample

Dense = TypeVar("Dense", bound=nn.Module)
Self = TypeVar("Self", bound="PackedCells[Any]")


class PackedCells(StandIn, Generic[Dense]):
    """What packed recurrent layers and cells have in common; arguments, names and shapes are those of torch's."""

    kind: ClassVar[Any]
    """The class of torch it stands for."""

    cell: str
    """The name of the cell among the kernels."""

    arguments: ClassVar[Sequence[str]]
    """Those that torch's module is made with, and keeps under the same names."""

    hidden_size: int

    def reset_parameters(self) -> None:
        reset_uniform(self, self.hidden_size)

    @classmethod
    def from_dense(cls: type[Self], dense: Any, **weights: PackedWeight) -> Self:
        """With the non-zero weights of a dense module, or with ``weights`` in the place of those of their names."""
        if not isinstance(dense, cls.kind):
            raise TypeError(f"{cls.__name__} is made from {cls.kind.__name__}, not from {type(dense).__name__}")
        packed = cls.__new__(cls)
        nn.Module.__init__(packed)
        for name in cls.arguments:
            setattr(packed, name, getattr(dense, name))
        take_parameters(packed, dense, (dense.hidden_size,) * GATES[packed.cell], weights)
        return packed.train(dense.training)

    def to_dense(self) -> Dense:
        """torch's module with zeros where no weight exists."""
        dense: Dense = self.kind(**{name: getattr(self, name) for name in self.arguments})
        return give_parameters(self, dense)


def reset_uniform(module: nn.Module, state: int, inputs: int | None = None) -> None:
    """Draw all parameters from U(±1/√n), as torch does: n is ``inputs`` for ``weight_input`` and ``bias_input``.

    Where ``inputs`` is not given, n is ``state`` for all.
    """
    for name, parameter in module.named_parameters():
        width = state if inputs is None or not name.startswith(("weight_input", "bias_input")) else inputs
        nn.init.uniform_(parameter, -1 / math.sqrt(width), 1 / math.sqrt(width))


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
    for name, parameter in dense._parameters.items():
        if parameter is None or not name.startswith("weight"):
            copied = None if parameter is None else nn.Parameter(parameter.detach().clone(), parameter.requires_grad)
            packed.register_parameter(name, copied)
            continue
        rows = (parameter.shape[0],) if name.startswith("weight_hr") else gates
        given = weights.get(name)
        if given is not None and (given.shape != parameter.shape or given.gate_rows != rows):
            raise ValueError(f"{name} needs a packed weight of {tuple(parameter.shape)} with gates of {rows}")
        packed.add_module(name, PackedWeight.from_dense(parameter, None, rows) if given is None else given)


@torch.no_grad()
def give_parameters(packed: nn.Module, dense: Dense) -> Dense:
    """Give a dense module the parameters and the mode of a packed one, with zeros where no weight exists."""
    for name, parameter in dense.named_parameters():
        own = getattr(packed, name)
        parameter.copy_(own.to_dense() if isinstance(own, PackedWeight | QuantizedWeight) else own)
    return dense.train(packed.training)
