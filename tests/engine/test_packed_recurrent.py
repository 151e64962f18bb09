"""Packed recurrent layers against torch's with masked dense weights."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from packed_cases import assert_close, batches, densities, needs_kernels, seeded, seeds
from packed_recurrent_cases import KINDS, assert_same_network, assert_same_run, in_double, kinds, pair, run, states
from torch import nn

from selfish_rnn.engine import PackedLSTM, PackedWeight
from selfish_rnn.engine.dense_gradients import dense_gradient, start_collecting, stop_collecting
from selfish_rnn.engine.functional import drop_factors, drop_keys

pytestmark = needs_kernels


@pytest.mark.slow
@pytest.mark.usefixtures("target")
@settings(max_examples=50)
@given(
    kinds,
    st.one_of(st.integers(1, 40), st.integers(41, 300)),
    st.one_of(st.integers(1, 40), st.integers(41, 300)),
    st.sampled_from([1, 1, 2, 3]),
    batches,
    st.integers(1, 40),
    densities,
    st.booleans(),
    st.booleans(),
    st.booleans(),
    seeds,
)
@example("lstm", 260, 300, 1, 20, 10, 1.0, True, False, False, 0)
@example("gru", 60, 257, 2, 65, 3, 0.1, True, True, False, 1)
@example("tanh", 1, 1, 1, 1, 1, 1.0, False, False, False, 0)
@example("lstm", 1, 1, 3, 1, 40, 1.0, True, False, True, 2)
@example("lstm", 33, 65, 2, 130, 2, 0.0, True, False, False, 0)
@example("relu", 129, 128, 2, 9, 40, 0.5, True, False, True, 4)
@example("gru", 5, 7, 2, 0, 3, 0.5, True, True, True, 1)
@example("lstm", 5, 7, 2, 0, 3, 0.5, True, False, False, 1)
def test_layers(
    kind: str,
    inputs: int,
    hidden: int,
    layers: int,
    batch: int,
    steps: int,
    density: float,
    bias: bool,
    batch_first: bool,
    bidirectional: bool,
    seed: int,
) -> None:
    steps = max(1, min(steps, 60_000 // (max(batch, 1) * max(inputs, hidden))))
    named = {"bias": bias, "batch_first": batch_first, "bidirectional": bidirectional}
    packed, dense = pair(kind, inputs, hidden, layers, density, seed, **named)
    shape = (batch, steps, inputs) if batch_first else (steps, batch, inputs)
    x = torch.randn(shape, generator=seeded(seed + 1))
    state = states(kind, (layers * (1 + bidirectional), batch, hidden), seed + 2)
    assert_same_run(packed, dense, x, state, seed + 3, last=seed % 3 > 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_single_sequence_without_a_batch_dimension(kind: str, batch_first: bool, bidirectional: bool) -> None:
    packed, dense = pair(kind, 5, 7, 2, batch_first=batch_first, bidirectional=bidirectional)
    state = states(kind, (2 * (1 + bidirectional), 7), 1)
    assert_same_run(packed, dense, torch.randn(6, 5, generator=seeded(0)), state, 2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(4, 3, 5), (4, 5)])
def test_without_a_state_it_is_zero(kind: str, shape: tuple[int, ...]) -> None:
    packed, dense = pair(kind, 5, 7, 2)
    assert_same_run(packed, dense, torch.randn(shape, generator=seeded(0)), [], 2)


@pytest.mark.parametrize("kind", KINDS)
def test_windows_that_follow_each_other_are_one_window(kind: str) -> None:
    """Also their gradients, which pass through the carried state."""
    packed, dense = pair(kind, 5, 33, 2)
    x = torch.randn(8, 3, 5, generator=seeded(0))
    first, *state = run(packed, x[:5], [])
    second, *state = run(packed, x[5:], state)
    torch.cat([first, second]).square().sum().backward()
    expected, *exact_state = run(dense, x.double(), [])
    expected.square().sum().backward()
    assert_close(torch.cat([first, second]), expected)
    for one, other in zip(state, exact_state, strict=True):
        assert_close(one, other)
    assert_same_network(packed, dense)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_only_from_the_last_state(kind: str) -> None:
    packed, dense = pair(kind, 5, 7, 2)
    x = torch.randn(4, 3, 5, generator=seeded(0))
    run(packed, x, [])[-1].square().sum().backward()
    run(dense, x.double(), [])[-1].square().sum().backward()
    assert_same_network(packed, dense)


@pytest.mark.parametrize("kind", KINDS)
def test_frozen_parameters_and_runs_without_gradients(kind: str) -> None:
    packed, dense = pair(kind, 5, 7)
    x = torch.randn(4, 3, 5, generator=seeded(0))
    packed.requires_grad_(False)
    assert not run(packed, x, [])[0].requires_grad
    packed.bias_hh_l0.requires_grad_()
    run(packed, x, [])[0].square().sum().backward()
    run(dense, x.double(), [])[0].square().sum().backward()
    assert_close(packed.bias_hh_l0.grad, dense.bias_hh_l0.grad)
    assert packed.weight_hh_l0.values.grad is None
    with torch.no_grad():
        assert_close(run(packed, x, [])[0], run(dense, x.double(), [])[0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bidirectional", [False, True])
def test_dropout_between_layers_draws_as_torch_does(kind: str, bidirectional: bool) -> None:
    packed, dense = pair(kind, 5, 16, 3, dropout=0.4, bidirectional=bidirectional)
    dense.float()
    x = torch.randn(6, 4, 5, generator=seeded(0))
    results = []
    for network in (packed, dense):
        torch.manual_seed(7)
        y, *_ = run(network, x, [])
        y.square().sum().backward()
        results.append(y)
    assert_close(*results)
    assert_same_network(packed, dense)
    assert_close(run(packed.eval(), x, [])[0], run(dense.eval(), x, [])[0])


def test_a_bias_counts_also_where_pruning_has_put_it() -> None:
    packed, _ = pair("lstm", 5, 16, 1)
    x = torch.randn(6, 4, 5, generator=seeded(0))
    expected = run(packed, x, [])[0]
    torch.nn.utils.prune.identity(packed, "bias_hh_l0")
    assert "bias_hh_l0" not in packed._parameters
    with torch.no_grad():
        assert torch.equal(run(packed, x, [])[0], expected)


@pytest.mark.parametrize("kind", KINDS)
def test_weight_drop_is_a_dense_network_with_dropped_weights(kind: str) -> None:
    packed, dense = pair(kind, 5, 16, 2)
    packed.weight_drop = 0.5
    x = torch.randn(6, 4, 5, generator=seeded(0))
    torch.manual_seed(7)
    y, *_ = run(packed, x, [])
    y.square().sum().backward()

    torch.manual_seed(7)
    parameters = dict(dense.named_parameters())
    dropped = {
        name: parameter * drop_factors(parameter.shape, 0.5, True, drop_keys("cpu"))
        for name, parameter in parameters.items()
        if name.startswith("weight_hh")
    }
    expected, _ = torch.func.functional_call(dense, {**parameters, **dropped}, (x.double(),))
    expected.square().sum().backward()
    assert_close(y, expected)
    assert_same_network(packed, dense)
    assert_close(run(packed.eval(), x, [])[0], run(dense.eval(), x.double(), [])[0])


@settings(max_examples=15)
@given(kinds, st.integers(1, 140), st.integers(1, 140), st.sampled_from([1, 3, 8, 65]), densities, seeds)
def test_dense_gradients_are_those_of_autograd(
    kind: str, inputs: int, hidden: int, batch: int, density: float, seed: int
) -> None:
    packed, dense = pair(kind, inputs, hidden, 2, density, seed)
    weights = {name: module for name, module in packed.named_modules() if isinstance(module, PackedWeight)}
    for weight in weights.values():
        start_collecting(weight)
    for repeat in range(2):
        x = torch.randn(4, batch, inputs, generator=seeded(seed + repeat))
        state = states(kind, (2, batch, hidden), seed)
        run(packed, x, state)[0].square().mean().backward()
        run(dense, x.double(), in_double(state))[0].square().mean().backward()
    for name, weight in weights.items():
        assert_close(dense_gradient(weight), dense.get_parameter(name).grad, name)
        stop_collecting(weight)


def test_what_does_not_fit_is_refused() -> None:
    lstm = PackedLSTM(5, 7, 2, sparsity=0.5)
    with pytest.raises(ValueError, match="must have 5 features"):
        lstm(torch.zeros(4, 3, 6))
    state = torch.zeros(2, 3, 7)
    with pytest.raises(ValueError, match=r"of shape \(2, 3, 7\)"):
        lstm(torch.zeros(4, 3, 5), (state, state[:1]))
    for shape in ((0, 3, 5), (0, 0, 5)):
        with pytest.raises(ValueError, match="at least one step"):
            lstm(torch.zeros(shape))
    with pytest.raises(TypeError, match="float32"):
        lstm.double()(torch.zeros(4, 3, 5))


def test_weights_of_other_gates_are_refused() -> None:
    """The kernels count on every gate being cut in the same places."""
    dense = nn.LSTM(5, 64)
    with pytest.raises(ValueError, match=r"weight_hh_l0 needs a packed weight of \(256, 64\) with gates"):
        PackedLSTM.from_dense(dense, weight_hh_l0=PackedWeight.from_dense(dense.weight_hh_l0))
    with pytest.raises(ValueError, match="weight_ih_l0 needs"):
        PackedLSTM.from_dense(dense, weight_ih_l0=PackedLSTM.from_dense(dense).weight_hh_l0)
