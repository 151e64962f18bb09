"""Operators with int8 weights refuse what would lead a kernel astray, whoever calls them."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from packed_cases import assert_close, matrix, needs_kernels
from torch import Tensor

from selfish_rnn.engine import QuantizedWeight, available
from selfish_rnn.engine.int8 import operators as int8
from selfish_rnn.engine.int8.targets import int8_target, int8_targets, use_int8_target

pytestmark = needs_kernels

operators: Any = torch.ops.selfish_rnn
assert int8.int8_linear  # registers them


def quantized(rows: int, columns: int, seed: int = 0) -> QuantizedWeight:
    return QuantizedWeight.from_dense(matrix(rows, columns, 0.5, seed))


@pytest.fixture
def other_kernels() -> Iterator[Callable[[], None]]:
    before = int8_target()
    yield lambda: use_int8_target(int8_targets()[0])
    use_int8_target(before)


@pytest.mark.parametrize(
    "change",
    [
        lambda bytes: bytes[:0],
        lambda bytes: bytes[:160],
        lambda bytes: bytes[1:],
        lambda bytes: bytes[0],
        torch.zeros_like,
        lambda bytes: bytes.float(),
        lambda bytes: bytes.to("meta"),
        lambda bytes: bytes.float().to_sparse(),
        lambda bytes: torch.stack([bytes, bytes], 1)[:, 0],
    ],
)
def test_only_bytes_that_are_a_matrix_are_followed(change: Callable[[Tensor], Tensor]) -> None:
    weight = quantized(12, 5)
    wrong, good = change(weight.windows), quantized(12, 3).windows
    with pytest.raises(ValueError, match="no int8 matrix"):
        int8.int8_linear.direct(torch.randn(3, 5), wrong, None, 12)
    with pytest.raises(ValueError, match="no int8 matrix"):
        int8.int8_lookup.direct(torch.tensor([0]), wrong, 5)
    for pair in ((wrong, good), (good, wrong)):
        with pytest.raises(ValueError, match="no int8 matrix"):
            int8.int8_layer.direct(
                torch.randn(2, 1, 5), torch.randn(1, 3), torch.randn(1, 3), *pair, None, None, "lstm"
            )


def test_bytes_that_were_changed_are_not_followed_any_more() -> None:
    weight = quantized(12, 5)
    int8.linear(torch.randn(3, 5), weight, None)
    weight.windows[20] += 1
    for use in (lambda: int8.linear(torch.randn(3, 5), weight, None), weight.to_dense, weight.state_dict):
        with pytest.raises(ValueError, match="changed"):
            use()
    weight.load_state_dict(quantized(12, 5).state_dict())
    int8.linear(torch.randn(3, 5), weight, None)


def test_bytes_that_were_laid_out_for_other_kernels_are_not_followed(other_kernels: Callable[[], None]) -> None:
    weight = quantized(12, 5)
    windows = weight.windows
    other_kernels()
    with pytest.raises(ValueError, match="other kernels"):
        operators.int8_linear(torch.randn(3, 5), windows, None, 12)
    operators.int8_linear(torch.randn(3, 5), weight.windows, None, 12)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda weight: pickle.loads(pickle.dumps(weight))])
def test_a_copy_is_laid_out_where_it_is_made(copied: Callable[[QuantizedWeight], QuantizedWeight]) -> None:
    weight = quantized(12, 5)
    other = copied(weight)
    assert torch.equal(other.to_dense(), weight.to_dense())
    assert (other.shape, other.count, other.training) == (weight.shape, weight.count, False)
    x = torch.randn(3, 5)
    assert torch.equal(int8.linear(x, other, None), int8.linear(x, weight, None))


WINDOWS = "windows"

WRONG: dict[str, tuple[str, list[Any], type[Exception], str]] = {
    "dtype": ("linear", [torch.randn(3, 5).double(), WINDOWS, None, 12], TypeError, "float32"),
    "device": ("linear", [torch.randn(3, 5), WINDOWS, torch.randn(12, device="meta"), 12], TypeError, "on the CPU"),
    "features": ("linear", [torch.randn(3, 4), WINDOWS, None, 12], ValueError, "input must be of shape"),
    "no features": ("linear", [torch.tensor(1.0), WINDOWS, None, 12], ValueError, "input must be of shape"),
    "bias": ("linear", [torch.randn(3, 5), WINDOWS, torch.randn(11), 12], ValueError, "bias must be of shape"),
    "rows": ("linear", [torch.randn(3, 5), WINDOWS, None, 13], ValueError, "12 rows does not give 13"),
    "tokens of 32 bits": ("lookup", [torch.ones(3, dtype=torch.int32), WINDOWS, 5], TypeError, "int64"),
    "tokens of 8 bits": ("lookup", [torch.ones(3, dtype=torch.int8), WINDOWS, 5], TypeError, "int64"),
    "tokens too high": ("lookup", [torch.tensor([12]), WINDOWS, 5], IndexError, "token 12 is out of range"),
    "tokens too low": ("lookup", [torch.tensor([-1]), WINDOWS, 5], IndexError, "token -1 is out of range"),
    "columns": ("lookup", [torch.tensor([1]), WINDOWS, 6], ValueError, "5 columns do not have 6"),
}


@pytest.mark.parametrize("case", WRONG)
def test_products_and_rows_take_what_they_can_follow(case: str) -> None:
    name, arguments, error, message = WRONG[case]
    windows = quantized(12, 5).windows
    with pytest.raises(error, match=message):
        getattr(int8, f"int8_{name}").direct(*[windows if argument is WINDOWS else argument for argument in arguments])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cell": "gru"}, "do not fit the gru"),
        ({"cell": "lstm_cell"}, "unknown cell 'lstm_cell'"),
        ({"x": torch.randn(2, 3, 4)}, "input must be of shape"),
        ({"x": torch.randn(0, 3, 5)}, "at least one step"),
        ({"x": torch.randn(6, 5)}, "steps x batch x features"),
        ({"h": torch.randn(3, 5)}, "state must be of shape"),
        ({"c": torch.randn(2, 6)}, "state must be of shape"),
        ({"recurrence": quantized(12, 6)}, "do not fit the lstm"),
        ({"recurrence": quantized(24, 5)}, "state must be of shape"),
        ({"bias": torch.randn(6)}, "bias must be of shape"),
        ({"recurrent_bias": torch.randn(6)}, "bias must be of shape"),
    ]
    if int8.library.available()
    else [],
)
def test_a_layer_takes_what_it_can_follow(changes: dict[str, Any], message: str) -> None:
    right = {
        "x": torch.randn(2, 3, 5),
        "h": torch.randn(3, 6),
        "c": torch.randn(3, 6),
        "inputs": quantized(24, 5),
        "recurrence": quantized(24, 6),
        "bias": None,
        "recurrent_bias": None,
        "cell": "lstm",
    }

    def run(arguments: dict[str, Any]) -> None:
        operators.int8_layer(*[getattr(value, "windows", value) for value in arguments.values()])

    run(right)
    with pytest.raises(ValueError, match=message):
        run({**right, **changes})


OPERATORS: dict[str, Callable[[QuantizedWeight], list[Any]]] = {
    "int8_linear": lambda weight: [torch.randn(3, 3), weight.windows, torch.randn(12), 12],
    "int8_lookup": lambda weight: [torch.tensor([[0, 11]]), weight.windows, 3],
    "int8_layer": lambda weight: [
        *(torch.randn(2, 2, 3), torch.randn(2, 3), torch.randn(2, 3), weight.windows, weight.windows, None),
        *(torch.randn(12), "lstm"),
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OPERATORS)
def test_operators_pass_the_checks_of_torch(name: str) -> None:
    torch.library.opcheck(getattr(operators, name).default, tuple(OPERATORS[name](quantized(12, 3))))


@pytest.mark.usefixtures("other_kernels")
@pytest.mark.parametrize("kernels", int8_targets() if available() else ())
@pytest.mark.parametrize("density", [0.05, 0.15, 0.5])
@pytest.mark.parametrize("together", [0, 1 << 30])
def test_a_copy_is_followed_and_one_with_a_bit_changed_only_if_it_is_a_matrix(
    kernels: str, density: float, together: int
) -> None:
    use_int8_target(kernels)
    dense = matrix(301, 133, density, 3)
    positions = dense.flatten().nonzero().flatten()
    weight = QuantizedWeight.rounded(dense.shape, positions, dense.flatten()[positions], together)
    x = torch.randn(3, 133)
    copied = operators.int8_linear(x, weight.windows.clone(), None, 301)
    assert torch.equal(copied, int8.linear(x, weight, None))
    generator = torch.Generator().manual_seed(1)
    header, size = 112, len(weight.windows)
    refused = 0
    for place in [*range(header), *torch.randint(header, size, (300,), generator=generator).tolist()]:
        wrong = weight.windows.clone()
        wrong[place] ^= 1 << int(torch.randint(8, (), generator=generator))
        try:
            assert operators.int8_linear(x, wrong, None, 301).shape == (3, 301)
        except ValueError:
            refused += 1
    assert refused > 200  # the others have a weight in another column, or another scale


def narrower(weight: QuantizedWeight) -> Tensor:
    """The bytes of a matrix that claims to have one column less."""
    windows = weight.windows.clone()
    int8.library.structures()["WindowsHeader"].from_address(windows.data_ptr()).columns -= 1
    return windows


@pytest.mark.usefixtures("other_kernels")
@pytest.mark.parametrize("kernels", int8_targets() if available() else ())
@pytest.mark.parametrize("together", [0, 1 << 30])
@pytest.mark.parametrize("columns", [7, 71, 261])
def test_a_weight_right_behind_the_last_column_is_refused(kernels: str, together: int, columns: int) -> None:
    """Everything else about such a matrix is right: without that weight the same bytes are a narrower matrix."""
    use_int8_target(kernels)
    x = torch.randn(3, columns - 1)
    for last in (False, True):
        dense = matrix(40, columns, 0.5, 0)
        dense[:, -1] = 0.0
        dense[17, -1] = float(last)
        positions = dense.flatten().nonzero().flatten()
        weight = QuantizedWeight.rounded(dense.shape, positions, dense.flatten()[positions], together)
        if last:
            with pytest.raises(ValueError, match="no int8 matrix"):
                operators.int8_linear(x, narrower(weight), None, 40)
        else:
            assert_close(operators.int8_linear(x, narrower(weight), None, 40), int8_product(weight, x))


def int8_product(weight: QuantizedWeight, x: Tensor) -> Tensor:
    product: Tensor = int8.linear(torch.cat([x, torch.zeros(len(x), 1)], 1), weight, None)
    return product
