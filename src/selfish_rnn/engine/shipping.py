"""Anyone's packed model in one file, and back."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, nn

from selfish_rnn.engine.int8.quantized_weight import QuantizedWeight, quantized_weights
from selfish_rnn.engine.int8.shipping import MASK, SCALE, put_int8
from selfish_rnn.engine.packed_weight import PackedWeight, packed_weights
from selfish_rnn.engine.packing import put_packed
from selfish_rnn.errors import UserError
from selfish_rnn.files import load_tensors, save_tensors

FORMAT = "packed model 1"

Model = TypeVar("Model", bound=nn.Module)


def save_packed(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Write a model with packed or int8 weights to one safetensors file with a checksum; see :func:`load_packed`.

    Of a packed matrix only the existing weights and where they are is written, of a tied one that once; everything else
    in the ``state_dict`` as it is.
    """
    tensors: dict[str, Tensor] = {}
    first_names: dict[int, str] = {}
    same: dict[str, str] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} in the state_dict is a {type(tensor).__name__}: only tensors can be saved")
        first = first_names.setdefault(id(tensor), name)
        if first == name:
            tensors[name] = tensor
        else:
            same[name] = first
    small = quantized_weights(model)
    weights: dict[str, PackedWeight | QuantizedWeight] = {**packed_weights(model), **small}
    if not weights:
        raise ValueError("the model has no packed weights: pack it, and save what pack returns")
    shapes = {name: weight.shape for name, weight in weights.items()}
    about = {"shapes": json.dumps(shapes), "same": json.dumps(same), "precision": "int8" if small else "float32"}
    save_tensors(path, tensors, {"format": FORMAT, **about})


def load_packed(make: Callable[[], Model], path: str | os.PathLike[str]) -> Model:
    """A packed model from a file that :func:`save_packed` wrote.

    ::

        save_packed(model, "tagger.safetensors")
        model = load_packed(lambda: Tagger(words=10_000), "tagger.safetensors")   # in another process

    A model that was given to :func:`quantize` before it was saved comes back in int8, for inference. ``make`` makes the
    model as it was before packing: a class or a function. What it draws or sets in parameters does not matter. A large
    model may be made on the meta device, so that no matrix is ever whole:
    ``with torch.device("meta"): return Tagger(words=10_000)``. Nothing in the file is executed, and every index is
    checked before a kernel follows it.
    """
    if isinstance(make, nn.Module):
        raise TypeError("load_packed makes the model itself: give its class, or a function, not a model")
    tensors, metadata = load_tensors(path)
    if metadata.get("format") != FORMAT:
        raise UserError(f"{path} is no packed model: save_packed writes such files")
    try:
        shapes = {name: tuple(shape) for name, shape in json.loads(metadata["shapes"]).items()}
        same: dict[str, str] = json.loads(metadata["same"])
        state = {**tensors, **{name: tensors[first] for name, first in same.items()}}
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{path} is damaged: it does not say which tensors its weights are") from error
    model = make()
    held = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    for name, shape in shapes.items():
        if held.get(name) != shape:
            wrong = f"{name:.200} of shape {shape!s:.50}"  # a file may say anything
            raise UserError(f"{path} has {wrong}, the model that is made has {held.get(name, 'none')}")
    model = put_packed(model, {name: partial(_no_weights, shape) for name, shape in shapes.items()})
    left = sorted(shapes.keys() - packed_weights(model).keys())
    if left:
        raise UserError(f"{path} has packed weights where the model that is made cannot be packed: {', '.join(left)}")
    _materialise(model)
    if metadata.get("precision") == "int8":
        model = put_int8(model, _int8_parts(state, shapes), str(path))
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise UserError(f"{path} does not fit the model that is made: {str(error)[:500]}") from error
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_meta:
            raise UserError(f"{name} is not in {path} and was made on the meta device: make the model on the CPU")
    return model


def _int8_parts(state: Mapping[str, Tensor], names: Iterable[str]) -> dict[str, Tensor]:
    """What the state holds of these int8 matrices, under the names that :func:`put_int8` looks for."""
    kinds = (("", ".values"), (MASK, MASK), (SCALE, SCALE))
    parts = {name + part: name + kept for name in names for part, kept in kinds}
    return {part: state[kept] for part, kept in parts.items() if kept in state}


def _no_weights(shape: tuple[int, int], gate_rows: list[int]) -> PackedWeight:
    return PackedWeight(shape, torch.empty(0, dtype=torch.int64), gate_rows=gate_rows)


def _materialise(model: nn.Module) -> None:
    """Put what will be loaded from the meta device on the CPU; what is one parameter stays one."""
    made: dict[int, Tensor] = {}
    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None and parameter.is_meta:
                empty = torch.empty_like(parameter, device="cpu")
                setattr(module, name, made.setdefault(id(parameter), nn.Parameter(empty, parameter.requires_grad)))
        for name, buffer in list(module._buffers.items()):
            if buffer is not None and buffer.is_meta and name not in module._non_persistent_buffers_set:
                setattr(module, name, made.setdefault(id(buffer), torch.empty_like(buffer, device="cpu")))
