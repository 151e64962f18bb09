"""Saved weights: the same from either engine, and no larger than the weights that exist.

The tensors of a sparse matrix are those of :mod:`selfish_rnn.topology.layout`, under the name of the dense parameter.
All other tensors keep their names and shapes. A tied weight is saved once, under its first name.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from selfish_rnn.engine.int8.quantized_weight import QuantizedWeight, rounded
from selfish_rnn.engine.packed_weight import PackedWeight, packed_weights
from selfish_rnn.engine.packing import put_packed
from selfish_rnn.engine.parameters import ORDERS
from selfish_rnn.engine.registry import put_quantized
from selfish_rnn.errors import UserError
from selfish_rnn.files import load_tensors, save_tensors
from selfish_rnn.sparsifier.weights import SparseWeight
from selfish_rnn.system import trim_if_releasing
from selfish_rnn.topology import Topology
from selfish_rnn.topology.layout import (
    SCALES,
    VALUES,
    Shape,
    StoredMatrix,
    describe_layout,
    key,
    read_shapes,
    read_sparse,
    sparse_tensors,
    stored_keys,
)

FORMAT = "packed model 2"

Model = TypeVar("Model", bound=nn.Module)
Stored: TypeAlias = Tensor | PackedWeight | QuantizedWeight

_SHOWN = 5
"""Number of differences that an error lists."""


def named_tensors(model: nn.Module) -> Iterator[tuple[str, Stored]]:
    """Yield every parameter, persistent buffer, packed and int8 weight, in the names of the model before packing."""
    seen: set[int] = set()
    for prefix, module in model.named_modules():
        members: dict[str, Stored] = {"": module} if isinstance(module, (PackedWeight, QuantizedWeight)) else {}
        if not members:
            transient = module._non_persistent_buffers_set
            buffers = {name: buffer for name, buffer in module._buffers.items() if name not in transient}
            members = {name: member for name, member in {**module._parameters, **buffers}.items() if member is not None}
        for name, member in members.items():
            if id(member) not in seen:
                seen.add(id(member))
                yield ".".join(part for part in (prefix, name) if part), member


@dataclass(frozen=True, eq=False)
class SavedWeights:
    """Weights of a model as they are saved: tensors by name, and the shapes of the matrices that are sparse."""

    tensors: Mapping[str, Tensor]
    shapes: Mapping[str, Shape]

    @classmethod
    def of(cls, model: nn.Module, sparse: Sequence[SparseWeight] = ()) -> SavedWeights:
        """Return the weights of a model; ``sparse`` are those of its sparsifier.

        A matrix of the sparsifier that has all its weights is saved like a dense one.
        """
        by_name = {weight.name: weight for weight in sparse}
        tensors: dict[str, Tensor] = {}
        shapes: dict[str, Shape] = {}
        for name, stored in named_tensors(model):
            weight = by_name.get(name)
            if weight is not None and weight.count < weight.size:
                shapes[name] = weight.shape
                tensors |= sparse_tensors(name, weight.topology, weight.gather(weight.parameter.detach()))
                trim_if_releasing()
            elif weight is not None or isinstance(stored, Tensor):
                tensors[name] = stored.to_dense().detach()
            else:
                shapes[name] = stored.shape
                tensors |= stored.tensors(name)
        return cls(tensors, shapes)

    @classmethod
    def read(cls, tensors: Mapping[str, Tensor], metadata: Mapping[str, str], source: str) -> SavedWeights:
        """Return the weights in a file called ``source``, with the shapes in its metadata."""
        try:
            return cls(tensors, read_shapes(metadata))
        except ValueError as error:
            raise UserError(f"{source} {error}") from None

    @property
    def metadata(self) -> dict[str, str]:
        """Metadata of a file that holds the tensors."""
        return describe_layout(self.shapes)

    @property
    def int8(self) -> bool:
        """True if a sparse matrix has int8 values."""
        return any(key(name, SCALES) in self.tensors for name in self.shapes)

    def topologies(self) -> dict[str, Tensor]:
        """Return the positions or bits of every sparse matrix."""
        names = (entry for name in self.shapes for entry in stored_keys(self.tensors, name))
        return {name: self.tensors[name] for name in names if not name.endswith((VALUES, SCALES))}

    def quantized(self) -> SavedWeights:
        """Return the same weights with int8 values; those that round to zero are dropped."""
        tensors = dict(self.tensors)
        for name, shape in self.shapes.items():
            matrix = read_sparse(self.tensors, name, shape)
            for entry in stored_keys(self.tensors, name):
                del tensors[entry]
            positions, values, scales = rounded(shape, matrix.positions, matrix.values)
            tensors |= sparse_tensors(name, Topology.plain(shape, positions), values, scales)
        return SavedWeights(tensors, self.shapes)

    def dense_names(self) -> set[str]:
        """Return the names of all tensors that belong to no sparse matrix."""
        return self.tensors.keys() - {entry for name in self.shapes for entry in stored_keys(self.tensors, name)}

    def matrix(self, name: str, shape: Shape) -> StoredMatrix:
        """Return a matrix by its weights; of a matrix that is saved dense all exist."""
        if name in self.shapes:
            return read_sparse(self.tensors, name, shape)
        return StoredMatrix(torch.arange(math.prod(shape)), self.tensors[name].flatten(), None)

    def floats(self, name: str, shape: Shape) -> tuple[Tensor, Tensor]:
        """Return positions and values of a matrix in floating point."""
        positions, values, scales = self.matrix(name, shape)
        return positions, values if scales is None else values * scales[positions // math.prod(shape[1:])]

    def dense(self, name: str, shape: Shape) -> Tensor:
        """Return a tensor whole, with zeros where no weight exists."""
        if name not in self.shapes:
            return self.tensors[name]
        positions, values = self.floats(name, shape)
        return values.new_zeros(math.prod(shape)).index_copy_(0, positions, values).view(*shape)


@torch.no_grad()
def load_sparse(model: nn.Module, saved: SavedWeights, source: str) -> None:
    """Load saved weights into a model of the same shape: dense, masked, packed or int8.

    Nothing is changed if they do not fit. ``source`` is the name of the file in errors.
    """
    _check_fit(model, saved, source)
    for name, weight in named_tensors(model):
        if isinstance(weight, Tensor):
            weight.copy_(saved.dense(name, weight.shape))
        elif isinstance(weight, PackedWeight):
            weight.assign(*saved.floats(name, weight.shape))
        else:
            try:
                weight.assign(*saved.matrix(name, weight.shape))
            except ValueError as error:  # of the numbers themselves
                raise UserError(f"{source} is damaged: {name}: {error}") from error


def make_sparse(
    make: Callable[[], Model], saved: SavedWeights, source: str, *, packed: bool = True, int8: bool | None = None
) -> Model:
    """Return the model that ``make`` makes, with saved weights, which may be on the meta device before.

    With ``packed`` no sparse matrix is ever dense, if ``make`` uses the meta device. Modules that cannot be packed stay
    dense. int8 weights stay int8 in a packed model unless ``int8`` is false.
    """
    model = make()
    _check_fit(model, saved, source)  # before memory is used: a file may ask for any
    if packed and saved.shapes:
        model = put_packed(model, saved.shapes)
    _materialise(model)
    if packed and (saved.int8 if int8 is None else int8):
        weights = sum(len(saved.tensors[key(name, VALUES)]) for name in saved.shapes)
        model = put_quantized(model, partial(_no_int8_weights, weights))
    load_sparse(model, saved, source)
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_meta:
            raise UserError(f"{name} is not in {source} and was made on the meta device: make the model on the CPU")
    return model


def _no_int8_weights(together: int, weight: PackedWeight) -> QuantizedWeight:
    none, rows = torch.empty(0, dtype=torch.int64), weight.shape[0]
    return QuantizedWeight(weight.shape, none, none.to(torch.int8), torch.zeros(rows), together)


def _materialise(model: nn.Module) -> None:
    """Put what will be loaded from the meta device on the CPU; what is one parameter stays one."""
    replacements: dict[int, Tensor] = {}
    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None and parameter.is_meta:
                empty = torch.empty_like(parameter, device="cpu")
                setattr(
                    module, name, replacements.setdefault(id(parameter), nn.Parameter(empty, parameter.requires_grad))
                )
        for name, buffer in list(module._buffers.items()):
            if buffer is not None and buffer.is_meta and name not in module._non_persistent_buffers_set:
                setattr(module, name, replacements.setdefault(id(buffer), torch.empty_like(buffer, device="cpu")))


def _check_fit(model: nn.Module, saved: SavedWeights, source: str) -> None:
    """Raise an error unless the saved weights are those of a model with the same names, shapes and types."""
    ours = dict(named_tensors(model))
    theirs = saved.dense_names() | saved.shapes.keys()
    problems = [f"{name} is not in it" for name in ours if name not in theirs]
    problems += [f"{name} is not in the model" for name in theirs if name not in ours]
    problems += [problem for name in ours if name in theirs and (problem := _difference(saved, name, ours[name]))]
    if problems:
        more = f" and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        listed = "; ".join(f"{problem:.300}" for problem in sorted(problems)[:_SHOWN])  # a file may say anything
        raise UserError(f"{source} does not fit the model: {listed}{more}")


def _difference(saved: SavedWeights, name: str, ours: Stored) -> str | None:
    """Return how a saved tensor differs from the one in the model that it is for."""
    shape = tuple(ours.shape)
    if name not in saved.shapes:
        theirs, tensor = tuple(saved.tensors[name].shape), saved.tensors[name]
    else:
        theirs = tuple(saved.shapes[name])
        if theirs == shape:
            try:
                tensor = read_sparse(saved.tensors, name, shape).values
            except (ValueError, RuntimeError, IndexError) as error:
                return str(error)
    if theirs != shape:
        return f"{name} is {theirs} in it and {shape} in the model"
    dtype = torch.int8 if isinstance(ours, QuantizedWeight) else ours.dtype
    quantized = name in saved.shapes and tensor.dtype == torch.int8 and dtype.is_floating_point
    return None if tensor.dtype == dtype or quantized else f"{name} is {tensor.dtype} in it and {dtype} in the model"


def save_packed(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Write a model with packed or int8 weights to one safetensors file with a checksum; see :func:`load_packed`.

    Of a sparse matrix only the existing weights and their positions are written.
    """
    for name, module in model.named_modules():
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            raise TypeError(f"{name or type(module).__name__} has extra state: only tensors can be saved")
    saved = SavedWeights.of(model)
    if not saved.shapes:
        raise ValueError("the model has no packed weights: pack it, and save what pack returns")
    save_tensors(path, saved.tensors, {"format": FORMAT, **saved.metadata})


def load_packed(make: Callable[[], Model], path: str | os.PathLike[str]) -> Model:
    """Return a packed model from a file that :func:`save_packed` wrote.

    ::

        save_packed(model, "tagger.safetensors")
        model = load_packed(lambda: Tagger(words=10_000), "tagger.safetensors")   # in another process

    A model that was given to :func:`quantize` before it was saved comes back in int8, for inference. ``make`` makes the
    model as it was before packing: a class or a function. What it draws or sets in parameters does not matter. A large
    model may be made on the meta device, so that no matrix is ever whole:
    ``with torch.device("meta"): return Tagger(words=10_000)``. Nothing in the file is executed, and all of it is
    checked before it is used.
    """
    if isinstance(make, nn.Module):
        raise TypeError("load_packed makes the model itself: give its class, or a function, not a model")
    tensors, metadata = load_tensors(path)
    written = metadata.get("format", "")
    if written != FORMAT:
        if written.startswith("packed model"):
            raise UserError(f"{path} is a {written:.50}, this version reads a {FORMAT}: save the model again")
        raise UserError(f"{path} is not a packed model: save_packed writes such files")
    saved = SavedWeights.read(tensors, metadata, str(path))
    model = make_sparse(make, saved, str(path))
    sparse = {name for name, weight in named_tensors(model) if not isinstance(weight, Tensor)}
    dense = sorted(saved.shapes.keys() - sparse)
    if dense:
        raise UserError(f"{path} has packed weights where the model cannot be packed: {', '.join(dense)}")
    return model


def optimizer_state(optimizer: Optimizer, model: nn.Module, sparse: Sequence[SparseWeight]) -> dict[str, Any]:
    """Return the state of an optimizer by the names of the weights; of sparse ones only that of existing weights."""
    state = optimizer.state_dict()
    names = _parameter_names(optimizer, model)
    entries = {names[number]: dict(entry) for number, entry in state["state"].items()}
    for weight in sparse:
        _convert(entries, weight, tuple(weight.parameter.shape), weight.gather)
    groups = [{key: value for key, value in group.items() if key != ORDERS} for group in state["param_groups"]]
    return {**state, "state": entries, "param_groups": groups}


def load_optimizer_state(
    optimizer: Optimizer, saved: Mapping[str, Any], model: nn.Module, sparse: Sequence[SparseWeight]
) -> None:
    """Undo :func:`optimizer_state`, for the same weights in either form."""
    entries = {name: dict(entry) for name, entry in saved["state"].items()}
    for weight in sparse:
        _convert(entries, weight, (weight.count,), weight.scatter)
    names = _parameter_names(optimizer, model)
    state = {number: entries[name] for number, name in enumerate(names) if name in entries}
    ours = optimizer.state_dict()["param_groups"]
    groups = [
        {**group, "params": current["params"]} for group, current in zip(saved["param_groups"], ours, strict=True)
    ]
    optimizer.load_state_dict({**saved, "state": state, "param_groups": groups})


def _convert(
    entries: dict[str, dict[str, Any]], weight: SparseWeight, shape: tuple[int, ...], form: Callable[[Tensor], Tensor]
) -> None:
    """Convert every tensor of this shape in the entry of a weight."""
    for name, value in entries.get(weight.name, {}).items():
        if isinstance(value, Tensor) and value.shape == shape:
            entries[weight.name][name] = form(value)


def _parameter_names(optimizer: Optimizer, model: nn.Module) -> list[str]:
    """Return the name of each parameter of an optimizer, in its order."""
    names = {id(stored): name for name, stored in named_tensors(model) if isinstance(stored, Tensor)}
    names.update({id(weight.values): name for name, weight in packed_weights(model).items()})
    return [names[id(parameter)] for group in optimizer.param_groups for parameter in group["params"]]
