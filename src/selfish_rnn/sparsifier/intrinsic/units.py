"""Recurrent layers as units: which have a say in the output, and a model without the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

import torch
from torch import Tensor, nn

Model = TypeVar("Model", bound=Any)


@dataclass(frozen=True)
class UnitPart:
    """The share that the units of a layer have in one parameter.

    Along ``axis`` the parameter is ``blocks`` times as long as the layer has units, and in every block the k-th entry
    is of unit k: of an LSTM's 4H x n matrix unit k has the rows k, H + k, 2H + k and 3H + k. ``reads`` marks the
    columns through which something reads the unit's output; a unit that nothing reads can be left out.
    """

    parameter: nn.Parameter
    axis: int
    blocks: int = 1
    reads: bool = False


@dataclass(frozen=True)
class UnitLayer:
    """A recurrent layer as units that can be left out one by one, each with all the weights that belong to it.

    ``parts`` makes the groups of intrinsic sparse structures (Wen et al. 2018); the ``biases`` of a unit go with it
    but are in no group.
    """

    name: str
    size: int
    parts: tuple[UnitPart, ...]
    biases: tuple[UnitPart, ...] = ()


@runtime_checkable
class DescribesUnits(Protocol):
    """A model that says what its units are, and can be made again with fewer of them."""

    def unit_layers(self) -> list[UnitLayer]: ...

    def resized(self, sizes: Sequence[int]) -> Any: ...


def squared_norms(layers: Sequence[UnitLayer]) -> list[Tensor]:
    """For every layer the sum of squares of each unit's group.

    A weight from a unit to itself is in a row and in a column of its group and counts once.
    """
    totals = [layer.parts[0].parameter.new_zeros(layer.size) for layer in layers]
    shares: dict[nn.Parameter, list[tuple[int, UnitPart]]] = {}
    for index, layer in enumerate(layers):
        for part in layer.parts:
            shares.setdefault(part.parameter, []).append((index, part))
    # By parameter, so that only one matrix of squares exists at a time.
    for parameter, sharing in shares.items():
        squares = parameter.square()
        blocks_of_rows = {index: part.blocks for index, part in sharing if part.axis == 0}
        for index, part in sharing:
            size = layers[index].size
            totals[index] = totals[index] + squares.sum(1 - part.axis).view(part.blocks, size).sum(0)
            if part.axis == 1 and index in blocks_of_rows:
                cells = squares.view(blocks_of_rows[index], size, part.blocks, size)
                totals[index] = totals[index] - cells.diagonal(dim1=1, dim2=3).sum((0, 1))
    return totals


@torch.no_grad()
def live_units(layers: Sequence[UnitLayer], threshold: float = 0.0) -> list[Tensor]:
    """For every layer which of its units (bool) the model's output depends on.

    A unit is live if the output layer reads it or a live unit does; weights below ``threshold`` do not count. Units
    that only read each other are as dead as those that nothing reads.
    """
    owners = {
        part.parameter: (index, part.blocks)
        for index, layer in enumerate(layers)
        for part in layer.parts
        if part.axis == 0
    }
    live = [torch.zeros(layer.size, dtype=torch.bool) for layer in layers]
    readings = list[tuple[int, int, Tensor]]()
    for index, layer in enumerate(layers):
        for part in layer.parts:
            if not part.reads:
                continue
            read = _above(part.parameter, threshold) != 0
            if part.parameter in owners:
                reader, blocks = owners[part.parameter]
                readings.append((index, reader, read.view(blocks, -1, layer.size).any(0).cpu()))
            else:
                live[index] |= read.any(0).cpu()
    found = True
    while found:
        found = False
        for index, reader, read in readings:
            more = read[live[reader]].any(0) & ~live[index]
            live[index] |= more
            found = found or bool(more.any())
    return live


@torch.no_grad()
def shrink(model: Model, *, threshold: float = 0.0) -> Model:
    """A physically smaller dense network with the same outputs: the model without the units that have no say.

    In evaluation, for any tokens and from the zero state, the outputs are equal up to the order of summation. At least
    one unit of every layer stays. The averages of an averaging optimizer are hardly ever exactly zero: with a
    ``threshold`` the outputs are those of the model whose grouped weights below it are zero.

    >>> smaller = shrink(model)
    >>> smaller(tokens)[0]  # as model(tokens)[0]
    """
    layers = describing_units(model).unit_layers()
    kept = [_indices(units) for units in live_units(layers, threshold)]
    # Fresh weights are drawn and thrown away: the caller's random numbers are not to depend on it.
    with torch.random.fork_rng(devices=[]):
        smaller = model.resized([len(units) for units in kept])
    reference = next(model.parameters())
    smaller = cast(Model, smaller.to(reference.device, reference.dtype).train(model.training))
    cuts: dict[nn.Parameter, list[tuple[int, Tensor]]] = {}
    for layer, units in zip(layers, kept, strict=True):
        for part in (*layer.parts, *layer.biases):
            starts = layer.size * torch.arange(part.blocks).unsqueeze(1)
            cuts.setdefault(part.parameter, []).append((part.axis, (starts + units).flatten()))
    grouped = {part.parameter for layer in layers for part in layer.parts}
    for old, new in zip(model.parameters(), smaller.parameters(), strict=True):
        value = _above(old, threshold) if old in grouped else old.detach()
        for axis, positions in cuts.get(old, ()):
            value = value.index_select(axis, positions.to(value.device))
        if value.shape != new.shape:
            raise RuntimeError(f"unit_layers() leaves {tuple(value.shape)} where resized() has {tuple(new.shape)}")
        new.copy_(value)
    return smaller


def describing_units(model: Model) -> Model:
    if not isinstance(model, DescribesUnits):
        raise TypeError(
            f"intrinsic sparse structures need a model that describes its units, with unit_layers() and resized(); "
            f"{type(model).__name__} does not"
        )
    return model


def _indices(units: Tensor) -> Tensor:
    return units.nonzero().flatten() if units.any() else torch.tensor([0])


def _above(weight: Tensor, threshold: float) -> Tensor:
    weight = weight.detach()
    return weight.masked_fill(weight.abs() < threshold, 0.0) if threshold else weight
