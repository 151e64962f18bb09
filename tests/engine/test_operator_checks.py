"""Operators refuse what would lead a kernel astray, whoever calls them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from packed_cases import matrix, needs_kernels, packed
from torch import Tensor

from selfish_rnn.engine import PackedEmbedding, PackedLinear, PackedLSTM, PackedWeight, index
from selfish_rnn.engine.operators import highway, ordered_neurons, recurrent
from selfish_rnn.engine.operators.common import LayerWeights

pytestmark = needs_kernels

operators: Any = torch.ops.selfish_rnn
MODULES = (highway, ordered_neurons, recurrent)


def weight_and(x: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    weight = packed(12, 5, 0.5, 0)
    return torch.randn(x), weight.values.detach(), weight.index


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda i: i[:0], "damaged"),
        (torch.zeros_like, "damaged"),
        (lambda i: i[:160].clone(), "damaged"),
        (lambda i: i.float(), "contiguous row of torch.uint8"),
        (lambda i: torch.stack([i, i], 1)[:, 0], "contiguous row of torch.uint8"),
        (lambda i: i.view(2, -1), "contiguous row of torch.uint8"),
        (lambda i: torch.cat([i, i])[4 : 4 + len(i)], "multiple of eight bytes"),
    ],
)
def test_an_index_that_is_none_is_refused(change: Callable[[Tensor], Tensor], message: str) -> None:
    x, values, good = weight_and((3, 5))
    with pytest.raises(ValueError, match=message):
        operators.linear(x, values, change(good), None, 12)


def test_an_index_is_checked_once_and_again_after_it_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    x, values, good = weight_and((3, 5))
    checks: list[int] = []
    problem = index._problem
    monkeypatch.setattr(index, "_problem", lambda given: checks.append(1) or problem(given))
    copied = good.clone()
    for _ in range(3):
        operators.linear(x, values, good, None, 12)  # known by construction
        operators.linear(x, values, copied, None, 12)
        operators.linear(x, values, copied.view(-1), None, 12)
    assert len(checks) == 1
    copied[90] += 1
    with pytest.raises(ValueError, match="damaged"):
        operators.linear(x, values, copied, None, 12)
    copied[90] -= 1
    operators.linear(x, values, copied, None, 12)
    assert len(checks) == 3


def test_what_is_known_of_an_index_goes_with_it() -> None:
    weights = [packed(12, 5, 0.5, seed) for seed in range(5)]
    held = len(index._known)
    del weights
    packed(12, 5, 0.5, 9)
    assert len(index._known) <= held - 4


@pytest.mark.parametrize("dtype", [torch.int32, torch.int8, torch.bool, torch.float32])
def test_tokens_and_targets_are_of_one_type(dtype: torch.dtype) -> None:
    x, values, good = weight_and((3, 5))
    numbers = torch.ones(3, dtype=dtype)
    calls = {
        "lookup": (numbers, values, good, 5),
        "lookup_backward": (numbers, torch.randn(3, 5), values, good),
        "cross_entropy": (x, values, good, torch.zeros(12), numbers, True),
    }
    for name, arguments in calls.items():
        with pytest.raises(TypeError, match=r"torch\.int64"):
            getattr(operators, name)(*arguments)


def test_gradients_are_of_the_shape_of_what_was_computed() -> None:
    x, values, good = weight_and((100, 5))
    with pytest.raises(ValueError, match=r"gradient must be of shape \(100, 12\)"):
        operators.linear_backward(x, torch.randn(1, 12), values, good, [True] * 3)
    with pytest.raises(ValueError, match=r"gradient must be of shape \(100, 5\)"):
        operators.lookup_backward(torch.zeros(100, dtype=torch.int64), torch.randn(1, 5), values, good)


def layer(steps: int = 4) -> tuple[Tensor, Tensor, LayerWeights, list[Tensor]]:
    x, h = torch.randn(steps, 3, 5), torch.randn(3, 6)
    inputs, recurrence = packed(24, 5, 0.5, 0, gates=4), packed(24, 6, 0.5, 1, gates=4)
    weights = LayerWeights(inputs.values.detach(), inputs.index, recurrence.values.detach(), recurrence.index)
    kept = list(operators.recurrent_layer(x, h, h, *weights, None, None, "lstm", True)[3:])
    return x, h, weights, kept


def test_what_a_layer_kept_belongs_to_its_window() -> None:
    x, h, weights, kept = layer()
    needs = [True] * 6 + [False]

    def backward(x: Tensor, kept: list[Tensor], dy: Tensor, needs: list[bool]) -> None:
        operators.recurrent_layer_backward(x, *weights, kept, dy, None, h, "lstm", 6, needs)

    backward(x, kept, torch.randn(4, 3, 6), needs)
    with pytest.raises(ValueError, match="kept gates must be of shape"):
        backward(torch.randn(500, 3, 5), kept, torch.randn(500, 3, 6), needs)
    with pytest.raises(ValueError, match="kept h_panels must be of shape"):
        backward(x, [*kept[:-1], torch.empty(0)], torch.randn(4, 3, 6), needs)
    with pytest.raises(ValueError, match="gradient must be of shape"):
        backward(x, kept, torch.randn(1, 3, 6), needs)
    with pytest.raises(ValueError, match="together or not at all"):
        backward(x, kept, torch.randn(4, 3, 6), [True, True, False, *needs[3:]])


def test_a_recurrent_matrix_is_cut_where_its_gates_are() -> None:
    x, h, weights, _ = layer()
    uncut = packed(24, 6, 0.5, 1)
    wrong = weights._replace(recurrent_values=uncut.values.detach(), recurrent_index=uncut.index)
    with pytest.raises(ValueError, match=r"gate_rows=\(6, 6, 6, 6\) is needed"):
        operators.recurrent_layer(x, h, h, *wrong, None, None, "lstm", True)
    for device in ("cpu", "meta"):  # where it runs, and where it is traced
        x, h, dy, *matrices = (tensor.to(device) for tensor in (x, h, torch.randn(4, 3, 6), *weights))
        with pytest.raises(ValueError, match="unknown cell 'lstn'"):
            operators.recurrent_layer(x, h, h, *matrices, None, None, "lstn", True)
        with pytest.raises(ValueError, match="unknown cell 'lstn'"):
            operators.recurrent_layer_backward(x, *matrices, [x] * 5, dy, None, None, "lstn", 6, [True] * 7)


@pytest.mark.parametrize("chunk", [0, -2, 4])
def test_chunks_divide_the_units(chunk: int) -> None:
    gates = (3, 3, 6, 6, 6, 6)
    inputs, recurrence = (PackedWeight.from_dense(matrix(30, columns, 0.5, 0), gate_rows=gates) for columns in (5, 6))
    weights = [inputs.values.detach(), inputs.index, recurrence.values.detach(), recurrence.index]
    with pytest.raises(ValueError, match="do not divide 6 units"):
        operators.ordered_neurons(
            torch.randn(4, 3, 5), torch.randn(3, 6), torch.randn(3, 6), *weights, torch.randn(30), chunk, True
        )


def test_a_highway_layer_has_a_depth() -> None:
    inputs = packed(12, 5, 0.5, 0, gates=2)
    with pytest.raises(ValueError, match="at least one"):
        operators.highway(
            torch.randn(4, 3, 5),
            torch.randn(3, 6),
            None,
            inputs.values.detach(),
            inputs.index,
            [],
            [],
            [],
            True,
            "float32",
        )


USES: dict[str, Callable[[PackedLinear], Any]] = {
    "forward": lambda module: module(torch.randn(3, 50)),
    "to_dense": lambda module: module.to_dense(),
    "to_csr": lambda module: module.weight.to_csr(),
    "sorted": lambda module: module.weight.sorted(),
    "rewire": lambda module: module.weight.change_topology(torch.tensor([0]), torch.tensor([1])),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("count", [0, 3, 10_000])
def test_values_replaced_from_outside_are_refused_at_the_next_use(use: str, count: int) -> None:
    module = PackedLinear(50, 120, sparsity=0.5)
    module.weight.values.data = torch.randn(count)
    with pytest.raises(ValueError, match=rf"has 3000 weights, its values are of shape \({count},\)"):
        USES[use](module)


def test_memory_that_was_never_filled_is_refused() -> None:
    module = PackedLinear(500, 120, sparsity=0.5).to("meta").to_empty(device="cpu")
    module.weight.index.zero_()
    with pytest.raises(ValueError, match="damaged"):
        module.to_dense()


def test_the_defaults_of_torch_do_not_move_what_kernels_write_to() -> None:
    with torch.device("meta"):
        weight = PackedWeight((5, 5), torch.tensor([1, 7], device="cpu"), torch.ones(2, device="cpu"))
        assert weight.sorted()[0].tolist() == [1, 7]
    lstm, x = PackedLSTM(5, 6, sparsity=0.5), torch.randn(400, 30, 5)
    expected = lstm(x)[0]
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(lstm(x)[0], expected)
        assert PackedEmbedding(5, 4, sparsity=0.5).weight.values.dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    "positions",
    [torch.tensor([0.5]), torch.tensor([[0, 1]]), torch.tensor(3), torch.tensor([1, 1]), torch.tensor([25])],
)
def test_positions_are_a_row_of_places_in_the_matrix(positions: Tensor) -> None:
    with pytest.raises(ValueError, match="positions must be"):
        PackedWeight((5, 5), positions)


@pytest.mark.parametrize("shape", [(2**31, 1), (1, 2**31), (2**40, 2**40), (0, 3)])
def test_a_matrix_beyond_what_an_index_counts_is_refused(shape: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="a packed matrix has at least one row"):
        PackedWeight(shape, torch.tensor([0]))


def test_a_matrix_whose_tiles_do_not_fit_into_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "available_memory", lambda: 2**30)
    with pytest.raises(MemoryError, match="1 GiB are free"):
        PackedWeight((2**22, 2**21), torch.tensor([0]))


@pytest.mark.parametrize("count", [1, 100])
def test_other_weights_come_with_as_many_values(count: int) -> None:
    with pytest.raises(ValueError, match="3 positions and values"):
        packed(12, 5, 0.5, 0).assign(torch.tensor([0, 1, 2]), torch.zeros(count))
