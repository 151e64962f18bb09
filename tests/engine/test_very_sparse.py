"""Matrices of very many positions and few weights: large tiles, and sizes beyond 16 and 32 bits."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from packed_cases import assert_close, assert_consistent, index_is_valid, needs_kernels, seeded, seeds
from torch import Tensor, nn

from selfish_rnn.engine import PackedLSTM, PackedWeight, functional, library
from selfish_rnn.engine.index import Tiling

pytestmark = needs_kernels

sides = st.sampled_from([1, 257, 65_535, 65_537, 70_000, 262_144])


def scattered(rows: int, columns: int, count: int, seed: int) -> PackedWeight:
    """At most so many weights anywhere, some of them in the corners."""
    generator = seeded(seed)
    size = rows * columns
    drawn = torch.randint(size, (count,), generator=generator)
    corners = torch.tensor([0, columns - 1, size - columns, size - 1])
    positions = torch.cat([drawn, corners[: count % 5]]).unique()
    return PackedWeight((rows, columns), positions, torch.randn(len(positions), generator=generator))


def cross_products(weight: PackedWeight, x: Tensor, d: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """W x, W^T d and the gradient of the weights in sorted order, weight after weight in double precision."""
    positions, places = weight.sorted()
    row, column = positions // weight.shape[1], positions % weight.shape[1]
    values, x, d = weight.values.detach().double()[places], x.double(), d.double()
    y = x.new_zeros(len(x), weight.shape[0]).index_add_(1, row, x[:, column] * values)
    dx = x.new_zeros(x.shape).index_add_(1, column, d[:, row] * values)
    return y, dx, (x[:, column] * d[:, row]).sum(0)


@settings(max_examples=25)
@given(sides, sides, st.integers(0, 3000), st.sampled_from([1, 3, 20]), seeds)
def test_products_beyond_16_and_32_bits(rows: int, columns: int, count: int, tokens: int, seed: int) -> None:
    weight = scattered(rows, columns, count, seed)
    assert index_is_valid(weight.index)
    assert len(weight.index) < 40 * weight.count + 20 * (rows + columns) ** 0.5 + 4096
    x = torch.randn(tokens, columns, generator=seeded(seed), requires_grad=True)
    d = torch.randn(tokens, rows, generator=seeded(seed + 1))
    y = functional.linear(x, weight)
    y.backward(d)
    expected_y, expected_dx, expected = cross_products(weight, x.detach(), d)
    assert weight.values.grad is not None
    assert_close(y, expected_y)
    assert_close(x.grad, expected_dx)
    assert_close(weight.values.grad[weight.sorted()[1]], expected)


@settings(max_examples=10)
@given(sides, sides, st.integers(0, 3000), seeds)
def test_rows_beyond_16_and_32_bits_are_looked_up(rows: int, columns: int, count: int, seed: int) -> None:
    weight = scattered(rows, columns, count, seed)
    positions, places = weight.sorted()
    tokens = torch.cat([positions[-5:] // columns, torch.randint(rows, (3,), generator=seeded(seed))])
    expected = torch.zeros(len(tokens), columns)
    for place, token in enumerate(tokens.tolist()):
        mine = positions // columns == token
        expected[place, positions[mine] % columns] = weight.values.detach()[places[mine]]
    assert torch.equal(functional.embedding(tokens, weight), expected)


def test_weights_are_dropped_without_a_number_for_every_position() -> None:
    weight = scattered(262_144, 262_144, 3000, seed=1)  # of which a mask would take 256 GiB
    factors = functional.drop_weights(weight, 0.25) / weight.values
    dropped = factors == 0
    assert 0.2 < dropped.double().mean() < 0.3
    assert_close(factors[~dropped], torch.full_like(factors[~dropped], 4 / 3))


@settings(max_examples=15)
@given(st.integers(300, 900), st.integers(300, 900), st.sampled_from([0.0005, 0.004, 0.014]), seeds)
def test_large_tiles_are_as_good_as_others(rows: int, columns: int, density: float, seed: int) -> None:
    mask = torch.rand(rows, columns, generator=seeded(seed)) < density
    weight = PackedWeight.from_dense(torch.randn(rows, columns, generator=seeded(seed)), mask)
    assert torch.equal(weight.sorted()[0], mask.flatten().nonzero().flatten())
    assert_consistent(weight, seed)
    positions = weight.sorted()[0]
    grown = (~mask).flatten().nonzero().flatten()[:: rows * columns // 50]
    weight.change_topology(positions[::3], grown)
    assert_consistent(weight, seed)


def test_a_recurrent_layer_of_large_tiles_has_the_gradients_of_the_dense_one() -> None:
    torch.manual_seed(0)
    dense = nn.LSTM(300, 1400)
    with torch.no_grad():
        for parameter in dense.parameters():
            if parameter.ndim == 2:
                parameter.mul_(5 * (torch.rand(parameter.shape) < 0.01))
    packed = PackedLSTM.from_dense(dense)
    exact = dense.double()
    x = torch.randn(3, 4, 300)
    y, _ = packed(x)
    expected, _ = exact(x.double())
    factor = torch.randn(y.shape)
    (y * factor).sum().backward()
    (expected * factor.double()).sum().backward()
    assert_close(y, expected)
    for name in ("weight_ih_l0", "weight_hh_l0"):
        weight = packed.get_submodule(name)
        assert isinstance(weight, PackedWeight)
        assert library.header(weight.index).tile_columns in (75, 350)
        positions, places = weight.sorted()
        gradient = exact.get_parameter(name).grad
        assert gradient is not None
        assert weight.values.grad is not None
        assert_close(weight.values.grad[places], gradient.flatten()[positions], name)


@pytest.mark.parametrize(("rows", "columns", "count"), [(131_072, 32_768, 10_000_000), (400_000, 100_000, 2_000_000)])
def test_tiles_are_few_where_weights_are_few(rows: int, columns: int, count: int) -> None:
    tiling = Tiling.of((rows, columns), (rows // 4,) * 4, count)
    tiles = (len(tiling.row_bounds) - 1) * tiling.column_tiles
    assert count > 1000 * tiles
    assert max(high - low for low, high in zip(tiling.row_bounds, tiling.row_bounds[1:], strict=False)) <= 65_536
    assert tiling.tile_columns <= 65_536
