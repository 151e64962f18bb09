"""The layout of sparse matrices in files, as docs/format.md specifies it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from topology_cases import topologies

from selfish_rnn.topology import GateLayout, Topology
from selfish_rnn.topology.layout import (
    describe_layout,
    read_shapes,
    read_sparse,
    read_topology,
    sparse_tensors,
    stored_keys,
)


def read_by_the_specification(tensors: dict[str, torch.Tensor], shape: tuple[int, ...]) -> torch.Tensor:
    """The matrix "w", by docs/format.md alone."""
    matrix = np.zeros(math.prod(shape), dtype=np.float32)
    if "w.positions" in tensors:
        positions = tensors["w.positions"].numpy()
    else:
        bits = np.unpackbits(tensors["w.bits"].numpy(), bitorder="big")
        positions = np.flatnonzero(bits[: math.prod(shape)])
    values = tensors["w.values"].numpy().astype(np.float32)
    if "w.scales" in tensors:
        values = values * tensors["w.scales"].numpy()[positions // math.prod(shape[1:])]
    matrix[positions] = values
    return torch.from_numpy(matrix).view(shape)


@given(topologies())
def test_a_matrix_is_stored_as_specified(topology: Topology) -> None:
    values = torch.arange(1, topology.count + 1, dtype=torch.float32)
    tensors = sparse_tensors("w", topology, values)
    expected = torch.zeros(topology.size).index_copy_(0, topology.positions, values).view(topology.shape)
    assert torch.equal(read_by_the_specification(tensors, topology.shape), expected)
    stored = read_sparse(tensors, "w", topology.shape)
    assert torch.equal(stored.positions, topology.positions)
    assert torch.equal(stored.values, values)
    assert stored.scales is None
    assert sorted(stored_keys(tensors, "w")) == sorted(tensors)
    assert set(sparse_tensors("", topology, values)) == {name.removeprefix("w.") for name in tensors}


def test_int8_values_have_scales() -> None:
    topology = Topology.plain((2, 3), torch.tensor([0, 4]))
    values, scales = torch.tensor([100, -3], dtype=torch.int8), torch.tensor([0.5, 2.0])
    tensors = sparse_tensors("w", topology, values, scales)
    assert torch.equal(read_by_the_specification(tensors, (2, 3)), torch.tensor([[50.0, 0, 0], [0, -6, 0]]))
    assert torch.equal(read_sparse(tensors, "w", (2, 3)).scales, scales)  # type: ignore[arg-type]
    del tensors["w.scales"]
    with pytest.raises(ValueError, match=r"w.values is torch.int8, and w.scales is missing"):
        read_sparse(tensors, "w", (2, 3))


@pytest.mark.parametrize(("size", "kind"), [(2**31 - 1, torch.int32), (2**31, torch.int64)])
def test_positions_have_64_bits_from_two_to_the_31_positions_on(size: int, kind: torch.dtype) -> None:
    topology = Topology((1, size), GateLayout.single(1), torch.tensor([3, size - 1]))
    tensors = sparse_tensors("w", topology, torch.ones(2))
    assert tensors["w.positions"].dtype == kind
    assert torch.equal(read_topology(tensors, "w", (1, size)).positions, topology.positions)


def test_shapes_are_in_the_metadata() -> None:
    shapes = {"rnn.weight": (4, 3), "kernel": (2, 3, 5)}
    metadata = describe_layout(shapes)
    assert metadata["layout"] == "1"
    assert read_shapes(metadata) == shapes
    with pytest.raises(ValueError, match=r"has layout version 2; this version of selfish-rnn reads layout version 1"):
        read_shapes({**metadata, "layout": "2"})
