"""Weights and optimizer states as they are saved: the same from either engine, and no larger than what exists.

A sparse matrix ``rnn.weight_ih_l0`` is saved as its existing weights in the order of their positions, under its name,
and its mask as bits, under ``rnn.weight_ih_l0.mask``. Everything else is saved as it is.
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
from selfish_rnn.topology import GateLayout, Topology

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
            saved[name + MASK] = weight.topology.to_bits()
        else:
            saved[name] = tensor.to_dense().detach()
    return saved


@torch.no_grad()
def load_portable_weights(model: nn.Module, saved: Mapping[str, Tensor], source: str) -> None:
    """Put saved weights into a model of the same shape, packed or not; ``source`` is named if they do not fit."""
    shapes = {name: tuple(tensor.shape) for name, tensor in named_tensors(model)}
    _refuse_odd(shapes, saved, source)
    for name, weight in packed_weights(model).items():
        positions = _positions(saved, name, weight.shape)
        assert positions is not None
        weight.assign(positions, saved[name].flatten())
    for name, tensor in _dense_tensors(model):
        if name + MASK in saved:
            positions = _positions(saved, name, tuple(tensor.shape))
            assert positions is not None
            tensor.zero_().view(-1)[positions.to(tensor.device)] = saved[name].to(tensor.device)
        else:
            tensor.copy_(saved[name].view_as(tensor))


def restore(make: Callable[[], Model], saved: Mapping[str, Tensor], source: str, *, packed: bool) -> Model:
    """A model that ``make`` makes, with saved weights; with ``packed`` no sparse matrix is ever made dense."""
    sparse = [name.removesuffix(MASK) for name in saved if name.endswith(MASK)]
    if not packed or not sparse:
        model = make()
        load_portable_weights(model, saved, source)
        return model
    with torch.device("meta"):
        model = make()
    shapes = {name: tuple(tensor.shape) for name, tensor in named_tensors(model)}
    _refuse_odd(shapes, saved, source)
    makers = {name: partial(_packed_weight, saved, name, shapes[name]) for name in sparse}
    model = put_packed(model, makers)
    for prefix, module in model.named_modules():
        for local, parameter in list(module.named_parameters(recurse=False)):
            if parameter.is_meta:
                setattr(module, local, nn.Parameter(_dense(saved, f"{prefix}.{local}" if prefix else local, parameter)))
    return model


def _packed_weight(
    saved: Mapping[str, Tensor], name: str, shape: tuple[int, ...], gate_rows: Sequence[int]
) -> PackedWeight:
    positions = _positions(saved, name, shape)
    assert positions is not None
    return PackedWeight(shape, positions, saved[name], gate_rows)


def _dense(saved: Mapping[str, Tensor], name: str, like: Tensor) -> Tensor:
    """A whole matrix: of a weight that could not be packed, or was never sparse."""
    positions = _positions(saved, name, tuple(like.shape))
    assert positions is not None
    return torch.zeros(like.numel()).index_copy_(0, positions, saved[name].flatten()).view(like.shape)


def _refuse_odd(shapes: Mapping[str, tuple[int, ...]], saved: Mapping[str, Tensor], source: str) -> None:
    names = {name.removesuffix(MASK) for name in saved}
    odd = sorted(shapes.keys() ^ names)
    for name in shapes.keys() & names:
        positions = _positions(saved, name, shapes[name])
        if name not in saved or positions is None or saved[name].numel() != len(positions):
            odd.append(name)
    if odd:
        raise UserError(f"{source} does not fit the model of config.yaml: they differ in {', '.join(sorted(odd))}")


def _positions(saved: Mapping[str, Tensor], name: str, shape: tuple[int, ...]) -> Tensor | None:
    """The positions of the saved weights of a matrix; nothing if they are not of one of this shape."""
    if name + MASK not in saved:
        return torch.arange(math.prod(shape)) if name in saved and saved[name].shape == shape else None
    try:
        return Topology.from_bits(saved[name + MASK], shape).positions
    except ValueError:
        return None


def portable_optimizer(optimizer: Optimizer, model: nn.Module, sparse: Sequence[SparseWeight]) -> dict[str, Any]:
    """The state of an optimizer by the names of the weights; of sparse ones only that of existing weights."""
    state = optimizer.state_dict()
    names = _names(optimizer, model)
    by_name = {weight.name: weight for weight in sparse}
    return {
        **state,
        "state": {
            names[number]: {
                key: by_name[names[number]].gather(value)
                if names[number] in by_name and _is_of_weight(value, by_name[names[number]])
                else value
                for key, value in entries.items()
            }
            for number, entries in state["state"].items()
        },
    }


def load_portable_optimizer(
    optimizer: Optimizer, saved: Mapping[str, Any], model: nn.Module, sparse: Sequence[SparseWeight]
) -> None:
    """Undo :func:`portable_optimizer`, for the same weights in either form."""
    names = _names(optimizer, model)
    by_name = {weight.name: weight for weight in sparse}
    state = {
        number: {
            key: by_name[name].scatter(value)
            if name in by_name and isinstance(value, Tensor) and value.shape == (by_name[name].count,)
            else value
            for key, value in saved["state"][name].items()
        }
        for number, name in enumerate(names)
        if name in saved["state"]
    }
    own = optimizer.state_dict()["param_groups"]
    groups = [{**group, "params": mine["params"]} for group, mine in zip(saved["param_groups"], own, strict=True)]
    optimizer.load_state_dict({**saved, "state": state, "param_groups": groups})


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
    return Topology.from_mask(torch.ones(*shape, dtype=torch.bool), GateLayout.single(shape[0])).to_bits()


def _is_of_weight(value: Any, weight: SparseWeight) -> bool:
    return isinstance(value, Tensor) and value.ndim > 0 and value.shape == weight.parameter.shape


def _names(optimizer: Optimizer, model: nn.Module) -> list[str]:
    """The name of each parameter of an optimizer, in its order."""
    names = {id(tensor): name for name, tensor in _dense_tensors(model)}
    names.update({id(weight.values): name for name, weight in packed_weights(model).items()})
    return [names[id(parameter)] for group in optimizer.param_groups for parameter in group["params"]]
