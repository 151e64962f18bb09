"""Int8 weights: what they round to, that sums are exact, and the same whatever computes them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from packed_cases import densities, features, matrix, needs_kernels, seeded, seeds
from torch import Tensor

from selfish_rnn.engine import available
from selfish_rnn.engine.int8 import operators
from selfish_rnn.engine.int8.quantized_weight import QuantizedWeight
from selfish_rnn.engine.int8.targets import int8_target, int8_targets, use_int8_target

pytestmark = needs_kernels

LARGE = 1 << 30
"""Weights of a model that stays in no cache."""


@pytest.fixture(params=int8_targets() if available() else ())
def int8_kernels(request: pytest.FixtureRequest) -> Iterator[str]:
    before = int8_target()
    use_int8_target(request.param)
    yield request.param
    use_int8_target(before)


@pytest.fixture
def any_kernels() -> Iterator[None]:
    before = int8_target()
    yield
    use_int8_target(before)


def integer_linear(x: Tensor, weight: QuantizedWeight, bias: Tensor | None) -> Tensor:
    """The definition, in whole numbers and plain torch."""
    positions, values, scale = weight.weights()
    whole = torch.zeros(weight.shape, dtype=torch.int64).flatten().index_copy(0, positions, values.long())
    top = x.abs().amax(-1, keepdim=True)
    inverse = torch.where(top < 1e-30, torch.zeros(()), 127 / top)
    sums = (x * inverse).round().long() @ whole.view(weight.shape).t()
    y = sums.float() * (scale * torch.where(top < 1e-30, torch.zeros(()), top / 127))
    return y if bias is None else y + bias


def quantized(dense: Tensor, together: int) -> QuantizedWeight:
    """An int8 matrix in a model of so many weights, which decides how it is laid out."""
    positions = dense.flatten().nonzero().flatten()
    return QuantizedWeight.rounded(dense.shape, positions, dense.flatten()[positions], together)


@pytest.mark.usefixtures("any_kernels")
@settings(max_examples=60)
@given(
    rows=features,
    columns=features,
    density=densities,
    vectors=st.integers(1, 11),
    seed=seeds,
    together=st.sampled_from([0, LARGE]),
)
def test_sums_are_the_whole_numbers_of_the_definition_on_every_kind_of_processor(
    rows: int, columns: int, density: float, vectors: int, seed: int, together: int
) -> None:
    dense = matrix(rows, columns, density, seed)
    weight = quantized(dense, together)
    x = torch.randn(vectors, columns, generator=seeded(seed + 1))
    bias = torch.randn(rows, generator=seeded(seed + 2)) if seed % 2 else None
    expected = integer_linear(x, weight, bias)
    for name in int8_targets():
        use_int8_target(name)
        assert torch.equal(operators.linear(x, weight, bias), expected), name


@pytest.mark.usefixtures("int8_kernels")
@pytest.mark.parametrize("shape", [(1, 1), (7, 3), (300, 1), (1, 300), (17, 4097), (1030, 129)])
@pytest.mark.parametrize(
    ("density", "together"), [*((d, 0) for d in (0.0, 0.03, 0.2, 0.6, 1.0)), (0.6, LARGE), (1.0, LARGE)]
)
def test_matrices_of_any_shape_and_density(shape: tuple[int, int], density: float, together: int) -> None:
    weight = quantized(matrix(*shape, density, 4), together)
    x = torch.randn(3, shape[1], generator=seeded(1))
    assert torch.equal(operators.linear(x, weight, None), integer_linear(x, weight, None))
    tokens = torch.randint(shape[0], (2, 5), generator=seeded(2))
    assert torch.equal(operators.embedding(tokens, weight), weight.to_dense()[tokens])


@pytest.mark.usefixtures("int8_kernels")
@pytest.mark.parametrize("together", [0, LARGE])
def test_results_do_not_depend_on_threads_nor_on_the_number_of_vectors(together: int) -> None:
    weight = quantized(matrix(500, 300, 0.3, 5), together)
    x = torch.randn(21, 300, generator=seeded(1))
    together = operators.linear(x, weight, None)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert torch.equal(operators.linear(x, weight, None), together)
    finally:
        torch.set_num_threads(before)
    for count in range(1, 10):
        assert torch.equal(torch.cat([operators.linear(some, weight, None) for some in x.split(count)]), together)


def test_a_matrix_of_a_model_too_large_for_a_cache_takes_a_bit_for_each_position(int8_kernels: str) -> None:
    dense = matrix(400, 1024, 0.5, 1)
    small, large = quantized(dense, 0), quantized(dense, LARGE)
    assert torch.equal(large.to_dense(), small.to_dense())
    assert all(torch.equal(small.state_dict()[name], tensor) for name, tensor in large.state_dict().items())
    if int8_kernels == "avx512-vbmi":
        of_rows = 400 * 12 + 26 * 4  # row, scale and correction; where a group begins
        assert 0 < large.bytes - (large.count + 400 * 1024 // 8 + of_rows) < 7 * 64  # sections begin on cache lines
        assert large.bytes < 0.85 * small.bytes
    else:
        assert large.bytes == small.bytes


def test_a_weight_is_off_by_at_most_half_its_row_s_scale_and_zeros_are_dropped() -> None:
    dense = matrix(40, 60, 0.5, 1)
    dense[3] *= 1e-20
    dense[5] = 0
    dense[6, :2] = torch.tensor([1.0, 1e-4])  # the second rounds to zero
    weight = QuantizedWeight.from_dense(dense)
    scale = weight.weights()[2]
    assert torch.equal(scale, torch.where(dense[:, 0] == dense[:, 0], dense.abs().amax(1) / 127, 0.0))
    assert bool(((weight.to_dense() - dense).abs() <= scale[:, None] * 0.5001).all())
    assert weight.to_dense()[6, 1] == 0
    assert weight.count == int((weight.to_dense() != 0).sum()) < int((dense != 0).sum())


@pytest.mark.usefixtures("int8_kernels")
def test_what_is_not_finite_makes_every_result_nan_and_zeros_make_the_bias() -> None:
    weight = QuantizedWeight.from_dense(matrix(20, 30, 0.5, 1))
    bias = torch.randn(20, generator=seeded(1))
    for odd in (torch.nan, torch.inf, -torch.inf):
        x = torch.ones(2, 30)
        x[0, 17] = odd
        y = operators.linear(x, weight, bias)
        assert bool(y[0].isnan().all())
        assert not bool(y[1].isnan().any())
    assert torch.equal(operators.linear(torch.zeros(1, 30), weight, bias)[0], bias)
    assert torch.equal(operators.linear(torch.full((1, 30), 1e-38), weight, bias)[0], bias)


@pytest.mark.usefixtures("any_kernels")
def test_a_state_dict_is_the_same_on_every_processor_and_loads_into_another_topology() -> None:
    weight = QuantizedWeight.from_dense(matrix(50, 70, 0.4, 1))
    states = []
    for name in int8_targets():
        use_int8_target(name)
        assert weight.bytes > 0  # laid out anew
        states.append(weight.state_dict())
    assert {name: tensor.dtype for name, tensor in states[0].items()} == {
        "values": torch.int8,
        "scales": torch.float32,
        "bits": torch.uint8,
    }
    for state in states:
        assert all(torch.equal(state[name], tensor) for name, tensor in states[0].items())
    other = QuantizedWeight.from_dense(matrix(50, 70, 0.1, 2))
    other.load_state_dict(states[0])
    assert torch.equal(other.to_dense(), weight.to_dense())


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("values", lambda values: values[:-1], "weights exist"),
        ("values", lambda values: values.to(torch.float32), "values is torch.float32, and scales is there"),
        ("values", lambda values: torch.cat([values[:-1], torch.tensor([-128], dtype=torch.int8)]), "from -127"),
        ("values", lambda values: values * 0, "never zero"),
        ("bits", lambda bits: bits[:-1], "does not fit"),
        ("bits", lambda bits: bits ^ 128, "weights exist"),
        ("scales", lambda scale: scale * torch.nan, "finite"),
        ("scales", lambda scale: -scale, "not negative"),
        ("scales", lambda scale: scale[1:], "a scale of shape"),
    ],
)
def test_a_damaged_state_is_refused(name: str, change: object, message: str) -> None:
    weight = QuantizedWeight.from_dense(matrix(20, 30, 0.5, 1))
    before = weight.to_dense()
    state = weight.state_dict()
    state[name] = change(state[name])  # type: ignore[operator]
    with pytest.raises(RuntimeError, match=message):
        weight.load_state_dict(state)
    assert torch.equal(weight.to_dense(), before)


def test_what_cannot_be_int8_is_refused() -> None:
    with pytest.raises(ValueError, match="columns"):
        QuantizedWeight.from_dense(torch.ones(1, 65536))
    with pytest.raises(ValueError, match="not finite"):
        QuantizedWeight.from_dense(torch.full((2, 2), torch.inf))
    weight = QuantizedWeight.from_dense(torch.ones(2, 3))
    with pytest.raises(RuntimeError, match="cannot be trained"):
        weight.train()
    with pytest.raises(ValueError, match="the input must be of shape"):
        operators.linear(torch.ones(2, 4), weight, None)
    with pytest.raises(IndexError, match="token 2 is out of range"):
        operators.embedding(torch.tensor([2]), weight)
    x = torch.ones(2, 3, requires_grad=True)
    with pytest.raises(RuntimeError, match="no autograd formula"):
        operators.linear(x, weight, None).sum().backward()
