"""Packed matrices: their forms and their state."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from packed_cases import (
    assert_consistent,
    densities,
    features,
    index_is_valid,
    matrix,
    needs_kernels,
    packed,
    seeded,
    seeds,
    topology,
)
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from selfish_rnn import Sparsifier
from selfish_rnn.engine import PackedWeight, functional, library, pack
from selfish_rnn.topology.layout import read_sparse, stored_keys

pytestmark = needs_kernels

NONE = torch.empty(0, dtype=torch.int64)


def byte_indices(index: Tensor) -> Iterator[Tensor]:
    """Damaged copies: every field of the header with telling values, then random bytes."""
    fields = index[:152].view(torch.int64)
    for place, value in enumerate(fields.tolist()):
        for other in (0, 1, -1, value + 1, value - 1, value + 64, 2 * value, 256, 257, 2**31 - 1, 2**31, -(2**63)):
            damaged = index.clone()
            damaged[:152].view(torch.int64)[place] = other
            yield damaged
    generator = seeded(0)
    for _ in range(600):
        damaged = index.clone()
        count = int(torch.randint(1, 4, (), generator=generator))
        places = torch.randint(len(index), (count,), generator=generator)
        damaged[places] = torch.randint(256, (count,), generator=generator, dtype=torch.uint8)
        yield damaged


# DropConnect


@settings(max_examples=40)
@given(features, features, densities, st.sampled_from([1, 4]), st.sampled_from([0.1, 0.5, 1.0]), st.booleans(), seeds)
def test_dropped_weights_are_those_of_the_matrix(
    rows: int, columns: int, density: float, gates: int, probability: float, rescaled: bool, seed: int
) -> None:
    dense = matrix(gates * rows, columns, density, seed, gates)
    weight = PackedWeight.from_dense(dense, gate_rows=(rows,) * gates)
    torch.manual_seed(seed)
    values = functional.drop_weights(weight, probability, rescaled)
    values.sum().backward()
    torch.manual_seed(seed)
    factors = functional.drop_factors(weight.shape, probability, rescaled, functional.drop_keys("cpu"))
    positions, places = weight.sorted()
    assert torch.equal(values[places], (dense * factors).flatten()[positions])
    assert weight.values.grad is not None
    assert torch.equal(weight.values.grad[places], factors.flatten()[positions])


# Forms


@settings(max_examples=60)
@given(features, features, densities, st.sampled_from([1, 1, 3, 4]), seeds)
def test_forms_of_a_matrix(rows: int, columns: int, density: float, gates: int, seed: int) -> None:
    dense = matrix(gates * rows, columns, density, seed, gates)
    weight = PackedWeight.from_dense(dense, gate_rows=(rows,) * gates)
    assert index_is_valid(weight.index)
    assert torch.equal(weight.to_dense(), dense)
    assert torch.equal(weight.sorted()[0], dense.flatten().nonzero().flatten())
    assert weight.count == int(dense.count_nonzero())
    assert torch.equal(weight.to_csr().to_dense(), dense)
    again = PackedWeight.from_csr(dense.to_sparse_csr(), gate_rows=(rows,) * gates)
    assert torch.equal(again.index, weight.index)
    assert torch.equal(again.values, weight.values)


def test_a_weight_may_be_zero() -> None:
    mask = topology(20, 30, 0.3, 0)
    weight = PackedWeight.from_dense(torch.zeros(20, 30), mask)
    assert weight.count == int(mask.sum())
    assert weight.density == weight.count / 600
    assert torch.equal(weight.sorted()[0], mask.flatten().nonzero().flatten())
    assert repr(weight) == f"PackedWeight(20 x 30, {weight.count} weights, density {weight.density:.3f})"


def test_gradients_find_their_way_from_the_dense_form() -> None:
    weight = packed(20, 30, 0.3, 0)
    factor = torch.randn(20, 30, generator=seeded(1))
    (weight.to_dense() * factor).sum().backward()
    positions, places = weight.sorted()
    assert weight.values.grad is not None
    assert torch.equal(weight.values.grad[places], factor.flatten()[positions])


def test_what_is_no_matrix_is_refused() -> None:
    for positions in ([1, 0], [1, 1], [-1], [6]):
        with pytest.raises(ValueError, match="sorted, different and from 0 to 5"):
            PackedWeight((2, 3), torch.tensor(positions))
    with pytest.raises(ValueError, match="at least one row"):
        PackedWeight((0, 3), NONE)
    with pytest.raises(ValueError, match="2 positions and values of shape"):
        PackedWeight((2, 3), torch.tensor([0, 1]), torch.zeros(3))
    for gate_rows in ((1,), (3, -1), (2, 0)):
        with pytest.raises(ValueError, match="do not fit a matrix of 2 rows"):
            PackedWeight((2, 3), NONE, gate_rows=gate_rows)


# State


def to_cpu(weight: PackedWeight) -> PackedWeight:
    return copy.deepcopy(weight).to("cpu")


def through_pickle(weight: PackedWeight) -> PackedWeight:
    return pickle.loads(pickle.dumps(weight))


def through_file(weight: PackedWeight) -> PackedWeight:
    file = io.BytesIO()
    torch.save(weight, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def through_state(weight: PackedWeight) -> PackedWeight:
    file = io.BytesIO()
    torch.save(weight.state_dict(), file)
    file.seek(0)
    other = PackedWeight(weight.shape, NONE, gate_rows=weight.gate_rows)
    other.load_state_dict(torch.load(file, weights_only=True))
    return other


@pytest.mark.parametrize(
    "copied",
    [copy.deepcopy, through_pickle, through_file, through_state, to_cpu],
)
def test_copies(copied: Callable[[PackedWeight], PackedWeight]) -> None:
    weight = packed(40, 130, 0.2, 0, gates=4)
    copy_ = copied(weight)
    assert copy_.shape == weight.shape
    assert copy_.gate_rows == weight.gate_rows
    assert torch.equal(copy_.index, weight.index)
    assert torch.equal(copy_.values, weight.values)
    assert isinstance(copy_.values, nn.Parameter)
    assert copy_.index.data_ptr() != weight.index.data_ptr()
    assert_consistent(copy_)


def test_only_float32_is_computed_with_but_other_types_can_be_read() -> None:
    weight = packed(9, 6, 0.5, 0)
    dense = weight.to_dense()
    assert torch.equal(weight.double().to_dense(), dense.double())
    assert weight.index.dtype == torch.uint8
    with pytest.raises(TypeError, match=r"computes in torch\.float32, not in torch\.float64"):
        functional.linear(torch.zeros(2, 6), weight)


@given(densities, densities, seeds)
@settings(max_examples=20)
def test_loading_another_topology(before: float, after: float, seed: int) -> None:
    weight, other = packed(30, 40, before, seed), packed(30, 40, after, seed + 1)
    parameter = weight.values
    old_loss = functional.linear(torch.ones(2, 40), weight).sum()  # a graph that is still there
    weight.load_state_dict(other.state_dict())
    assert weight.values is parameter
    assert torch.equal(weight.to_dense(), other.to_dense())
    assert_consistent(weight, seed)
    assert old_loss.requires_grad


def test_a_saved_tensor_may_lie_anywhere_in_memory() -> None:
    weight = packed(30, 40, 0.3, 0)
    bits, values = weight.state_dict()["bits"], weight.state_dict()["values"]
    state = {
        "bits": torch.zeros(2 * len(bits) + 1, dtype=torch.uint8)[1::2].copy_(bits),
        "values": torch.zeros(2 * len(values))[::2].copy_(values),
    }
    for assign in (False, True):
        other = packed(30, 40, 0.9, 1)
        other.load_state_dict(state, assign=assign)
        assert torch.equal(other.to_dense(), weight.to_dense())
        assert_consistent(other)


@pytest.mark.parametrize(
    ("rows", "density"),
    [
        (20, 0.3),
        (1100, 0.004),
        pytest.param(20, 0.0, marks=pytest.mark.slow),
        pytest.param(20, 1.0, marks=pytest.mark.slow),
    ],
)
def test_a_copy_with_a_damaged_index_is_refused_or_harmless(rows: int, density: float) -> None:
    weight = packed(rows, 70, density, 2)
    refused = 0
    for index in byte_indices(weight.index):
        copied = with_index(weight.shape, index, weight.values)
        try:
            copied.sorted()
        except ValueError as error:
            assert "the index of a packed weight is damaged" in str(error)  # noqa: PT017
            refused += 1
        else:
            assert_consistent(copied)
    assert refused > 200


@pytest.mark.parametrize(("rows", "columns", "density"), [(20, 70, 0.3), (300, 261, 0.1), (1100, 70, 0.004)])
@pytest.mark.parametrize("side", ["rows", "columns"])
def test_a_weight_right_behind_the_last_row_or_column_is_refused(
    rows: int, columns: int, density: float, side: str
) -> None:
    """Everything else about such an index is right: without that weight the same bytes are of a smaller matrix."""
    smaller = (rows - (side == "rows"), columns - (side == "columns"))
    for last in (False, True):
        dense = matrix(rows, columns, density, 2)
        outside = dense.select(0 if side == "rows" else 1, -1)
        outside[:] = 0.0
        outside[outside.shape[0] // 2] = float(last)
        weight = PackedWeight.from_dense(dense)
        index = weight.index.clone()
        header = library.header(index)
        setattr(header, side, getattr(header, side) - 1)
        if side == "rows":  # where the last tile of rows ends
            index[header.offset[0] + 4 * header.row_tiles :][:4].view(torch.int32)[0] -= 1
        copied = with_index(smaller, index, weight.values)
        if last:
            with pytest.raises(ValueError, match="index of a packed weight is damaged"):
                copied.to_dense()
        else:
            assert torch.equal(copied.to_dense(), dense[: smaller[0], : smaller[1]])


@pytest.mark.parametrize("length", [0, 8, 151, 152, 500])
def test_an_index_that_is_cut_off_is_refused(length: int) -> None:
    weight = packed(20, 70, 0.3, 2)
    longer = torch.cat([weight.index, weight.index.new_zeros(64)])
    for index in (weight.index[:length].clone(), longer):
        with pytest.raises(ValueError, match="index of a packed weight is damaged"):
            with_index(weight.shape, index, weight.values).to_dense()


def test_what_does_not_belong_to_a_weight_is_refused() -> None:
    weight, other = packed(20, 70, 0.3, 2), packed(20, 71, 0.3, 2)
    before, state = weight.to_dense(), weight.state_dict()
    wrong: list[tuple[dict[str, Tensor], str]] = [
        (other.state_dict(), r"bits: a mask of 178 bytes does not fit a matrix of shape \(20, 70\)"),
        ({**state, "values": torch.zeros(3)}, r"values has shape \(3,\), and \d+ weights exist"),
        ({**state, "values": state["values"].to(torch.int32)}, "values must be floating point or int8"),
        ({**state, "values": state["values"].to(torch.int8)}, "values is torch.int8, and scales is missing"),
        ({**state, "bits": state["bits"].to(torch.int64)}, "bits must be flat and torch.uint8"),
        ({**state, "bits": state["bits"][None]}, "bits must be flat"),
        ({**state, "positions": torch.arange(3)}, "both positions and bits are there: one is needed"),
        ({"values": state["values"]}, "neither positions and bits are there"),
        ({"bits": state["bits"]}, "values is missing"),
        ({"values": torch.ones(2), "positions": torch.tensor([5, 5])}, "positions must be sorted, unique and inside"),
        ({"values": state["values"], "index": weight.index}, "saved by a version before layout 1"),
    ]
    for content, message in wrong:
        with pytest.raises(RuntimeError, match=message):
            weight.load_state_dict(content, strict=False)
    with pytest.raises(RuntimeError, match="Missing key"):
        weight.load_state_dict({})
    weight.load_state_dict({}, strict=False)
    assert torch.equal(weight.to_dense(), before)


@given(densities, seeds)
@settings(max_examples=20)
def test_a_state_has_the_values_by_their_positions_and_no_index(density: float, seed: int) -> None:
    weight = packed(40, 60, density, seed, gates=4)
    state = weight.state_dict()
    matrix = read_sparse(state, "", weight.shape)
    assert state.keys() == set(stored_keys(state, ""))
    assert torch.equal(matrix.values, weight.to_dense().flatten()[matrix.positions])
    one_gate = PackedWeight(weight.shape, NONE)  # which the kernels lay out otherwise
    one_gate.load_state_dict(state)
    assert torch.equal(one_gate.to_dense(), weight.to_dense())
    assert_consistent(one_gate)


def test_the_tensors_of_a_state_are_copies_that_refuse_changes(tmp_path: Path) -> None:
    weight = packed(20, 70, 0.3, 2)
    values = weight.state_dict()["values"]
    with pytest.raises(RuntimeError, match="would change a copy"):
        values.mul_(2)
    doubled = values * 2
    assert type(doubled) is Tensor
    assert torch.stack([values, doubled]).shape == (2, weight.count)
    save_file(weight.state_dict(), tmp_path / "weight")
    assert torch.equal(load_file(tmp_path / "weight")["values"], values)
    graph = weight.state_dict(keep_vars=True)["values"].sum()
    graph.backward()
    assert torch.equal(weight.values.grad, torch.ones(weight.count))


def test_a_tied_weight_is_saved_once() -> None:
    model = nn.ModuleDict({"a": packed(20, 70, 0.3, 2)})
    model["b"] = model["a"]
    for keep_vars in (False, True):
        for _ in range(2):
            state = model.state_dict(keep_vars=keep_vars)
            assert state["a.values"] is state["b.values"]
            assert state["a.bits"] is state["b.bits"]
    with torch.no_grad():
        model["a"].values.data += 1  # torch does not count this change
    assert torch.equal(model.state_dict()["b.values"], state["a.values"] + 1)
    again: dict[str, Tensor] = model.state_dict(destination={})
    assert torch.equal(again["b.values"], again["a.values"])


def test_matrices_saved_before_packing_are_refused_with_the_way_that_works() -> None:
    def model(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return nn.Sequential(nn.Embedding(9, 5), nn.Linear(5, 4))

    masked = model(0)
    sparsifier = Sparsifier(masked, sparsity=0.5, rewirings=3)
    state = masked.state_dict()
    again = model(1)
    bound = Sparsifier(again, sparsity=0.5, rewirings=3)
    before = {name: tensor.clone() for name, tensor in pack(again).state_dict().items()}
    with pytest.raises(RuntimeError) as caught:
        again.load_state_dict(state)
    text = str(caught.value)
    assert "0.weight is saved as a whole matrix, as it was before pack(model); here it is packed, 9 x 5" in text
    assert "1.weight is saved as a whole matrix" in text
    assert "Load first, then pack: model.load_state_dict(...), sparsifier.load_state_dict(...), pack(model)" in text
    assert "Missing key" not in text
    assert "Unexpected key" not in text
    assert all(torch.equal(before[name], again.state_dict()[name]) for name in before if name != "1.bias")
    del bound
    third = model(2)  # the way that works
    bound = Sparsifier(third, sparsity=0.5, rewirings=3)
    third.load_state_dict(state)
    bound.load_state_dict(sparsifier.state_dict())
    packed_model = pack(third)
    assert torch.equal(packed_model[1].weight.to_dense(), masked[1].weight)  # type: ignore[index]
    assert bound.active_weights == sparsifier.active_weights


def with_index(shape: tuple[int, int], index: Tensor, values: Tensor) -> PackedWeight:
    """Return a weight with an index from elsewhere, as a pickle may have one."""
    weight = PackedWeight(shape, NONE)
    weight.values = nn.Parameter(values.detach().clone())
    weight._buffers["index"] = index
    return weight


def test_header_as_native_code_has_it() -> None:
    weight = packed(20, 70, 0.3, 2)
    header = library.header(weight.index)
    assert (header.rows, header.columns, header.count, header.bytes) == (20, 70, weight.count, len(weight.index))
