"""What the tests of packed recurrent layers share."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st
from packed_cases import assert_close, assert_same_gradient, seeded, sparse_
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from selfish_rnn.engine import PackedGRU, PackedLSTM, PackedRNN, PackedWeight
from selfish_rnn.engine.modules.recurrent import PackedRecurrent

KINDS: dict[str, tuple[type[PackedRecurrent], type[nn.RNNBase], dict[str, Any], int]] = {
    "lstm": (PackedLSTM, nn.LSTM, {}, 4),
    "gru": (PackedGRU, nn.GRU, {}, 3),
    "tanh": (PackedRNN, nn.RNN, {"nonlinearity": "tanh"}, 1),
    "relu": (PackedRNN, nn.RNN, {"nonlinearity": "relu"}, 1),
}
kinds = st.sampled_from(sorted(KINDS))


def pair(
    kind: str, inputs: int, hidden: int, layers: int = 1, density: float = 0.3, seed: int = 0, **named: Any
) -> tuple[PackedRecurrent, nn.RNNBase]:
    """The same network packed, and dense in double precision."""
    packed_kind, dense_kind, more, gates = KINDS[kind]
    dense = sparse_(dense_kind(inputs, hidden, layers, **more, **named), density, seed, gates)
    return packed_kind.from_dense(dense), copy.deepcopy(dense).double()


def states(kind: str, shape: tuple[int, ...], seed: int) -> list[Tensor]:
    generator = seeded(seed)
    count = 2 if kind == "lstm" else 1
    return [torch.randn(shape, generator=generator).requires_grad_() for _ in range(count)]


def run(network: nn.Module, x: Tensor | PackedSequence, state: list[Tensor]) -> list[Tensor]:
    """Output, and the states after the last step."""
    given = (tuple(state) if len(state) > 1 else state[0]) if state else None
    y, after = network(x, given)
    return [y.data if isinstance(y, PackedSequence) else y, *(after if isinstance(after, tuple) else (after,))]


def in_double(tensors: list[Tensor]) -> list[Tensor]:
    return [tensor.detach().double().requires_grad_() for tensor in tensors]


def assert_same_network(packed: nn.Module, dense: nn.Module) -> None:
    """All parameters have the same gradients."""
    for name, parameter in dense.named_parameters():
        own = getattr(packed, name)
        if isinstance(own, PackedWeight):
            assert parameter.grad is not None
            assert_same_gradient(own, parameter.grad, name)
        else:
            assert_close(own.grad, parameter.grad, name)


def assert_same_run(
    packed: PackedRecurrent,
    dense: nn.RNNBase,
    x: Tensor,
    state: list[Tensor],
    seed: int,
    last: bool = True,
    sequences: Callable[[Tensor], PackedSequence] | None = None,
) -> None:
    """Outputs, and gradients that come from all of them (without ``last`` from y only) and go into everything.

    ``sequences`` makes sequences of different lengths of the window x.
    """
    x = x.detach().requires_grad_()
    exact_x, exact_state = x.detach().double().requires_grad_(), in_double(state)
    given, exact = (x, exact_x) if sequences is None else (sequences(x), sequences(exact_x))
    results, expected = run(packed, given, state), run(dense, exact, exact_state)
    factors = [torch.randn(result.shape, generator=seeded(seed)) for result in results]
    for outcome in (results, expected):
        weighted = [(one * factor).sum() for one, factor in zip(outcome, factors, strict=True)]
        sum(weighted if last else weighted[:1], torch.zeros(())).backward()
    for what, one, other in zip(("y", "h", "c"), results, expected, strict=False):
        assert_close(one, other, what)
    assert_close(x.grad, exact_x.grad, "gradient of x")
    for what, one, other in zip(("h", "c"), state, exact_state, strict=False):
        assert_close(one.grad, other.grad, f"gradient of the first {what}")
    assert_same_network(packed, dense)
