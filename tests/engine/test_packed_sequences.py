"""Sequences of different lengths, projected states and single cells, against torch's modules."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from packed_cases import assert_close, densities, needs_kernels, seeded, seeds, sparse_
from packed_recurrent_cases import KINDS, assert_same_network, assert_same_run, in_double, kinds, pair, run, states
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from selfish_rnn.engine import PackedGRUCell, PackedLSTM, PackedLSTMCell, PackedRNNCell
from selfish_rnn.engine.dense_gradients import dense_gradient, start_collecting, stop_collecting
from selfish_rnn.engine.modules import layers
from selfish_rnn.engine.modules.cells import PackedRecurrentCell

pytestmark = needs_kernels

lengths = st.lists(st.integers(1, 12), min_size=1, max_size=20)


@settings(max_examples=60)
@given(
    kinds,
    st.integers(1, 40),
    st.integers(1, 70),
    st.sampled_from([1, 1, 2, 3]),
    lengths,
    densities,
    st.booleans(),
    st.booleans(),
    st.booleans(),
    seeds,
)
@example("lstm", 3, 4, 2, [1], 0.5, True, False, True, 0)
@example("gru", 3, 4, 2, [5, 5, 5], 0.5, True, True, True, 0)
@example("lstm", 3, 4, 2, [2, 7, 7, 1, 3], 0.5, True, True, True, 1)
@example("tanh", 3, 4, 1, [9, 1], 0.5, False, False, False, 3)
def test_sequences_of_different_lengths(
    kind: str,
    inputs: int,
    hidden: int,
    layers: int,
    lengths: list[int],
    density: float,
    bidirectional: bool,
    is_sorted: bool,
    with_state: bool,
    seed: int,
) -> None:
    if is_sorted:
        lengths = sorted(lengths, reverse=True)
    packed, dense = pair(kind, inputs, hidden, layers, density, seed, bidirectional=bidirectional)
    x = torch.randn(max(lengths), len(lengths), inputs, generator=seeded(seed + 1))
    state = states(kind, (layers * (1 + bidirectional), len(lengths), hidden), seed + 2) if with_state else []
    sequences = partial(pack_padded_sequence, lengths=torch.tensor(lengths), enforce_sorted=is_sorted)
    assert_same_run(packed, dense, x, state, seed + 3, seed % 3 > 0, sequences)


def test_sequences_come_back_as_they_were_given() -> None:
    packed, dense = pair("lstm", 5, 7, batch_first=True)
    x = pack_padded_sequence(torch.randn(3, 4, 5), torch.tensor([2, 4, 1]), batch_first=True, enforce_sorted=False)
    y, expected = packed(x)[0], dense.float()(x)[0]
    assert isinstance(y, PackedSequence)
    for one, other in zip(y[1:], expected[1:], strict=True):
        assert torch.equal(one, other)


def test_no_step_is_computed_for_a_sequence_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []
    compute = layers.recurrent_layer

    def counted(x: Tensor, *rest: Any) -> Any:
        seen.append((x.shape[0], x.shape[1]))
        return compute(x, *rest)

    monkeypatch.setattr(layers, "recurrent_layer", counted)
    packed, _ = pair("gru", 5, 7)
    packed(pack_padded_sequence(torch.randn(6, 4, 5), torch.tensor([6, 2, 2, 1])))
    assert seen == [(1, 4), (1, 3), (4, 1)]


@pytest.mark.parametrize("bidirectional", [False, True])
def test_dropout_between_layers_of_sequences_draws_as_torch_does(bidirectional: bool) -> None:
    packed, dense = pair("lstm", 5, 16, 3, dropout=0.4, bidirectional=bidirectional)
    x = pack_padded_sequence(torch.randn(6, 3, 5, generator=seeded(0)), torch.tensor([6, 4, 1]))
    results = []
    for network in (packed, dense.float()):
        torch.manual_seed(7)
        results.append(run(network, x, [])[0])
    assert_close(*results)


def test_dense_gradients_over_sequences_are_those_of_autograd() -> None:
    packed, dense = pair("gru", 5, 7, 2, bidirectional=True)
    weights = {name: getattr(packed, name) for name, _ in dense.named_parameters() if name.startswith("weight")}
    for weight in weights.values():
        start_collecting(weight)
    x, lengths = torch.randn(6, 3, 5, generator=seeded(0)), torch.tensor([6, 4, 1])
    run(packed, pack_padded_sequence(x, lengths), [])[0].square().sum().backward()
    run(dense, pack_padded_sequence(x.double(), lengths), [])[0].square().sum().backward()
    for name, weight in weights.items():
        assert_close(dense_gradient(weight), dense.get_parameter(name).grad, name)
        stop_collecting(weight)


def test_dense_gradients_with_dropped_weights_over_sequences_are_refused() -> None:
    lstm = PackedLSTM(5, 7, sparsity=0.5, weight_drop=0.5)
    start_collecting(lstm.weight_hh_l0)
    with pytest.raises(RuntimeError, match="not collected over sequences"):
        lstm(pack_padded_sequence(torch.zeros(2, 1, 5), torch.tensor([2])))
    stop_collecting(lstm.weight_hh_l0)


@pytest.mark.slow
@settings(max_examples=25)
@given(
    st.integers(1, 30),
    st.integers(2, 40),
    st.sampled_from([1, 2]),
    lengths,
    densities,
    st.booleans(),
    st.booleans(),
    seeds,
)
def test_projected_states(
    inputs: int,
    hidden: int,
    layers: int,
    lengths: list[int],
    density: float,
    bidirectional: bool,
    different: bool,
    seed: int,
) -> None:
    projected = 1 + seed % (hidden - 1)
    packed, dense = pair(
        "lstm", inputs, hidden, layers, density, seed, proj_size=projected, bidirectional=bidirectional
    )
    x = torch.randn(max(lengths), len(lengths), inputs, generator=seeded(seed + 1))
    shape = (layers * (1 + bidirectional), len(lengths))
    state = [torch.randn(*shape, size, generator=seeded(seed)).requires_grad_() for size in (projected, hidden)]
    sequences = partial(pack_padded_sequence, lengths=torch.tensor(lengths), enforce_sorted=False)
    assert_same_run(packed, dense, x, state, seed + 3, True, sequences if different else None)


def test_new_modules_have_the_names_and_shapes_of_torch() -> None:
    named = {"num_layers": 2, "bidirectional": True, "proj_size": 3}
    packed, dense = PackedLSTM(6, 5, sparsity=0.5, **named), nn.LSTM(6, 5, **named)
    shapes = {name: tuple(parameter.shape) for name, parameter in dense.named_parameters()}
    assert {name: tuple(getattr(packed, name).shape) for name in shapes} == shapes
    assert packed(torch.zeros(4, 2, 6))[0].shape == (4, 2, 6)


# Cells

CELLS: dict[str, tuple[type[PackedRecurrentCell], type[nn.RNNCellBase], dict[str, Any]]] = {
    "lstm": (PackedLSTMCell, nn.LSTMCell, {}),
    "gru": (PackedGRUCell, nn.GRUCell, {}),
    "tanh": (PackedRNNCell, nn.RNNCell, {"nonlinearity": "tanh"}),
    "relu": (PackedRNNCell, nn.RNNCell, {"nonlinearity": "relu"}),
}


def cell_pair(kind: str, inputs: int, hidden: int, density: float, seed: int, bias: bool = True) -> tuple[Any, Any]:
    packed_kind, dense_kind, named = CELLS[kind]
    dense = sparse_(dense_kind(inputs, hidden, bias, **named), density, seed, KINDS[kind][3])
    return packed_kind.from_dense(dense), copy.deepcopy(dense).double()


def step(cell: nn.Module, x: Tensor, state: list[Tensor]) -> list[Tensor]:
    after = cell(x, (tuple(state) if len(state) > 1 else state[0]) if state else None)
    return list(after) if isinstance(after, tuple) else [after]


@settings(max_examples=60)
@given(
    kinds,
    st.integers(1, 40),
    st.integers(1, 70),
    st.sampled_from([None, 0, 1, 3, 8, 20, 65]),
    densities,
    st.booleans(),
    st.booleans(),
    seeds,
)
def test_cells(
    kind: str, inputs: int, hidden: int, batch: int | None, density: float, bias: bool, with_state: bool, seed: int
) -> None:
    packed, dense = cell_pair(kind, inputs, hidden, density, seed, bias)
    rows = () if batch is None else (batch,)
    x = torch.randn(*rows, inputs, generator=seeded(seed + 1), requires_grad=True)
    state = states(kind, (*rows, hidden), seed + 2) if with_state else []
    (exact_x,), exact_state = in_double([x]), in_double(state)
    results, expected = step(packed, x, state), step(dense, exact_x, exact_state)
    for outcome in (results, expected):
        sum((one.square().sum() for one in outcome), torch.zeros(())).backward()
    for one, other in zip([*results, x.grad], [*expected, exact_x.grad], strict=True):
        assert_close(one, other)
    for one, other in zip(state, exact_state, strict=True):
        assert_close(one.grad, other.grad, "gradient of the state")
    assert_same_network(packed, dense)


@pytest.mark.parametrize("kind", CELLS)
def test_cells_from_dense_and_back(kind: str) -> None:
    packed, dense = cell_pair(kind, 6, 5, 0.4, 0, bias=kind != "gru")
    back = packed.eval().to_dense()
    assert repr(back) == repr(dense)
    assert not back.training
    assert {name: tensor.double() for name, tensor in back.state_dict().items()}.keys() == dense.state_dict().keys()
    for name, tensor in dense.state_dict().items():
        assert torch.equal(tensor, back.state_dict()[name].double())
    new = CELLS[kind][0](6, 5, sparsity=0.5)
    assert new(torch.zeros(2, 6)) is not None
    with pytest.raises(TypeError, match="is made from"):
        CELLS[kind][0].from_dense(nn.LSTMCell(2, 2) if kind == "gru" else nn.GRUCell(2, 2))


def test_what_does_not_fit_a_cell_is_refused() -> None:
    cell = PackedLSTMCell(5, 7, sparsity=0.5)
    with pytest.raises(ValueError, match="must have 5 features"):
        cell(torch.zeros(3, 6))
    with pytest.raises(ValueError, match=r"of shape \(3, 7\), it is of shape \(2, 7\)"):
        cell(torch.zeros(3, 5), (torch.zeros(2, 7), torch.zeros(3, 7)))
    with pytest.raises(ValueError, match="nonlinearity must be tanh or relu"):
        PackedRNNCell(5, 7, nonlinearity="sigmoid", sparsity=0.5)
