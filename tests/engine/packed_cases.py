"""What the tests of the packed engine share."""

from __future__ import annotations

from typing import TypeVar

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from selfish_rnn.engine import PackedWeight, available, library

Recurrent = TypeVar("Recurrent", nn.RNNBase, nn.RNNCellBase)

needs_kernels = pytest.mark.skipif(not available(), reason="the packed engine's kernels are not built")

seeds = st.integers(0, 2**31)
densities = st.sampled_from([0.0, 0.02, 0.1, 0.5, 0.9, 1.0])
features = st.one_of(st.integers(1, 40), st.integers(41, 300), st.sampled_from([64, 128, 129, 256, 257]))
batches = st.one_of(st.just(1), st.integers(2, 9), st.just(20), st.integers(63, 66), st.integers(129, 140))


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def topology(rows: int, columns: int, density: float, seed: int, gates: int = 1) -> Tensor:
    """A random mask; with every other seed some rows, some columns and one of several gates have no weight at all."""
    generator = seeded(seed)
    mask = torch.rand(rows, columns, generator=generator) < density
    if seed % 2:
        mask &= torch.rand(rows, 1, generator=generator) < 0.7
        mask &= torch.rand(1, columns, generator=generator) < 0.7
        if gates > 1:
            mask.view(gates, -1, columns)[seed % gates] = False
    return mask


def matrix(rows: int, columns: int, density: float, seed: int, gates: int = 1) -> Tensor:
    """A dense matrix with zeros where no weight exists."""
    values = torch.randn(rows, columns, generator=seeded(seed)).div_(columns**0.5)
    return values * topology(rows, columns, density, seed, gates)


def packed(rows: int, columns: int, density: float, seed: int, gates: int = 1) -> PackedWeight:
    return PackedWeight.from_dense(matrix(rows, columns, density, seed, gates), gate_rows=(rows // gates,) * gates)


def reference(weight: PackedWeight) -> Tensor:
    """The same matrix, dense, in double precision, with a gradient."""
    return weight.to_dense().detach().double().requires_grad_()


def assert_close(actual: Tensor | None, expected: Tensor | None, what: str = "") -> None:
    """Equal to 1e-5 of the largest number, or of one if that is smaller."""
    assert actual is not None, what
    assert expected is not None, what
    assert actual.shape == expected.shape, what
    if actual.numel():
        difference = float((actual.detach().double() - expected.detach().double()).abs().max())
        assert difference <= 1e-5 * max(1.0, float(expected.detach().abs().max())), f"{what} differs by {difference}"


def assert_same_gradient(weight: PackedWeight, dense: Tensor, what: str = "") -> None:
    """The gradient of the packed values is that of the dense matrix where weights exist."""
    positions, places = weight.sorted()
    assert weight.values.grad is not None
    assert dense is not None
    assert_close(weight.values.grad[places], dense.flatten()[positions], what)


def index_is_valid(index: Tensor) -> bool:
    return bool(library.kernels().selfish_index_valid(index.data_ptr(), len(index)))


def assert_consistent(weight: PackedWeight, seed: int = 0) -> None:
    """All ways to look at a weight agree, and none of them crashes."""
    assert index_is_valid(weight.index)
    positions, places = weight.sorted()
    assert bool((positions[1:] > positions[:-1]).all())
    assert torch.equal(places.sort().values, torch.arange(weight.count, dtype=torch.int32))
    dense = reference(weight)
    x = torch.randn(9, weight.shape[1], generator=seeded(seed), requires_grad=True)
    weight.values.grad = None
    y = torch.ops.selfish_rnn.linear(x, weight.values, weight.index, None, weight.shape[0])
    y.square().sum().backward()
    exact = x.detach().double().requires_grad_()
    product = exact @ dense.t()
    product.square().sum().backward()
    assert_close(y, product)
    assert_close(x.grad, exact.grad)
    assert_same_gradient(weight, dense.grad)
    weight.values.grad = None


def sparse_(module: Recurrent, density: float, seed: int, gates: int) -> Recurrent:
    """Set most weights of a recurrent module to zero."""
    generator = seeded(seed)
    with torch.no_grad():
        for number, parameter in enumerate(module.parameters()):
            parameter.uniform_(-0.5, 0.5, generator=generator).div_(max(parameter.shape[-1] / 8, 1) ** 0.5)
            if parameter.ndim == 2:
                divided = gates if parameter.shape[0] % gates == 0 else 1
                parameter.mul_(topology(*parameter.shape, density, seed + number, divided))
    return module
