"""The ordered-neurons LSTM with packed weights against the dense one."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from packed_cases import assert_close, batches, densities, needs_kernels, seeds
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
from torch import nn

from selfish_rnn.engine import pack
from selfish_rnn.engine.operators import ordered_neurons as ordered_operators
from selfish_rnn.models import OrderedNeuronsLSTM
from selfish_rnn.models.cells.ordered_neurons import OrderedNeuronsCell

pytestmark = needs_kernels


@settings(max_examples=25)
@given(
    steps=st.integers(1, 5),
    batch=batches,
    inputs=st.one_of(st.integers(1, 24), st.integers(100, 140)),
    chunks=st.one_of(st.integers(1, 8), st.integers(30, 50)),
    chunk=st.sampled_from([1, 2, 3, 5]),
    density=densities,
    seed=seeds,
)
@example(steps=2, batch=20, inputs=30, chunks=30, chunk=10, density=0.1, seed=3)
@example(steps=3, batch=1, inputs=9, chunks=7, chunk=10, density=0.5, seed=4)
@example(steps=1, batch=130, inputs=8, chunks=1, chunk=5, density=0.5, seed=6)
@pytest.mark.usefixtures("target")
def test_outputs_and_gradients(
    steps: int, batch: int, inputs: int, chunks: int, chunk: int, density: float, seed: int
) -> None:
    hidden = chunks * chunk
    packed, dense = pair(OrderedNeuronsCell(inputs, hidden, chunk), density, seed)
    given_window = window((steps, batch, inputs), hidden, 2, seed)
    exact_window = in_double(given_window)
    got, want = packed(*given_window), dense(*exact_window)
    for name, output, exact in zip(got._fields, got, want, strict=True):
        assert_close(output, exact, name)
    with torch.no_grad():
        assert all(torch.equal(*both) for both in zip(packed(*given_window), got, strict=True))
    backward(list(got[:2]), seed)
    backward(list(want[:2]), seed)
    for name, tensor, exact in zip(("inputs", "hidden", "cell"), given_window, exact_window, strict=True):
        assert_close(tensor.grad, exact.grad, name)
    assert_same_parameters(packed, dense)


def test_two_threads() -> None:
    packed, dense = pair(OrderedNeuronsCell(20, 150, 10), 0.4, 2)
    given_window = window((4, 20, 20), 150, 2, 1)
    exact_window = in_double(given_window)
    want = dense(*exact_window)
    backward([want.hidden], 1)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        got = packed(*given_window)
        backward([got.hidden], 1)
    finally:
        torch.set_num_threads(threads)
    assert_close(got.hidden, want.hidden)
    assert_same_parameters(packed, dense)


def test_gradient_of_the_last_cell_alone() -> None:
    packed, dense = pair(OrderedNeuronsCell(6, 8, 2), 0.5, 2)
    given_window = window((3, 4, 6), 8, 2, 2)
    exact_window = in_double(given_window)
    backward([packed(*given_window).cell], 1)
    backward([dense(*exact_window).cell], 1)
    assert_same_parameters(packed, dense)
    assert_close(given_window[2].grad, exact_window[2].grad)


@pytest.mark.parametrize("training", [True, False])
def test_drop_connect_drops_the_same_weights(training: bool) -> None:
    cell = sparse_cell_(OrderedNeuronsCell(9, 20, 5, weight_drop=0.4), 0.5, 2)
    packed, dense = packed_cell(cell).train(training), cell.train(training)
    entering = [tensor.detach() for tensor in window((4, 3, 9), 20, 2, 1)]
    outputs = []
    for each in (packed, dense):
        torch.manual_seed(3)
        outputs.append(each(*entering).hidden)
        backward([outputs[-1]], 1)
        after = torch.rand(1)
        outputs.append(after)
    assert_close(outputs[0], outputs[2])
    assert torch.equal(outputs[1], outputs[3])
    assert_same_parameters(packed, dense)


@pytest.mark.parametrize("weight_drop", [0.0, 0.4])
def test_dense_gradients(weight_drop: float) -> None:
    cell = sparse_cell_(OrderedNeuronsCell(9, 12, 3, weight_drop), 0.3, 4)
    given_window = window((4, 20, 9), 12, 2, 3)

    def run(cell: nn.Module) -> None:
        torch.manual_seed(5)
        backward([cell(*(tensor.detach() for tensor in given_window)).hidden], 2)

    assert_collects(packed_cell(cell), cell, run)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 8, 13])
def test_operator(batch: int) -> None:
    packed, _ = pair(OrderedNeuronsCell(5, 6, 2), 0.5, 1)
    weights = packed.weight_input, packed.weight_recurrent
    tensors = [tensor for weight in weights for tensor in (differentiable(weight), weight.index)]
    torch.library.opcheck(
        ordered_operators.ordered_neurons,
        (*window((3, batch, 5), 6, 2, 1), *tensors, packed.bias_input, 2, True),
    )
    x, *state = (tensor.detach() for tensor in window((3, batch, 5), 6, 2, 1))
    tensors = [tensor.detach() for tensor in tensors]
    bias = packed.bias_input.detach()
    found = ordered_operators.Results(*ordered_operators.ordered_neurons(x, *state, *tensors, bias, 2, True))
    kept = [found.gates, found.masters, found.cells, found.h_panels]
    torch.library.opcheck(
        ordered_operators.ordered_neurons_backward,
        (x, *tensors, kept, torch.ones_like(found.y), None, 2, [True] * 6 + [False]),
    )


@pytest.mark.parametrize("training", [True, False])
def test_whole_model(training: bool) -> None:
    torch.manual_seed(1)
    dense = OrderedNeuronsLSTM(50, embedding=20, hidden=40, chunk=10)
    for number, cell in enumerate(dense.cells):
        sparse_cell_(cell, 0.4, number)
    with torch.no_grad():
        dense.embedding.weight.mul_(torch.rand(50, 20) < 0.4)
    packed = packed_model(dense, [f"cells.{number}" for number in range(3)])
    tokens, targets = torch.randint(50, (2, 6, 5))
    losses = []
    for model in (packed.train(training), dense.train(training)):
        torch.manual_seed(7)
        encoded = model.encode(tokens, model.initial_state(5))
        losses.append(model.loss(encoded.output, targets) + sum(state.square().sum() for state in encoded.state))
        losses[-1].backward()
    assert_close(*losses)
    assert_same_parameters(packed, dense)
    for ours, theirs in zip(packed.eval().distances(tokens), dense.eval().distances(tokens), strict=True):
        assert_close(ours, theirs)


def test_pack_takes_the_cells() -> None:
    model = OrderedNeuronsLSTM(20, embedding=10, hidden=20, chunk=5)
    for cell in model.cells:
        sparse_cell_(cell, 0.5, 2)
    tokens = torch.randint(20, (3, 2))
    want = model.eval()(tokens)[0]
    assert_close(pack(model)(tokens)[0], want)
    model.reset_parameters()
    assert torch.isfinite(model(tokens)[0]).all()


@pytest.mark.parametrize(("inputs", "state"), [((3, 4, 6), (4, 6)), ((3, 4, 5), (3, 6)), ((0, 4, 5), (4, 6))])
def test_wrong_shapes_are_refused(inputs: tuple[int, ...], state: tuple[int, ...]) -> None:
    packed, _ = pair(OrderedNeuronsCell(5, 6, 2), 0.5, 1)
    with pytest.raises(ValueError, match=r"shape|matrix|step"):
        packed(torch.zeros(inputs), torch.zeros(state), torch.zeros(state))
