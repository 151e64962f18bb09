"""Storage layout of sparse matrices, the same in every file and ``state_dict``.

A sparse matrix ``NAME`` is stored as ``NAME.values`` and ``NAME.positions`` or ``NAME.bits``; int8 values have
``NAME.scales`` as well. The specification is ``docs/format.md``.
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from selfish_rnn.topology.gates import GateLayout
from selfish_rnn.topology.topology import Topology

VERSION = "1"
"""Version of the layout. It increases when files written before cannot be read any more."""

VALUES, POSITIONS, BITS, SCALES = ENDINGS = (".values", ".positions", ".bits", ".scales")

Shape = Sequence[int]


class StoredMatrix(NamedTuple):
    """Sparse matrix as it is stored: sorted positions (int64), values in their order, and scales of int8 values."""

    positions: Tensor
    values: Tensor
    scales: Tensor | None


def topology_tensors(name: str, topology: Topology) -> dict[str, Tensor]:
    """Return the positions of a matrix or its bits, whichever are smaller, under the name that tells them apart."""
    saved = topology.to_saved()
    return {key(name, BITS if saved.dtype == torch.uint8 else POSITIONS): saved}


def sparse_tensors(name: str, topology: Topology, values: Tensor, scales: Tensor | None = None) -> dict[str, Tensor]:
    """Return the tensors that store a matrix; ``values`` have the order of the positions."""
    tensors = {key(name, VALUES): values, **topology_tensors(name, topology)}
    return tensors if scales is None else {**tensors, key(name, SCALES): scales}


def key(name: str, ending: str) -> str:
    """Return the name of a tensor that stores a matrix; a matrix that is a whole ``state_dict`` has no name."""
    return f"{name}{ending}" if name else ending[1:]


def stored_keys(tensors: Container[str], name: str) -> list[str]:
    """Return the names of the tensors of a matrix that are there."""
    return [entry for entry in (key(name, ending) for ending in ENDINGS) if entry in tensors]


def read_topology(tensors: Mapping[str, Tensor], name: str, shape: Shape, gates: GateLayout | None = None) -> Topology:
    """Return the topology of a matrix of this shape.

    Raises:
        ValueError: the positions or bits are missing, of another matrix or damaged.
    """
    positions, bits = key(name, POSITIONS), key(name, BITS)
    if (positions in tensors) == (bits in tensors):
        raise ValueError(f"{'both' if bits in tensors else 'neither'} {positions} and {bits} are there: one is needed")
    stored = positions if positions in tensors else bits
    kinds = (torch.uint8,) if stored == bits else (torch.int32, torch.int64)
    if tensors[stored].dtype not in kinds or tensors[stored].ndim != 1:
        raise ValueError(f"{stored} must be flat and {' or '.join(map(str, kinds))}, it is {tensors[stored].dtype}")
    try:
        return Topology.from_saved(tensors[stored], tuple(shape), gates)
    except ValueError as error:
        raise ValueError(f"{stored}: {error}") from None


def read_sparse(tensors: Mapping[str, Tensor], name: str, shape: Shape) -> StoredMatrix:
    """Return a matrix of this shape from the tensors that store it.

    Raises:
        ValueError: a tensor is missing, or they do not fit together.
    """
    values, scales = key(name, VALUES), key(name, SCALES)
    if values not in tensors:
        raise ValueError(f"{values} is missing")
    positions, kind = read_topology(tensors, name, shape).positions, tensors[values].dtype
    if tensors[values].shape != positions.shape:
        raise ValueError(f"{values} has shape {tuple(tensors[values].shape)}, and {len(positions)} weights exist")
    if kind != torch.int8 and not kind.is_floating_point:
        raise ValueError(f"{values} must be floating point or int8, it is {kind}")
    if (kind == torch.int8) != (scales in tensors):
        raise ValueError(f"{values} is {kind}, and {scales} is {'there' if scales in tensors else 'missing'}")
    return StoredMatrix(positions, tensors[values], tensors.get(scales))


def describe_layout(shapes: Mapping[str, Shape]) -> dict[str, str]:
    """Return the metadata of a file: version of the layout, and the shapes of the matrices stored sparse in it."""
    return {"layout": VERSION, "shapes": json.dumps({name: list(shape) for name, shape in shapes.items()})}


def read_shapes(metadata: Mapping[str, str]) -> dict[str, tuple[int, ...]]:
    """Return the shapes that :func:`describe_layout` wrote.

    Raises:
        ValueError: the file has another version of the layout, or no shapes.
    """
    version = metadata.get("layout")
    if version != VERSION:
        written = "no layout version" if version is None else f"layout version {version:.50}"
        raise ValueError(f"has {written}; this version of selfish-rnn reads layout version {VERSION}")
    try:
        return {str(name): tuple(map(int, shape)) for name, shape in json.loads(metadata["shapes"]).items()}
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError, RecursionError):
        raise ValueError("is damaged: it does not give the shapes of its sparse matrices") from None
