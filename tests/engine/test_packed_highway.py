"""The recurrent highway cell with packed weights against the dense one."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from packed_cases import assert_close, batches, densities, needs_kernels, seeded, seeds
from packed_cell_cases import (
    assert_collects,
    assert_same_parameters,
    backward,
    differentiable,
    in_double,
    packed_cell,
    packed_model,
    pair,
    sparse_cell_,
    window,
)
from torch import Tensor, nn

from selfish_rnn.engine import pack
from selfish_rnn.engine.operators import highway as highway_operators
from selfish_rnn.engine.parameters import plain
from selfish_rnn.models import RecurrentHighwayNetwork
from selfish_rnn.models.cells.highway import HighwayCell

pytestmark = needs_kernels

SIZES = st.one_of(st.integers(1, 24), st.integers(100, 140))


def state_mask(batch: int, hidden: int, seed: int) -> Tensor:
    return (torch.rand(batch, hidden, generator=seeded(seed)) < 0.7) / 0.7


@settings(max_examples=25)
@given(
    steps=st.integers(1, 5),
    batch=batches,
    inputs=SIZES,
    hidden=SIZES,
    depth=st.integers(1, 4),
    density=densities,
    masked=st.booleans(),
    seed=seeds,
)
@example(steps=2, batch=20, inputs=30, hidden=300, depth=2, density=0.1, masked=True, seed=3)
@example(steps=4, batch=1, inputs=9, hidden=70, depth=3, density=0.5, masked=True, seed=4)
@example(steps=1, batch=130, inputs=8, hidden=5, depth=1, density=0.5, masked=False, seed=6)
@pytest.mark.usefixtures("target")
def test_outputs_and_gradients(
    steps: int, batch: int, inputs: int, hidden: int, depth: int, density: float, masked: bool, seed: int
) -> None:
    packed, dense = pair(HighwayCell(inputs, hidden, depth), density, seed)
    mask = state_mask(batch, hidden, seed) if masked else None
    given_window = window((steps, batch, inputs), hidden, 1, seed)
    exact_window = in_double(given_window)
    got = packed(*given_window, mask)
    want = dense(*exact_window, None if mask is None else mask.double())
    assert_close(got, want, "states")
    with torch.no_grad():
        assert torch.equal(packed(*given_window, mask), got)
    backward([got], seed)
    backward([want], seed)
    for name, tensor, exact in zip(("inputs", "state"), given_window, exact_window, strict=True):
        assert_close(tensor.grad, exact.grad, name)
    assert_same_parameters(packed, dense)


def test_levels_may_be_tiled_differently() -> None:
    """A very sparse matrix is cut into larger tiles, so threads share its units otherwise."""
    cell = HighwayCell(10, 300, 3)
    sparse_cell_(cell, 0.5, 2)
    with torch.no_grad():
        cell.get_parameter("weight_recurrent_2").mul_(torch.rand(600, 300, generator=seeded(1)) < 0.1)
    packed = packed_cell(cell)
    threads = torch.get_num_threads()
    given_window = window((3, 20, 10), 300, 1, 5)
    exact_window = in_double(given_window)
    want = cell.double()(*exact_window)
    backward([want], 1)
    try:
        torch.set_num_threads(2)
        got = packed(*given_window)
        backward([got], 1)
    finally:
        torch.set_num_threads(threads)
    assert_close(got, want)
    assert_close(given_window[0].grad, exact_window[0].grad)
    assert_same_parameters(packed, cell)


def test_only_what_needs_a_gradient_gets_one() -> None:
    packed, dense = pair(HighwayCell(6, 20, 2), 0.5, 2)
    x, h = window((3, 4, 6), 20, 1, 2)
    for frozen in (packed.weight_recurrent_1.values, packed.bias_recurrent_2, packed.weight_input.values):
        frozen.requires_grad_(False)
    backward([packed(x.detach(), h.detach())], 1)
    backward([dense(x.detach().double(), h.detach().double())], 1)
    assert packed.weight_recurrent_1.values.grad is None
    assert packed.bias_recurrent_2.grad is None
    assert_close(packed.bias_recurrent_1.grad, dense.bias_recurrent_1.grad)
    positions, places = packed.weight_recurrent_2.sorted()
    gradient = packed.weight_recurrent_2.values.grad[places]
    assert_close(gradient, dense.weight_recurrent_2.grad.flatten()[positions])


@pytest.mark.parametrize("masked", [False, True])
def test_dense_gradients(masked: bool) -> None:
    packed, dense = pair(HighwayCell(9, 12, 3), 0.3, 4)
    given_window = window((4, 20, 9), 12, 1, 3)
    mask = state_mask(20, 12, 1) if masked else None

    def run(cell: nn.Module) -> None:
        dtype = cell.bias_input.dtype
        entering = [tensor.detach().to(dtype) for tensor in given_window]
        backward([cell(*entering, None if mask is None else mask.to(dtype))], 2)

    assert_collects(packed, dense, run)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 8, 13])
@pytest.mark.parametrize("masked", [False, True])
def test_operator(masked: bool, batch: int) -> None:
    packed, _ = pair(HighwayCell(5, 6, 2), 0.5, 1)
    x, h = window((3, batch, 5), 6, 1, 1)
    mask = state_mask(batch, 6, 1) if masked else None
    weights = packed.recurrent_weights()
    values, indices = [differentiable(weight) for weight in weights], [weight.index for weight in weights]
    biases = packed.recurrent_biases()
    torch.library.opcheck(
        highway_operators.highway,
        (
            x,
            h,
            mask,
            differentiable(packed.weight_input),
            packed.weight_input.index,
            values,
            indices,
            biases,
            True,
            "float32",
        ),
    )
    x, h, entering = x.detach(), h.detach(), plain(packed.weight_input.values.detach())
    values, biases = [each.detach() for each in values], [each.detach() for each in biases]
    index = packed.weight_input.index
    y, *kept = highway_operators.highway(x, h, mask, entering, index, values, indices, biases, True, "float32")
    torch.library.opcheck(
        highway_operators.highway_backward,
        (x, mask, entering, index, values, indices, kept, torch.ones_like(y), [True] * 7),
    )


@pytest.mark.parametrize("training", [True, False])
def test_whole_model(training: bool) -> None:
    torch.manual_seed(1)
    dense = RecurrentHighwayNetwork(50, hidden=40, depth=3)
    sparse_cell_(dense.cell, 0.4, 2)
    with torch.no_grad():
        dense.embedding.weight.mul_(torch.rand(50, 40) < 0.4)
    packed = packed_model(dense, ["cell"])
    assert packed.decoder.weight is packed.embedding.weight
    tokens, targets = torch.randint(50, (2, 6, 5))
    losses = []
    for model in (packed.train(training), dense.train(training)):
        torch.manual_seed(7)
        encoded = model.encode(tokens, model.initial_state(5))
        losses.append(model.loss(encoded.output, targets) + encoded.state[0].square().sum())
        losses[-1].backward()
    assert_close(*losses)
    assert_same_parameters(packed, dense)


def test_pack_takes_the_cell() -> None:
    model = RecurrentHighwayNetwork(20, hidden=10, depth=2)
    sparse_cell_(model.cell, 0.5, 2)
    tokens = torch.randint(20, (3, 2))
    want = model.eval()(tokens)[0]
    assert_close(pack(model)(tokens)[0], want)
    model.reset_parameters()
    assert torch.isfinite(model(tokens)[0]).all()


@pytest.mark.parametrize(
    ("inputs", "state"),
    [((3, 4, 6), (4, 6)), ((3, 4, 5), (4, 7)), ((3, 4, 5), (3, 6)), ((0, 4, 5), (4, 6))],
)
def test_wrong_shapes_are_refused(inputs: tuple[int, ...], state: tuple[int, ...]) -> None:
    packed, _ = pair(HighwayCell(5, 6, 2), 0.5, 1)
    with pytest.raises(ValueError, match=r"shape|matrix|step"):
        packed(torch.zeros(inputs), torch.zeros(state))
