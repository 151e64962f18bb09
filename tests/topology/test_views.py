"""A method on blocks: the matrix of units agrees with plain loops, and budgets in blocks are exact."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from topology_cases import rates, seeded, seeds
from torch import Tensor

from selfish_rnn.topology import (
    METHODS,
    ActiveWeights,
    GateLayout,
    Method,
    Rewiring,
    Topology,
    View,
    parse_granularity,
    prune,
    rewire,
)

BLOCKS = [(1, 1), (8, 4), (16, 1), (4, 4), (1, 4), (2, 3)]


@st.composite
def views(draw: st.DrawFn) -> View:
    """Weights of two to four dimensions whose gates lie on some axes, in blocks, with and without their diagonal."""
    rows, columns = draw(st.sampled_from(BLOCKS))
    keep_diagonal = draw(st.booleans())
    units = draw(st.integers(1, 3))
    if keep_diagonal:
        side = rows * columns * units
        gates = draw(st.integers(1, 2))
        side, width = max(side, 2), max(side, 2)
    else:
        gates, side, width = draw(st.integers(1, 3)), rows * units, columns * draw(st.integers(1, 4))
    names = tuple(f"gate{number}" for number in range(gates))
    kind = draw(st.sampled_from(["rows", "columns", "kernel"]))
    if kind == "rows":
        return View((gates * side, width), GateLayout.even(names, gates * side), (rows, columns), keep_diagonal)
    if kind == "columns":
        layout = GateLayout.even(names, gates * side, axes=(1,))
        return View((width, gates * side), layout, (rows, columns), keep_diagonal)
    layout = GateLayout.even(names, gates * side, axes=(1, 2))
    return View((width, gates, side), layout, (rows, columns), keep_diagonal)


def as_matrix(view: View, tensor: Tensor) -> Tensor:
    """The weight as a matrix whose rows are divided into the gates, by indexing axis after axis."""
    axes = view.gates.axes
    order = [*axes, *(axis for axis in range(tensor.ndim) if axis not in axes)]
    return tensor.permute(order).reshape(view.gates.rows, -1)


def drawn(view: View, seed: int, density: float = 0.5) -> Topology:
    """A random topology of whole units."""
    units = view.units
    count = max(1, round(density * units.size))
    return view.expand(Topology.random(units.shape, units.gates, count, seeded(seed)))


@given(views(), seeds, st.floats(0, 1))
def test_a_topology_of_units_and_back(view: View, seed: int, density: float) -> None:
    units = view.units
    some = Topology.random(units.shape, units.gates, round(density * units.size), seeded(seed))
    whole = view.expand(some)
    assert torch.equal(view.unit_topology(whole).positions, some.positions)
    assert whole.positions.tolist() == sorted(set(whole.positions.tolist()))
    mask = as_matrix(view, whole.to_mask())
    rows, columns = view.block
    diagonal = torch.zeros_like(mask)
    if view.keep_diagonal:
        for row in range(mask.shape[0]):
            diagonal[row, row % mask.shape[1]] = True
        assert mask[diagonal].all()
    off = mask & ~diagonal
    if view.block != (1, 1):
        for position in range(units.size):
            row, column = divmod(position, units.shape[1])
            place = (slice(row * rows, (row + 1) * rows), slice(column * columns, (column + 1) * columns))
            assert bool(off[place].any()) == (position in some.positions.tolist())
            assert torch.equal(
                off[place] | diagonal[place], torch.full((rows, columns), bool(off[place].any())) | diagonal[place]
            )
    else:
        assert int(off.sum()) == some.count


@given(views(), seeds)
def test_magnitudes_gradients_and_scores_of_blocks(view: View, seed: int) -> None:
    topology = drawn(view, seed)
    weight, gradient = (torch.randn(view.shape, generator=seeded(seed + n)) for n in (1, 2))
    units = view.unit_weights(
        ActiveWeights(
            topology,
            weight.flatten()[topology.positions],
            gradient.flatten()[topology.positions],
            lambda: gradient,
            lambda positions: gradient.flatten()[positions],
        )
    )
    rows, columns = view.block
    expected = {}
    for name, tensor in (("values", weight), ("gradients", gradient)):
        matrix = as_matrix(view, tensor).clone()
        if view.keep_diagonal:
            kept = torch.arange(matrix.shape[0])
            matrix[kept, kept % matrix.shape[1]] = 0
        if view.block != (1, 1):
            means = [
                matrix[row : row + rows, column : column + columns].square().mean().sqrt()
                for row in range(0, matrix.shape[0], rows)
                for column in range(0, matrix.shape[1], columns)
            ]
            expected[name] = torch.stack(means)
        elif view.keep_diagonal:
            expected[name] = torch.cat(
                [line[torch.arange(len(line)) != i % len(line)] for i, line in enumerate(matrix)]
            )
        else:
            expected[name] = matrix.flatten()
    existing = units.topology.positions
    torch.testing.assert_close(units.values, expected["values"][existing])
    assert units.gradients is not None
    torch.testing.assert_close(units.gradients, expected["gradients"][existing])
    if not view.single:
        assert units.dense_score().shape == view.units.shape
    torch.testing.assert_close(units.dense_score().flatten(), expected["gradients"])
    some = torch.randperm(view.units.size, generator=seeded(seed))[:5]
    torch.testing.assert_close(units.sampled_gradient(some), expected["gradients"][some])


def network_of(list_of_views: list[View], seed: int) -> list[ActiveWeights]:
    network = []
    for number, view in enumerate(list_of_views):
        topology = drawn(view, seed + number)
        gradient = torch.randn(view.shape, generator=seeded(seed + 50 + number))
        network.append(
            ActiveWeights(
                topology,
                torch.randn(topology.count, generator=seeded(seed + 100 + number)),
                gradient.flatten()[topology.positions],
                lambda gradient=gradient: gradient,  # type: ignore[misc]
                lambda positions, gradient=gradient: gradient.flatten()[positions],  # type: ignore[misc]
            )
        )
    return network


def change(method: Method, network: list[Any], rate: float, seed: int, counts: list[int]) -> Iterator[Rewiring]:
    if not method.rewires:
        return prune(method, network, counts, seeded(seed), 0.5)
    return rewire(method, network, rate, seeded(seed), None, counts if method.prunes else None, 0.5)


CHANGING = [method for method in METHODS.values() if method.rewires or method.prunes]


@pytest.mark.parametrize("method", CHANGING, ids=lambda method: method.name)
@settings(max_examples=25)
@given(several=st.lists(views(), min_size=1, max_size=2), rate=rates, seed=seeds)
def test_every_method_keeps_the_budget_of_units(method: Method, several: list[View], rate: float, seed: int) -> None:
    network = network_of(several, seed)
    before = [view.unit_topology(matrix.topology) for view, matrix in zip(several, network, strict=True)]
    units = [
        lambda view=view, matrix=matrix: view.unit_weights(matrix)  # type: ignore[misc]
        for view, matrix in zip(several, network, strict=True)
    ]
    counts = [max(1, matrix.count // 2) for matrix in before] if method.prunes else [m.count for m in before]
    after = []
    for view, matrix, rewiring in zip(several, network, change(method, units, rate, seed, counts), strict=True):
        whole = view.rewiring(matrix.topology, rewiring)
        assert torch.equal(view.expand(rewiring.topology).positions, whole.topology.positions)
        after.append(view.unit_topology(whole.topology).count)
        assert set(whole.grown.tolist()).isdisjoint(whole.kept_positions.tolist())
    assert sum(after) == sum(counts)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((30, 8), GateLayout.even("abc", 30), (8, 4)), r"8x4 do not divide gate 'a' of 10 rows \(10 = 1 \* 8 \+ 2\)"),
        (((16, 6), GateLayout.single(16), (8, 4)), r"do not divide 6 columns \(6 = 1 \* 4 \+ 2\)"),
        (((16, 6), GateLayout.single(16), (1, 1), True), "needs square gates, .* have 16 rows and 6 columns"),
    ],
)
def test_units_that_do_not_fit_are_refused_with_the_numbers(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        View(*arguments)


def test_a_topology_of_broken_blocks_is_refused() -> None:
    view = View((8, 8), GateLayout.single(8), (8, 4))
    with pytest.raises(ValueError, match="does not consist of whole blocks of 8x4"):
        view.unit_topology(Topology.random((8, 8), GateLayout.single(8), 20, seeded(0)))
    kept = View((8, 8), GateLayout.single(8), keep_diagonal=True)
    with pytest.raises(ValueError, match="whole single weights and its diagonal"):
        kept.unit_topology(Topology.random((8, 8), GateLayout.single(8), 20, seeded(0)))


def test_granularity_is_written_as_rows_and_columns() -> None:
    assert parse_granularity("16x1") == parse_granularity(" 16 x 1 ") == parse_granularity((16, 1)) == (16, 1)
    for text in ("8", "8x", "x4", "8x4x2", "eight"):
        with pytest.raises(ValueError, match='such as "8x4"'):
            parse_granularity(text)
    with pytest.raises(ValueError, match="at least one row"):
        parse_granularity("0x4")


def test_a_layout_on_other_axes_divides_the_rows_of_its_matrix() -> None:
    """The recurrent kernel of an sLSTM: heads, inputs, gates, outputs."""
    layout = GateLayout.even(("input", "forget", "cell", "output"), 4 * 2 * 3, axes=(2, 0, 3))
    mask = torch.zeros(2, 5, 4, 3, dtype=torch.bool)
    mask[:, :, 1] = True
    mask[0, 0, 3, 0] = True
    topology = Topology.from_mask(mask, layout)
    assert topology.gate_densities() == {"input": 0, "forget": 1, "cell": 0, "output": pytest.approx(1 / 30)}
    assert topology.as_matrix().shape == (24, 5)
    with pytest.raises(ValueError, match="use those of as_matrix"):
        list(topology.gate_spans())
    with pytest.raises(ValueError, match="does not fit a weight of shape"):
        dataclasses.replace(topology, shape=(24, 5))
    with pytest.raises(ValueError, match="different axes"):
        GateLayout.single(4, axes=(0, 0))
