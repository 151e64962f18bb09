"""What the topology tests share: random matrices, weights and the golden files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from hypothesis import strategies as st
from torch import Tensor

from selfish_rnn.topology import GateLayout, Topology

GOLDEN = Path(__file__).parents[1] / "golden"

seeds = st.integers(0, 2**32 - 1)
rates = st.one_of(st.sampled_from([0.0, 0.5, 1.0]), st.floats(0, 1))


def golden_cases(name: str, count: int) -> list[dict[str, np.ndarray]]:
    """The arrays of a golden file, ``x_0, x_1, ...`` taken apart into one dictionary per case."""
    with np.load(GOLDEN / f"{name}.npz") as arrays:
        assert int(arrays["n_cases"]) == count
        return [
            {key.removesuffix(f"_{case}"): arrays[key] for key in arrays.files if key.endswith(f"_{case}")}
            for case in range(count)
        ]


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@st.composite
def gate_layouts(draw: st.DrawFn) -> GateLayout:
    sizes = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    return GateLayout(tuple(f"gate{i}" for i in range(len(sizes))), tuple(sizes))


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    """Matrices from 1 x 1, of density 0.01 (at least one weight) to 1, some with a gate that is full."""
    gates = draw(gate_layouts())
    columns = draw(st.integers(1, 8))
    density = draw(st.sampled_from([0.01, 0.3, 0.5, 1.0]))
    count = max(1, round(density * gates.rows * columns))
    topology = Topology.random((gates.rows, columns), gates, count, seeded(draw(seeds)))
    if draw(st.booleans()):
        mask = topology.to_mask()
        mask[: gates.sizes[0]] = True
        topology = Topology.from_mask(mask, gates)
    return topology


@st.composite
def layers(draw: st.DrawFn) -> list[Topology]:
    """One to three matrices, with gates, rows and columns of their own."""
    return draw(st.lists(topologies(), min_size=1, max_size=3))


def weights_for(topology: Topology, seed: int, ties: bool = False) -> Tensor:
    """Random values of the existing weights; with ``ties`` many have the same magnitude, some are zero."""
    values = torch.randn(topology.count, generator=seeded(seed))
    return (values * 2).round() / 2 if ties else values


def positions(topology: Topology) -> set[int]:
    return set(topology.positions.tolist())
