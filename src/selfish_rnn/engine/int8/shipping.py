"""Int8 weights as they are shipped: the same on every processor, and checked before a kernel follows them.

A sparse matrix ``rnn.weight_ih_l0`` is there as its int8 weights in the order of their positions, under its name, its
mask as bits under ``rnn.weight_ih_l0.mask`` and the scale of every row under ``rnn.weight_ih_l0.scale``. Everything
else is in single precision, as it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from torch import Tensor, nn

from selfish_rnn.engine.int8.quantized_weight import QuantizedWeight, check_weights, rounded
from selfish_rnn.engine.packed_weight import PackedWeight, packed_weights
from selfish_rnn.engine.registry import put_quantized
from selfish_rnn.errors import UserError
from selfish_rnn.topology import Topology

MASK, SCALE = ".mask", ".scale"

Shapes = Mapping[str, tuple[int, ...]]
Model = TypeVar("Model", bound=nn.Module)


def int8_tensors(saved: Mapping[str, Tensor], shapes: Shapes) -> dict[str, Tensor]:
    """Sparse matrices in single precision (values and mask) to int8 (values, mask and scale)."""
    made = dict(saved)
    for name in _sparse(saved):
        positions = Topology.from_saved(saved[name + MASK], shapes[name]).positions
        kept, made[name], made[name + SCALE] = rounded(shapes[name], positions, saved[name].flatten())
        made[name + MASK] = Topology.plain(shapes[name], kept).to_bits()
    return made


def float_tensors(saved: Mapping[str, Tensor], shapes: Shapes, source: str) -> dict[str, Tensor]:
    """The inverse, but for the rounding; ``source`` is named where something is wrong."""
    made = {name: tensor for name, tensor in saved.items() if not name.endswith(SCALE)}
    for name in _sparse(saved):
        positions, values, scale = _checked(saved, name, shapes.get(name, ()), source)
        made[name] = values * scale[positions // shapes[name][1]]
    return made


def put_int8(model: Model, saved: Mapping[str, Tensor], source: str) -> Model:
    """Put int8 weights in the place of the packed weights of their names; the model is then for inference."""
    together = sum(saved[name].numel() for name in _sparse(saved) if name in saved)
    names = {id(weight): name for name, weight in packed_weights(model).items()}

    def in_int8(weight: PackedWeight) -> QuantizedWeight:
        return QuantizedWeight(weight.shape, *_checked(saved, names[id(weight)], weight.shape, source), together)

    return put_quantized(model, in_int8)


def _sparse(saved: Mapping[str, Tensor]) -> list[str]:
    return [name.removesuffix(MASK) for name in saved if name.endswith(MASK)]


def _checked(
    saved: Mapping[str, Tensor], name: str, shape: tuple[int, ...], source: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Positions, values and scale of an int8 matrix."""
    missing = [part for part in (name, name + MASK, name + SCALE) if part not in saved]
    if missing or len(shape) != 2:
        raise UserError(f"{source} does not fit its model: {', '.join(missing) or name} is missing there")
    values, scale = saved[name], saved[name + SCALE]
    try:
        positions = Topology.from_bits(saved[name + MASK], shape).positions
        check_weights((shape[0], shape[1]), positions, values, scale)
    except ValueError as error:
        raise UserError(f"{source} is damaged: {name}: {error}") from error
    return positions, values, scale
