"""Products with packed weights against torch's with masked dense ones, and torch's own checks of operators."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from packed_cases import (
    assert_close,
    assert_same_gradient,
    batches,
    densities,
    features,
    matrix,
    needs_kernels,
    reference,
    seeded,
    seeds,
)
from torch.nn import functional as dense_functional

from selfish_rnn.engine import PackedWeight, available, functional, linear_cross_entropy
from selfish_rnn.engine.dense_gradients import dense_gradient, has_collected, start_collecting, stop_collecting
from selfish_rnn.engine.parameters import plain

pytestmark = needs_kernels


@pytest.mark.usefixtures("target")
@settings(max_examples=40)
@given(features, features, batches, densities, st.booleans(), seeds)
@example(300, 300, 130, 1.0, True, 0)
@example(1, 1, 1, 1.0, True, 0)
@example(7, 5, 1, 0.0, True, 0)
def test_linear(rows: int, columns: int, batch: int, density: float, has_bias: bool, seed: int) -> None:
    weight = PackedWeight.from_dense(matrix(rows, columns, density, seed))
    generator = seeded(seed + 1)
    x = torch.randn(batch, columns, generator=generator, requires_grad=True)
    bias = torch.randn(rows, generator=generator, requires_grad=True) if has_bias else None
    y = functional.linear(x, weight, bias)
    factor = torch.randn(batch, rows, generator=generator)
    (y * factor).sum().backward()

    dense, exact = reference(weight), x.detach().double().requires_grad_()
    exact_bias = None if bias is None else bias.detach().double().requires_grad_()
    expected = dense_functional.linear(exact, dense, exact_bias)
    (expected * factor).sum().backward()
    assert_close(y, expected, "output")
    assert_close(x.grad, exact.grad, "gradient of the input")
    assert_same_gradient(weight, dense.grad, "gradient of the weight")
    if bias is not None and exact_bias is not None:
        assert_close(bias.grad, exact_bias.grad, "gradient of the bias")


@pytest.mark.usefixtures("target")
@settings(max_examples=30)
@given(features, features, st.sampled_from([(1,), (7, 3), (), (150,)]), densities, seeds)
def test_lookup(rows: int, columns: int, shape: tuple[int, ...], density: float, seed: int) -> None:
    weight = PackedWeight.from_dense(matrix(rows, columns, density, seed))
    tokens = torch.randint(rows, shape, generator=seeded(seed + 1))
    found = functional.embedding(tokens, weight)
    factor = torch.randn(found.shape, generator=seeded(seed + 2))
    (found * factor).sum().backward()
    dense = reference(weight)
    expected = dense_functional.embedding(tokens, dense)
    (expected * factor).sum().backward()
    assert torch.equal(found, expected.float())
    assert_same_gradient(weight, dense.grad)


@pytest.mark.usefixtures("target")
@settings(max_examples=30)
@given(st.one_of(features, st.integers(700, 1000)), features, st.one_of(batches, st.just(300)), densities, seeds)
@example(800, 60, 300, 0.5, 0)
@example(1, 1, 1, 1.0, 0)
@example(3, 2, 257, 0.5, 0)
def test_cross_entropy(rows: int, columns: int, batch: int, density: float, seed: int) -> None:
    weight = PackedWeight.from_dense(4 * matrix(rows, columns, density, seed))
    generator = seeded(seed + 1)
    x = torch.randn(batch, columns, generator=generator, requires_grad=True)
    bias = torch.randn(rows, generator=generator, requires_grad=True) if seed % 4 < 3 else None
    targets = torch.randint(rows, (batch,), generator=generator)
    loss = linear_cross_entropy(x, weight, bias, targets)
    (3 * loss).backward()

    dense, exact = reference(weight), x.detach().double().requires_grad_()
    exact_bias = None if bias is None else bias.detach().double().requires_grad_()
    expected = dense_functional.cross_entropy(dense_functional.linear(exact, dense, exact_bias), targets)
    # Gradients of a mean are small: they are compared as those of a sum.
    (3 * expected).backward()
    assert_close(loss, expected, "loss")
    assert x.grad is not None
    assert exact.grad is not None
    assert_close(x.grad * batch, exact.grad * batch, "gradient of the input")
    assert weight.values.grad is not None
    assert dense.grad is not None
    weight.values.grad *= batch
    assert_same_gradient(weight, dense.grad * batch, "gradient of the weight")
    if bias is not None and exact_bias is not None:
        assert bias.grad is not None
        assert exact_bias.grad is not None
        assert_close(bias.grad * batch, exact_bias.grad * batch, "gradient of the bias")
    with torch.no_grad():
        assert_close(linear_cross_entropy(x, weight, bias, targets), loss, "loss without gradients")


def test_extreme_scores_give_the_loss_that_torch_gives() -> None:
    weight = PackedWeight.from_dense(torch.tensor([[1000.0], [-1000.0], [0.0]]))
    x = torch.tensor([[1.0], [-1.0], [0.0]])
    targets = torch.tensor([0, 0, 1])
    expected = dense_functional.cross_entropy(x @ weight.to_dense().t(), targets)
    assert_close(linear_cross_entropy(x, weight, None, targets), expected)
    unknown = linear_cross_entropy(x * torch.nan, weight, None, targets)
    assert unknown.isnan()


def test_only_what_needs_a_gradient_gets_one() -> None:
    weight = PackedWeight.from_dense(matrix(9, 6, 0.5, 0))
    x = torch.randn(4, 6, generator=seeded(0))
    weight.values.requires_grad_(False)
    bias = torch.zeros(9, requires_grad=True)
    functional.linear(x, weight, bias).sum().backward()
    assert bias.grad is not None
    assert bias.grad.tolist() == [4.0] * 9
    assert weight.values.grad is None
    assert not functional.linear(x, weight).requires_grad


@pytest.mark.parametrize("shape", [(6,), (3, 6), (2, 5, 6), (0, 6), (4, 0, 6)])
def test_any_number_of_leading_dimensions(shape: tuple[int, ...]) -> None:
    weight = PackedWeight.from_dense(matrix(9, 6, 0.5, 0))
    x = torch.randn(shape, generator=seeded(0), requires_grad=True)
    y = functional.linear(x, weight)
    y.sum().backward()
    assert_close(y, x @ weight.to_dense().t())
    assert x.grad is not None
    assert x.grad.shape == shape
    targets = torch.zeros(shape[:-1], dtype=torch.int64)
    loss = linear_cross_entropy(x, weight, None, targets)
    loss.backward()
    assert loss.isnan() == (x.numel() == 0)


def test_inputs_that_are_not_contiguous() -> None:
    weight = PackedWeight.from_dense(matrix(9, 6, 0.5, 0))
    x = torch.randn(6, 4, generator=seeded(0)).t().requires_grad_()
    y = functional.linear(x, weight, torch.zeros(18)[::2])
    (y * torch.ones(()).expand(4, 9)).sum().backward()
    assert_close(y, x @ weight.to_dense().t())
    assert_close(x.grad, torch.ones(4, 9) @ weight.to_dense())
    assert functional.embedding(torch.arange(8).view(4, 2).t(), weight).shape == (2, 4, 6)


def test_what_does_not_fit_is_refused() -> None:
    weight = PackedWeight.from_dense(matrix(9, 6, 0.5, 0))
    x, targets = torch.zeros(4, 6), torch.zeros(4, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"inputs of 5 features .* 9 rows and 6 columns"):
        functional.linear(torch.zeros(4, 5), weight)
    with pytest.raises(ValueError, match="bias must be of shape"):
        functional.linear(x, weight, torch.zeros(8))
    with pytest.raises(IndexError, match="token 9 is out of range: the packed matrix has 9 rows"):
        functional.embedding(torch.tensor([3, 9]), weight)
    with pytest.raises(IndexError, match="token -1 is out of range"):
        functional.embedding(torch.tensor([-1]), weight)
    with pytest.raises(IndexError, match="target 9 is out of range"):
        linear_cross_entropy(x, weight, None, targets + 9)
    with pytest.raises(ValueError, match="4 inputs and 3 targets"):
        linear_cross_entropy(x, weight, None, targets[:3])
    with pytest.raises(ValueError, match="do not fit"):
        linear_cross_entropy(torch.zeros(4, 5), weight, None, targets)
    with pytest.raises(ValueError, match="do not fit"):
        linear_cross_entropy(x, weight, torch.zeros(8), targets)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_only_float32_is_computed_with(dtype: torch.dtype) -> None:
    weight = PackedWeight.from_dense(matrix(9, 6, 0.5, 0))
    with pytest.raises(TypeError, match=r"computes in torch\.float32, not in"):
        functional.linear(torch.zeros(4, 6, dtype=dtype), weight)
    with pytest.raises(TypeError, match="float32"):
        functional.linear(torch.zeros(4, 6), weight, torch.zeros(9, dtype=dtype))
    weight.to(dtype)
    for call in (
        lambda: functional.linear(torch.zeros(4, 6), weight),
        lambda: functional.embedding(torch.tensor([1]), weight),
        lambda: linear_cross_entropy(torch.zeros(1, 6), weight, None, torch.tensor([1])),
    ):
        with pytest.raises(TypeError, match="float32"):
            call()


@settings(max_examples=15)
@given(features, features, st.sampled_from([1, 8, 70]), densities, seeds)
def test_dense_gradients_are_those_of_autograd(rows: int, columns: int, batch: int, density: float, seed: int) -> None:
    """One weight used as embedding, layer and output layer with its loss, over two passes."""
    weight = PackedWeight.from_dense(matrix(rows, columns, density, seed))
    dense = reference(weight)
    start_collecting(weight)
    assert not has_collected(weight)
    for repeat in range(2):
        generator = seeded(seed + repeat)
        tokens = torch.randint(rows, (batch,), generator=generator)
        x = torch.randn(batch, columns, generator=generator)
        packed_loss = linear_cross_entropy(functional.embedding(tokens, weight) + x, weight, None, tokens)
        (packed_loss + functional.linear(x, weight).square().mean()).backward()
        scores = (dense_functional.embedding(tokens, dense) + x) @ dense.t()
        (dense_functional.cross_entropy(scores, tokens) + (x.double() @ dense.t()).square().mean()).backward()
    assert has_collected(weight)
    assert_close(dense_gradient(weight), dense.grad)
    stop_collecting(weight)
    assert not has_collected(weight)
    assert_same_gradient(weight, dense.grad)


# Operators as torch wants them


def layer_arguments(cell: str, keep: bool, has_bias: bool = True, batch: int = 8) -> tuple[Any, ...]:
    gates = {"lstm": 4, "gru": 3}.get(cell, 1)
    inputs = PackedWeight.from_dense(matrix(gates * 6, 5, 0.5, 0), gate_rows=(6,) * gates)
    recurrence = PackedWeight.from_dense(matrix(gates * 6, 6, 0.5, 1), gate_rows=(6,) * gates)
    bias = torch.zeros(gates * 6, requires_grad=True) if has_bias else None
    return (
        torch.randn(3, batch, 5, generator=seeded(0), requires_grad=True),
        torch.zeros(batch, 6, requires_grad=True),
        torch.zeros(batch, 6, requires_grad=True) if cell == "lstm" else torch.empty(0),
        inputs.values,
        inputs.index,
        recurrence.values,
        recurrence.index,
        bias,
        bias,
        cell,
        keep,
    )


def operator_cases() -> dict[str, tuple[Any, ...]]:
    if not available():
        return {}
    weight = PackedWeight.from_dense(matrix(9, 6, 0.5, 0))
    values, index = weight.values, weight.index
    fixed = plain(values.detach())
    x = torch.randn(4, 6, generator=seeded(0), requires_grad=True)
    bias = torch.zeros(9, requires_grad=True)
    tokens = torch.tensor([[1, 8], [0, 1]])
    return {
        "linear": (x, values, index, bias, 9),
        "linear without bias": (x, values, index, None, 9),
        "linear_backward": (x.detach(), torch.ones(4, 9), fixed, index, [True, True, True]),
        "linear_backward of some": (x.detach(), torch.ones(4, 9), fixed, index, [False, True, False]),
        "lookup": (tokens, values, index, 6),
        "lookup_backward": (tokens, torch.ones(2, 2, 6), fixed, index),
        "cross_entropy": (x, values, index, bias, tokens.flatten(), True),
        "cross_entropy without gradients": (x.detach(), fixed, index, bias.detach(), tokens.flatten(), False),
        **{f"recurrent_layer {cell}": layer_arguments(cell, True) for cell in ("lstm", "gru", "rnn_tanh", "rnn_relu")},
        "recurrent_layer without bias": layer_arguments("lstm", True, has_bias=False),
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", operator_cases())
def test_operators_pass_the_checks_of_torch(name: str) -> None:
    operator = getattr(torch.ops.selfish_rnn, name.split()[0]).default
    torch.library.opcheck(operator, operator_cases()[name])


BATCHES = [1, 2, 7, 13, 20, 65]
"""Those that are no multiple of eight leave lanes of the panels without a token."""


@pytest.mark.slow
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn_tanh", "rnn_relu"])
def test_layers_pass_the_checks_of_torch_at_every_batch_size(cell: str, batch: int) -> None:
    torch.library.opcheck(torch.ops.selfish_rnn.recurrent_layer.default, layer_arguments(cell, True, batch=batch))


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn_tanh", "rnn_relu"])
def test_what_a_layer_keeps_does_not_hang_on_what_memory_held(cell: str, batch: int) -> None:
    arguments = [a.detach() if isinstance(a, torch.Tensor) else a for a in layer_arguments(cell, True, batch=batch)]
    results = []
    before = torch.utils.deterministic.fill_uninitialized_memory, torch.are_deterministic_algorithms_enabled()
    for filled in (True, False):
        # With deterministic algorithms torch fills new memory with NaN.
        torch.utils.deterministic.fill_uninitialized_memory = filled
        torch.use_deterministic_algorithms(filled)
        try:
            results.append(torch.ops.selfish_rnn.recurrent_layer(*arguments))
        finally:
            torch.utils.deterministic.fill_uninitialized_memory = before[0]
            torch.use_deterministic_algorithms(before[1])
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [8, 13])
@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn_tanh"])
def test_the_backward_operator_of_a_layer_passes_the_checks_of_torch(cell: str, batch: int) -> None:
    arguments = [
        plain(a.detach()) if isinstance(a, torch.Tensor) else a for a in layer_arguments(cell, True, batch=batch)
    ]
    x, h, _, input_values, input_index, recurrent_values, recurrent_index, *_ = arguments
    y, h_last, c_last, *kept = torch.ops.selfish_rnn.recurrent_layer(*arguments)
    torch.library.opcheck(
        torch.ops.selfish_rnn.recurrent_layer_backward.default,
        (
            x,
            input_values,
            input_index,
            recurrent_values,
            recurrent_index,
            kept,
            y,
            h_last,
            c_last if cell == "lstm" else None,
            cell,
            h.shape[-1],
            [True, True, cell == "lstm", True, True, True, True],
        ),
    )
