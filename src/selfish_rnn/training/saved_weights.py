"""Weights and optimizer states as they are saved: the same from either engine, and no larger than what exists.

A sparse matrix ``rnn.weight_ih_l0`` is saved as its existing weights in the order of their positions, under its name,
and which exist (:meth:`~selfish_rnn.topology.Topology.to_saved`), under ``rnn.weight_ih_l0.mask``. Everything else is
saved as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from selfish_rnn.engine.packed_weight import PackedWeight, packed_weights
from selfish_rnn.engine.packing import put_packed
from selfish_rnn.errors import UserError
from selfish_rnn.sparsifier.weights import SparseWeight
from selfish_rnn.system import give_back_reused_memory
from selfish_rnn.topology import Topology

MASK = ".mask"

Model = TypeVar("Model", bound=nn.Module)


def named_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor | PackedWeight]]:
    """Every parameter, buffer and packed weight under its first name, in the names of the model before packing."""
    yield from packed_weights(model).items()
    yield from _dense_tensors(model)


def _dense_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    inside = {id(tensor) for weight in packed_weights(model).values() for tensor in (weight.values, weight.index)}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if id(tensor) not in inside:
            yield name, tensor


def portable_weights(model: nn.Module, sparse: Sequence[SparseWeight]) -> dict[str, Tensor]:
    """The weights of a model as they are saved; ``sparse`` are those of its sparsifier."""
    by_name = {weight.name: weight for weight in sparse if weight.count < weight.size}
    saved: dict[str, Tensor] = {}
    for name, tensor in named_tensors(model):
        if name in by_name:
            weight = by_name[name]
            saved[name] = weight.gather(weight.parameter.detach())
            saved[name + MASK] = weight.topology.to_saved()
            give_back_reused_memory()
        else:
            saved[name] = tensor.to_dense().detach()
    return saved


@torch.no_grad()
def load_portable_weights(model: nn.Module, saved: Mapping[str, Tensor], source: str) -> None:
    """Put saved weights into a model of the same shape, packed or not; ``source`` is named if they do not fit."""
    _fitting_shapes(model, saved, source)
    for name, weight in packed_weights(model).items():
        weight.assign(_positions(saved, name, weight.shape), saved[name].flatten())
    for name, tensor in _dense_tensors(model):
        tensor.copy_(_dense(saved, name, tuple(tensor.shape)))


def restore(make: Callable[[], Model], saved: Mapping[str, Tensor], source: str, *, packed: bool) -> Model:
    """A model that ``make`` makes, with saved weights; with ``packed`` no sparse matrix is ever made dense."""
    sparse = [name.removesuffix(MASK) for name in saved if name.endswith(MASK)]
    with torch.device("meta"):  # no memory before the shapes fit: a file may ask for any
        model = make()
    shapes = _fitting_shapes(model, saved, source)
    if not packed or not sparse:
        model = make()
        load_portable_weights(model, saved, source)
        return model
    model = put_packed(model, {name: partial(_packed_weight, saved, name, shapes[name]) for name in sparse})
    for prefix, module in model.named_modules():
        for local, parameter in list(module.named_parameters(recurse=False)):
            if parameter.is_meta:
                name = f"{prefix}.{local}" if prefix else local
                setattr(module, local, nn.Parameter(_dense(saved, name, tuple(parameter.shape)).clone()))
    return model


def _packed_weight(
    saved: Mapping[str, Tensor], name: str, shape: tuple[int, ...], gate_rows: Sequence[int]
) -> PackedWeight:
    return PackedWeight(shape, _positions(saved, name, shape), saved[name], gate_rows)


def _dense(saved: Mapping[str, Tensor], name: str, shape: tuple[int, ...]) -> Tensor:
    """A whole matrix: of a weight that could not be packed, or was never sparse."""
    values = saved[name]
    if name + MASK in saved:
        values = values.new_zeros(math.prod(shape)).index_copy_(0, _positions(saved, name, shape), values.flatten())
    return values.view(shape)


def _fitting_shapes(model: nn.Module, saved: Mapping[str, Tensor], source: str) -> dict[str, tuple[int, ...]]:
    """The shapes of a model's tensors; saved weights that are not of these are refused."""
    shapes = {name: tuple(tensor.shape) for name, tensor in named_tensors(model)}
    names = {name.removesuffix(MASK) for name in saved}
    odd = (shapes.keys() ^ names) | {name for name in shapes.keys() & names if not _fits(saved, name, shapes[name])}
    if odd:
        raise UserError(f"{source} does not fit the model of config.yaml: they differ in {', '.join(sorted(odd))}")
    return shapes


def _fits(saved: Mapping[str, Tensor], name: str, shape: tuple[int, ...]) -> bool:
    if name in saved and not saved[name].is_floating_point():
        return False
    if name not in saved or name + MASK not in saved:
        return name in saved and saved[name].shape == shape
    try:
        return saved[name].shape == _positions(saved, name, shape).shape
    except (ValueError, TypeError, RuntimeError, IndexError):  # a mask that is none
        return False


def _positions(saved: Mapping[str, Tensor], name: str, shape: tuple[int, ...]) -> Tensor:
    if name + MASK in saved:
        return Topology.from_saved(saved[name + MASK], shape).positions
    return torch.arange(math.prod(shape))


def portable_optimizer(optimizer: Optimizer, model: nn.Module, sparse: Sequence[SparseWeight]) -> dict[str, Any]:
    """The state of an optimizer by the names of the weights; of sparse ones only that of existing weights."""
    state = optimizer.state_dict()
    names = _names(optimizer, model)
    entries = {names[number]: dict(entry) for number, entry in state["state"].items()}
    for weight in sparse:
        _change(entries, weight, tuple(weight.parameter.shape), weight.gather)
    return {**state, "state": entries}


def load_portable_optimizer(
    optimizer: Optimizer, saved: Mapping[str, Any], model: nn.Module, sparse: Sequence[SparseWeight]
) -> None:
    """Undo :func:`portable_optimizer`, for the same weights in either form."""
    entries = {name: dict(entry) for name, entry in saved["state"].items()}
    for weight in sparse:
        _change(entries, weight, (weight.count,), weight.scatter)
    state = {number: entries[name] for number, name in enumerate(_names(optimizer, model)) if name in entries}
    own = optimizer.state_dict()["param_groups"]
    groups = [{**group, "params": mine["params"]} for group, mine in zip(saved["param_groups"], own, strict=True)]
    optimizer.load_state_dict({**saved, "state": state, "param_groups": groups})


def _change(
    entries: dict[str, dict[str, Any]], weight: SparseWeight, shape: tuple[int, ...], form: Callable[[Tensor], Tensor]
) -> None:
    """Give what an optimizer keeps of every entry of a weight, which is of ``shape``, another form."""
    for key, value in entries.get(weight.name, {}).items():
        if isinstance(value, Tensor) and value.shape == shape:
            entries[weight.name][key] = form(value)


def without_masks(sparsifier: Mapping[str, Any]) -> dict[str, Any]:
    """The state of a sparsifier as it is saved beside :func:`portable_weights`, which have its masks already."""
    return {key: value for key, value in sparsifier.items() if key != "masks"}


def with_masks(sparsifier: Mapping[str, Any], saved: Mapping[str, Tensor]) -> dict[str, Any]:
    """Undo :func:`without_masks`; a matrix that is saved without a mask has all its weights."""
    if "shapes" not in sparsifier:  # one that has no masks
        return dict(sparsifier)
    masks = {
        name: saved[name + MASK] if name + MASK in saved else _every_position(shape)
        for name, shape in sparsifier["shapes"].items()
    }
    return {**sparsifier, "masks": masks}


def _every_position(shape: Sequence[int]) -> Tensor:
    return Topology.plain(shape, torch.arange(math.prod(shape))).to_saved()


def _names(optimizer: Optimizer, model: nn.Module) -> list[str]:
    """The name of each parameter of an optimizer, in its order."""
    names = {id(tensor): name for name, tensor in _dense_tensors(model)}
    names.update({id(weight.values): name for name, weight in packed_weights(model).items()})
    return [names[id(parameter)] for group in optimizer.param_groups for parameter in group["params"]]
