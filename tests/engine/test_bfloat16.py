"""Products in bfloat16 against double precision with rounded operands, and where they are chosen."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from packed_cases import batches, densities, features, matrix, needs_kernels, packed, seeded, seeds
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from selfish_rnn import pack
from selfish_rnn.engine import PackedWeight, available, library, linear_cross_entropy, operators, precision
from selfish_rnn.engine.dense_gradients import dense_gradient, start_collecting, stop_collecting
from selfish_rnn.engine.operators.highway import highway
from selfish_rnn.engine.operators.recurrent import GATES, recurrent_layer
from selfish_rnn.engine.parameters import plain

pytestmark = needs_kernels

FLIPS = 2e-4
"""Relative error where a result of float32 arithmetic is rounded: a few numbers lie on the other side of a tie."""


def kernels() -> list[str]:
    """Return the float32 targets whose bfloat16 kernels this processor can run."""
    if not available():
        return []
    best = library.targets()[-1]
    return ["portable", best] if library.kernels().selfish_bf16_target() == 2 else ["portable"]


@pytest.fixture(scope="module", params=kernels())
def target(request: pytest.FixtureRequest) -> Iterator[str]:
    before = library.target()
    library.use_target(request.param)
    yield request.param
    library.use_target(before)


class RoundedProduct(torch.autograd.Function):
    """``x W^T + b`` with operands rounded to bfloat16, also those of the backward pass, in double precision."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(rounded(x), rounded(weight))
        return rounded(x) @ rounded(weight).T + bias

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        x, weight = ctx.saved_tensors
        d = rounded(gradients[0])
        return d @ weight, d.T @ x, d.sum(0)


def rounded(tensor: Tensor) -> Tensor:
    return tensor.float().bfloat16().double()


def product(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    result: Tensor = RoundedProduct.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return result


def assert_near(actual: Tensor | None, expected: Tensor | None, tolerance: float, what: str) -> None:
    """Check that the norm of the difference is a small part of the norm, and that nothing is left unwritten."""
    assert actual is not None, what
    assert expected is not None, what
    assert actual.shape == expected.shape, what
    error = (actual.double() - expected).norm()
    assert error <= tolerance * expected.norm() + 1e-6 * expected.numel() ** 0.5, (
        f"{what}: {error / expected.norm():.2g}"
    )


def dense_of(weight: PackedWeight) -> Tensor:
    return weight.to_dense().detach().double().requires_grad_()


def at_weights(weight: PackedWeight, gradient: Tensor | None) -> Tensor:
    """Return a dense gradient at the existing weights, in the order of the values."""
    assert gradient is not None
    positions, places = weight.sorted()
    return gradient.flatten()[positions][places.long().argsort()]


@pytest.mark.usefixtures("target")
@settings(max_examples=40)
@given(features, features, batches, densities, seeds)
@example(1, 1, 1, 1.0, 0)
@example(330, 700, 130, 0.5, 1)
@example(7, 5, 3, 0.0, 0)
@example(1000, 900, 65, 0.01, 3)
def test_linear(rows: int, columns: int, batch: int, density: float, seed: int) -> None:
    weight = PackedWeight.from_dense(matrix(rows, columns, density, seed))
    generator = seeded(seed + 1)
    x = torch.randn(batch, columns, generator=generator, requires_grad=True)
    bias = torch.randn(rows, generator=generator, requires_grad=True)
    y = operators.linear(x, weight.values, weight.index, bias, rows, "bfloat16")
    d = torch.randn(batch, rows, generator=generator)
    y.backward(d)

    dense, exact = dense_of(weight), x.detach().double().requires_grad_()
    exact_bias = bias.detach().double().requires_grad_()
    expected = product(exact, dense, exact_bias)
    expected.backward(d.double())
    assert_near(y, expected.detach(), 1e-6, "output")
    assert_near(x.grad, exact.grad, 1e-6, "gradient of the input")
    assert_near(weight.values.grad, at_weights(weight, dense.grad), 1e-6, "gradient of the weight")
    assert_near(bias.grad, exact_bias.grad, 1e-6, "gradient of the bias")


@pytest.mark.usefixtures("target")
@settings(max_examples=25)
@given(features, features, batches, densities, seeds)
@example(900, 30, 300, 0.3, 0)
def test_cross_entropy(rows: int, columns: int, batch: int, density: float, seed: int) -> None:
    weight = PackedWeight.from_dense(matrix(rows, columns, density, seed))
    generator = seeded(seed + 1)
    x = torch.randn(batch, columns, generator=generator, requires_grad=True)
    bias = torch.randn(rows, generator=generator).mul(5).requires_grad_()
    targets = torch.randint(rows, (batch,), generator=generator)
    loss = operators.cross_entropy(x, weight.values, weight.index, bias, targets, True, "bfloat16")[0]
    loss.backward()

    dense = dense_of(weight).detach()
    scores = rounded(x.detach()) @ rounded(dense).T + bias.detach().double()
    top = (scores.amax(-1, keepdim=True) / 0.693147182).ceil() * 0.693147182
    powers = (scores - top).exp()
    total = powers.sum(-1, keepdim=True)
    powers[torch.arange(batch), targets] -= total.flatten()
    operands, factor = rounded(powers), 1 / (total * batch)
    exact = nn.functional.cross_entropy(scores, targets)
    assert abs(loss.item() - exact.item()) <= 1e-6 * max(1, exact.item())
    scale = 1 + 1e-4 / FLIPS  # with a word that is nearly certain little is left of its gradient
    assert_near(x.grad, (operands @ rounded(dense)) * factor, scale * FLIPS, "gradient of the input")
    exact_gradient = operands.T @ rounded(x.detach().double() * factor)
    assert_near(weight.values.grad, at_weights(weight, exact_gradient), scale * FLIPS, "gradient of the weight")
    assert_near(bias.grad, (operands * factor).sum(0), scale * FLIPS, "gradient of the bias")


@pytest.mark.usefixtures("target")
def test_a_loss_without_gradients_is_the_same() -> None:
    weight, x = packed(100, 20, 0.4, 1), torch.randn(70, 20, generator=seeded(2))
    weight.precision = "bfloat16"
    targets = torch.randint(100, (70,), generator=seeded(3))
    with torch.no_grad():
        alone = linear_cross_entropy(x, weight, None, targets)
    assert torch.equal(alone, linear_cross_entropy(x, weight, None, targets).detach())


def step_of(cell: str, from_inputs: Tensor, from_state: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """Return h and c after one step, from the sums of the inputs and of the recurrence."""
    if cell == "lstm":
        i, f, g, o = (from_inputs + from_state).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c
    if cell == "gru":
        (r, z, n), (r_h, z_h, n_h) = from_inputs.chunk(3, -1), from_state.chunk(3, -1)
        n = (n + (r + r_h).sigmoid() * n_h).tanh()
        return n + (z + z_h).sigmoid() * (h - n), c
    return (from_inputs + from_state).tanh(), c


@pytest.mark.usefixtures("target")
@settings(max_examples=25)
@given(
    st.sampled_from(["lstm", "gru", "rnn_tanh"]),
    st.integers(1, 60),
    st.integers(1, 5),
    st.integers(1, 65),
    densities,
    seeds,
)
@example("lstm", 400, 2, 20, 0.1, 0)
@example("lstm", 40, 4, 20, 0.5, 0)
@example("gru", 33, 3, 33, 0.5, 0)
def test_recurrent_layer(cell: str, hidden: int, steps: int, batch: int, density: float, seed: int) -> None:
    gates, inputs, generator = GATES[cell], seed % 50 + 1, seeded(seed)
    weights = [packed(gates * hidden, width, density, seed + at, gates) for at, width in enumerate((inputs, hidden))]
    biases = [torch.randn(gates * hidden, generator=generator, requires_grad=True) for _ in range(2)]
    x = torch.randn(steps, batch, inputs, generator=generator, requires_grad=True)
    h = torch.randn(batch, hidden, generator=generator).tanh().requires_grad_()
    c = torch.randn(batch, hidden, generator=generator, requires_grad=True) if cell == "lstm" else torch.empty(0)
    matrices = [tensor for weight in weights for tensor in (weight.values, weight.index)]
    y, h_last, c_last, *_ = recurrent_layer(x, h, c, *matrices, *biases, cell, True, "bfloat16")
    factors = [torch.randn(tensor.shape, generator=generator) for tensor in (y, h_last, c_last)]
    sum((tensor * factor).sum() for tensor, factor in zip((y, h_last, c_last), factors, strict=True)).backward()

    exact = [tensor.detach().double().requires_grad_() for tensor in (x, h, c, *biases)]
    dense = [dense_of(weight) for weight in weights]
    state, memory, outputs = exact[1], exact[2], []
    from_inputs = product(exact[0].flatten(0, 1), dense[0], exact[3]).view(steps, batch, -1)
    for step in from_inputs:
        state, memory = step_of(cell, step, product(state, dense[1], exact[4]), state, memory)
        outputs.append(state)
    expected = [torch.stack(outputs), state, memory]
    sum((tensor * factor).sum() for tensor, factor in zip(expected, factors, strict=True)).backward()
    assert_near(y, expected[0].detach(), FLIPS, "output")
    assert_near(c_last, memory.detach(), FLIPS, "last c")
    for tensor, other, what in zip((x, h, *biases), (*exact[:2], *exact[3:]), "xhbr", strict=True):
        assert_near(tensor.grad, other.grad, 5 * FLIPS, f"gradient of {what}")
    for weight, other in zip(weights, dense, strict=True):
        assert_near(weight.values.grad, at_weights(weight, other.grad), 5 * FLIPS, "gradient of a weight")


@pytest.mark.usefixtures("target")
def test_an_evaluation_gives_the_output_of_training() -> None:
    lstm = pack_of(nn.LSTM(9, 13, 2))
    x = torch.randn(7, 20, 9, generator=seeded(0))
    with torch.no_grad():
        alone = lstm(x)[0]
    assert torch.equal(alone, lstm(x)[0].detach())


def pack_of(module: Any, density: float = 0.4) -> Any:
    """Return a module, packed with precision bfloat16, of whose weights some are zero."""
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim == 2:
                parameter.mul_(torch.rand(parameter.shape, generator=seeded(1)) < density)
    return pack(module, precision="bfloat16")


@pytest.mark.usefixtures("target")
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_sequences_of_different_lengths_in_both_directions(kind: Any) -> None:
    torch.manual_seed(0)
    bfloat16 = pack_of(kind(20, 30, 2, bidirectional=True))
    float32 = copy.deepcopy(bfloat16)
    for weight in float32.modules():
        if isinstance(weight, PackedWeight):
            weight.precision = "float32"
    x = torch.randn(9, 40, 20)
    gradients = []
    for module in (bfloat16, float32):
        y, _ = module(pack_padded_sequence(x, [9] * 35 + [6, 4, 4, 2, 1]))
        y.data.square().sum().backward()
        gradients.append({name: parameter.grad for name, parameter in module.named_parameters()})
    for name, gradient in gradients[1].items():
        assert_near(gradients[0][name], gradient.double(), 2e-2, name)
    assert not torch.equal(gradients[0]["weight_hh_l0.values"], gradients[1]["weight_hh_l0.values"])


@pytest.mark.usefixtures("target")
def test_gradients_at_a_larger_size_are_those_of_float32_to_the_precision_of_operands() -> None:
    torch.manual_seed(0)
    bfloat16 = pack_of(nn.LSTM(200, 200), 0.2)
    float32 = copy.deepcopy(bfloat16)
    for weight in (float32.weight_ih_l0, float32.weight_hh_l0):
        weight.precision = "float32"
    x, gradients = torch.randn(10, 20, 200), []
    d = torch.randn(10, 20, 200)
    for module in (bfloat16, float32):
        module(x)[0].backward(d)
        gradients.append([parameter.grad for parameter in module.parameters()])
    for ours, theirs in zip(*gradients, strict=True):
        assert_near(ours, theirs.double(), 4e-3, "gradient")


# Numbers that are not finite


@pytest.mark.usefixtures("target")
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("density", [0.02, 0.3])
def test_a_bad_number_reaches_what_its_weights_reach(bad: float, density: float) -> None:
    weight = packed(70, 90, density, 1)
    x, d = torch.randn(40, 90, generator=seeded(2)), torch.randn(40, 70, generator=seeded(3))
    x[3, 5], d[6, 7] = bad, bad
    arguments = weight.values.detach(), weight.index
    for ours, theirs in zip(
        (
            operators.linear(x, *arguments, None, 70, "bfloat16"),
            *operators.linear_backward(x, d, *arguments, [True] * 3, "bfloat16"),
        ),
        (operators.linear(x, *arguments, None, 70), *operators.linear_backward(x, d, *arguments, [True] * 3)),
        strict=True,
    ):
        assert torch.equal(ours.isfinite(), theirs.isfinite())


# Choice


@pytest.mark.usefixtures("target")
def test_autocast_chooses_bfloat16() -> None:
    lstm = pack_of(nn.LSTM(20, 30))
    x = torch.randn(5, 20, 20, generator=seeded(0))
    expected = lstm(x)[0]
    lstm.weight_ih_l0.precision = "float32"
    assert not torch.equal(lstm(x)[0], expected)
    with torch.autocast("cpu", torch.bfloat16):
        y = lstm(x)[0]
    assert torch.equal(y, expected)
    with torch.autocast("cpu", torch.float16):
        assert not torch.equal(lstm(x)[0], expected)


@pytest.mark.usefixtures("target")
def test_few_tokens_are_computed_in_float32() -> None:
    layer = pack_of(nn.Linear(20, 30))
    float32 = copy.deepcopy(layer)
    float32.weight.precision = "float32"
    x = torch.randn(precision.FEWEST_TOKENS, 20, generator=seeded(0))
    assert torch.equal(layer(x[1:]), float32(x[1:]))
    assert not torch.equal(layer(x), float32(x))


def test_a_processor_without_bfloat16_computes_in_float32_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(precision, "bfloat16_target", lambda: None)
    precision._warn_about_float32.cache_clear()
    with caplog.at_level(logging.WARNING, "selfish_rnn.engine"):
        layer = pack_of(nn.Linear(20, 30))
    assert "AVX512_BF16" in caplog.text
    x = torch.randn(64, 20, generator=seeded(0))
    expected = operators.linear(x, layer.weight.values, layer.weight.index, layer.bias, 30)
    assert torch.equal(layer(x), expected)


def test_other_targets_have_no_bfloat16() -> None:
    before = library.target()
    for name in library.targets():
        library.use_target(name)
        expected = "emulation" if name == "portable" else "avx512_bf16" if name in kernels() else None
        assert precision.bfloat16_target() == expected
    library.use_target(before)


def test_unknown_precisions_are_refused() -> None:
    with pytest.raises(ValueError, match="float16"):
        pack(nn.Linear(3, 3), precision="float16")


@pytest.mark.usefixtures("target")
def test_columns_are_those_of_the_kernels() -> None:
    native = library.kernels()
    for count in range(1, 300):
        assert precision.step_columns(count) == native.selfish_bf16_step_columns(count)
        assert precision.wide_columns(count) == native.selfish_bf16_wide_columns(count)


# Topology


@pytest.mark.usefixtures("target")
def test_the_index_follows_a_rewiring_and_is_forgotten_with_its_weight() -> None:
    weight = packed(50, 60, 0.3, 2)
    x = torch.randn(40, 60, generator=seeded(3))
    before = len(precision._indexes)
    for _ in range(3):
        y = operators.linear(x, weight.values, weight.index, None, 50, "bfloat16")
        assert_near(y, rounded(x) @ rounded(weight.to_dense().detach()).T, 1e-6, "output")
        positions, _ = weight.sorted()
        free = torch.ones(3000, dtype=torch.bool).index_fill_(0, positions, False).nonzero().flatten()
        weight.change_topology(positions[::3], free[: len(positions[::3])])
        weight.values.data.uniform_(-1, 1, generator=seeded(4))
    assert len(precision._indexes) <= before + 2


@pytest.mark.usefixtures("target")
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_dense_gradients(kind: Any) -> None:
    torch.manual_seed(0)
    module = pack_of(kind(20, 30))
    weights = module.weight_ih_l0, module.weight_hh_l0
    for weight in weights:
        start_collecting(weight)
    module(torch.randn(5, 20, 20))[0].square().sum().backward()
    for weight in weights:
        dense = dense_gradient(weight).double()
        assert_near(weight.values.grad, at_weights(weight, dense), 5e-3, "gradient")
        stop_collecting(weight)


# Operators


@pytest.mark.usefixtures("target")
@pytest.mark.parametrize("needs", [[True, True, True], [False, True, False], [True, False, False]])
def test_opcheck_of_products(needs: list[bool]) -> None:
    weight = packed(30, 20, 0.4, 1)
    values = plain(weight.values.detach()).clone().requires_grad_()
    x, d, bias = torch.randn(40, 20, requires_grad=True), torch.randn(40, 30), torch.randn(30, requires_grad=True)
    check = torch.library.opcheck
    ops = torch.ops.selfish_rnn
    check(ops.linear.default, (x, values, weight.index, bias, 30, "bfloat16"))
    arguments = x.detach(), d, values.detach(), weight.index, needs, "bfloat16"
    check(ops.linear_backward.default, arguments)
    targets = torch.randint(30, (40,))
    check(ops.cross_entropy.default, (x, values, weight.index, bias, targets, True, "bfloat16"))


@pytest.mark.usefixtures("target")
@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn_relu"])
def test_opcheck_of_recurrent_layers(cell: str) -> None:
    rows = 5 * GATES[cell]
    weights = [packed(rows, width, 0.5, 1, GATES[cell]) for width in (3, 5)]
    matrices = [
        tensor
        for weight in weights
        for tensor in (plain(weight.values.detach()).clone().requires_grad_(), weight.index)
    ]
    x, h = torch.randn(4, 20, 3, requires_grad=True), torch.randn(20, 5, requires_grad=True)
    c = torch.randn(20, 5, requires_grad=True) if cell == "lstm" else torch.empty(0)
    bias = torch.randn(rows, requires_grad=True)
    arguments = (x, h, c, *matrices, bias, bias, cell, True, "bfloat16")
    torch.library.opcheck(torch.ops.selfish_rnn.recurrent_layer.default, arguments)


@pytest.mark.usefixtures("target")
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("shape", [(3, 20, 30), (2, 37, 16), (5, 7, 9)])
def test_highway_layers_are_near_those_in_float32(masked: bool, shape: tuple[int, int, int]) -> None:
    (steps, batch, hidden), depth = shape, 3
    inputs = packed(2 * hidden, 11, 0.5, 1)
    levels = [packed(2 * hidden, hidden, 0.5, 2 + level, 2) for level in range(depth)]
    for weight in (inputs, *levels):
        start_collecting(weight)
    biases = [torch.randn(2 * hidden, generator=seeded(level)).requires_grad_() for level in range(depth)]
    x, h = torch.randn(steps, batch, 11, generator=seeded(5)), torch.randn(batch, hidden, generator=seeded(6))
    mask = torch.rand(batch, hidden, generator=seeded(7)).round() if masked else None
    gradients = []
    for kind in ("bfloat16", "float32"):
        tensors = [tensor.clone().requires_grad_() for tensor in (x, h)]
        values = [plain(weight.values.detach()).clone().requires_grad_() for weight in (inputs, *levels)]
        indices = [weight.index for weight in levels]
        y = highway(*tensors, mask, values[0], inputs.index, values[1:], indices, biases, True, kind)[0]
        again = highway(*tensors, mask, values[0], inputs.index, values[1:], indices, biases, False, kind)[0]
        assert torch.equal(again, y)
        sources = [*tensors, *values, *biases]
        gradients.append([y.detach(), *torch.autograd.grad(y.square().sum(), sources)])
        gradients[-1] += [dense_gradient(weight) for weight in (inputs, *levels)]
        for weight in (inputs, *levels):
            stop_collecting(weight)
            start_collecting(weight)
    for ours, theirs in zip(*gradients, strict=True):
        assert_near(ours, theirs.double(), 1e-2, "result")
    assert not torch.equal(gradients[0][0], gradients[1][0])
    for weight in (inputs, *levels):
        stop_collecting(weight)
