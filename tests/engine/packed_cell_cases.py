"""Cells with packed weights next to the same cells with dense ones."""

from __future__ import annotations

import copy
from typing import TypeVar, cast

import torch
from packed_cases import assert_close, assert_same_gradient, seeded, topology
from torch import Tensor, nn

from selfish_rnn.engine import PackedEmbedding, PackedLinear, PackedWeight
from selfish_rnn.engine.dense_gradients import dense_gradient, start_collecting, stop_collecting
from selfish_rnn.engine.parameters import plain
from selfish_rnn.engine.registry import counterpart
from selfish_rnn.sparsifier.selection import gate_layouts

Module = TypeVar("Module", bound=nn.Module)


def differentiable(weight: PackedWeight) -> Tensor:
    """Return the values as a plain tensor with a gradient: torch's checks know no subclasses."""
    return plain(weight.values.detach()).clone().requires_grad_()


def sparse_cell_(cell: Module, density: float, seed: int) -> Module:
    """Random parameters; most weights are zero, with every other seed all of one gate, whole rows and columns."""
    generator = seeded(seed)
    layouts = gate_layouts(cell)
    with torch.no_grad():
        for number, (name, parameter) in enumerate(cell.named_parameters()):
            parameter.uniform_(-0.5, 0.5, generator=generator).div_(max(parameter.shape[-1] / 8, 1) ** 0.5)
            if name in layouts:
                parameter.mul_(topology(*parameter.shape, density, seed + number))
                if (seed + number) % 2:
                    ranges = list(layouts[name].row_ranges())
                    _, first, stop = ranges[seed % len(ranges)]
                    parameter[first:stop] = 0
    return cell


def packed_cell(cell: Module) -> Module:
    """A copy that is packed, also where nothing is zero."""
    cell = copy.deepcopy(cell)
    rows = {name: [stop - first for _, first, stop in gates.row_ranges()] for name, gates in gate_layouts(cell).items()}
    weights = {name: PackedWeight.from_dense(cell.get_parameter(name), None, sizes) for name, sizes in rows.items()}
    return cast(Module, counterpart(cell, weights))


def pair(cell: Module, density: float, seed: int) -> tuple[Module, Module]:
    """The same cell packed, and dense in double precision."""
    sparse_cell_(cell, density, seed)
    return packed_cell(cell), cell.double()


def packed_model(model: Module, cells: list[str]) -> Module:
    """A copy with packed cells, and a packed embedding to which the output layer is tied."""
    model = copy.deepcopy(model)
    for name in cells:
        owner, _, last = name.rpartition(".")
        setattr(model.get_submodule(owner), last, packed_cell(model.get_submodule(name)))
    model.embedding = PackedEmbedding.from_dense(model.embedding)
    model.decoder = PackedLinear.from_dense(model.decoder, weight=model.embedding.weight)
    return model


def window(shape: tuple[int, int, int], hidden: int, states: int, seed: int) -> list[Tensor]:
    """Inputs and states that want gradients."""
    generator = seeded(seed)
    shapes = [shape, *[(shape[1], hidden)] * states]
    return [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]


def in_double(tensors: list[Tensor]) -> list[Tensor]:
    return [tensor.detach().double().requires_grad_() for tensor in tensors]


def backward(outputs: list[Tensor], seed: int) -> None:
    """From random gradients of all outputs."""
    generator = seeded(seed)
    gradients = [torch.randn(output.shape, generator=generator).to(output.dtype) for output in outputs]
    torch.autograd.backward(outputs, gradients)


def assert_same_parameters(packed: nn.Module, dense: nn.Module) -> None:
    """All parameters have the same gradients."""
    for name, parameter in dense.named_parameters():
        owner, _, last = name.rpartition(".")
        own = getattr(packed.get_submodule(owner), last)
        assert parameter.grad is not None, name
        if isinstance(own, PackedWeight):
            assert_same_gradient(own, parameter.grad, name)
        else:
            assert_close(own.grad, parameter.grad, name)


def assert_collects(packed: nn.Module, dense: nn.Module, run: object) -> None:
    """While its weights are collected, a packed cell leaves the dense gradient of every one; ``run`` goes back."""
    weights = {name: module for name, module in packed.named_modules() if isinstance(module, PackedWeight)}
    for weight in weights.values():
        start_collecting(weight)
    try:
        for cell in (packed, dense):
            run(cell)  # type: ignore[operator]
        for name, weight in weights.items():
            assert_close(dense_gradient(weight), dense.get_parameter(name).grad, name)
    finally:
        for weight in weights.values():
            stop_collecting(weight)
