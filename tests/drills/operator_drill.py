"""Operators of the packed engine called directly, with arguments that are wrong in one to three ways.

Each call may run or raise; it may not end the process, nor (with kernels built to check themselves, see
``tests/engine/sanitize.sh``) read or write where it should not.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from drill import Outcome, in_children, source
from torch import Tensor

from selfish_rnn.engine import PackedWeight, QuantizedWeight
from selfish_rnn.engine.int8 import operators as int8
from selfish_rnn.engine.int8.targets import int8_targets, use_int8_target
from selfish_rnn.engine.operators import highway, ordered_neurons, recurrent

ALLOWED = (ValueError, TypeError, RuntimeError, IndexError, OverflowError)
"""What a wrong argument may raise; ``NotImplementedError`` is a ``RuntimeError``."""

REGISTERED = (highway, int8, ordered_neurons, recurrent)
"""Modules that register operators when they are imported."""

Arguments = list[Any]


def drill(tries: int, seed: int) -> Outcome:
    cases = all_cases()

    def attempt(number: int) -> str:
        chosen = source(seed, number)
        torch.manual_seed(chosen.randrange(2**31))
        name = chosen.choice(sorted(cases))
        arguments = cases[name](chosen)
        for _ in range(chosen.choice((1, 1, 1, 2, 3))):
            place = chosen.randrange(len(arguments))
            arguments[place] = changed(chosen, arguments[place])
        if name.startswith("int8") and chosen.random() < 0.1:
            use_int8_target(chosen.choice(int8_targets()))  # what was laid out is for other kernels now
        try:
            getattr(torch.ops.selfish_rnn, name)(*arguments)
        except ALLOWED as error:
            return type(error).__name__
        return "ran"

    return in_children("operators", tries, seed, attempt)


# Right calls


def all_cases() -> dict[str, Callable[[random.Random], Arguments]]:
    """A right call of every operator, by its name."""
    return {
        "linear": _linear,
        "linear_backward": _linear_backward,
        "lookup": _lookup,
        "lookup_backward": _lookup_backward,
        "cross_entropy": _cross_entropy,
        "recurrent_layer": _layer,
        "recurrent_layer_backward": _layer_backward,
        "highway": _highway,
        "highway_backward": _highway_backward,
        "ordered_neurons": _ordered,
        "ordered_neurons_backward": _ordered_backward,
        "int8_linear": _int8_linear,
        "int8_lookup": _int8_lookup,
        "int8_layer": _int8_layer,
    }


def _weight(rows: int, columns: int, gates: tuple[int, ...] | None = None) -> list[Tensor]:
    mask = torch.rand(rows, columns) < 0.4
    packed = PackedWeight.from_dense(torch.randn(rows, columns), mask, gates)
    return [packed.values.detach(), packed.index]


def _sizes(chosen: random.Random) -> tuple[int, int, int, int]:
    """Steps, batch, inputs, hidden."""
    return chosen.randint(1, 5), chosen.choice((1, 3, 9)), chosen.choice((1, 5, 40)), chosen.choice((2, 6, 40))


def _linear(chosen: random.Random) -> Arguments:
    n, columns, rows = chosen.randint(1, 9), chosen.choice((1, 5, 130)), chosen.choice((2, 12, 300))
    bias = torch.randn(rows) if chosen.random() < 0.5 else None
    return [torch.randn(n, columns), *_weight(rows, columns), bias, rows]


def _linear_backward(chosen: random.Random) -> Arguments:
    x, values, index, _, rows = _linear(chosen)
    return [x, torch.randn(len(x), rows), values, index, [chosen.random() < 0.7 for _ in range(3)]]


def _lookup(chosen: random.Random) -> Arguments:
    rows, columns = chosen.choice((2, 12, 300)), chosen.choice((1, 5, 130))
    return [torch.randint(0, rows, (chosen.randint(1, 9), 2)), *_weight(rows, columns), columns]


def _lookup_backward(chosen: random.Random) -> Arguments:
    tokens, values, index, columns = _lookup(chosen)
    return [tokens, torch.randn(*tokens.shape, columns), values, index]


def _cross_entropy(chosen: random.Random) -> Arguments:
    x, values, index, _, rows = _linear(chosen)
    return [x, values, index, torch.randn(rows), torch.randint(0, rows, (len(x),)), chosen.random() < 0.5]


def _layer(chosen: random.Random) -> Arguments:
    steps, batch, inputs, hidden = _sizes(chosen)
    cell = chosen.choice(("lstm", "gru", "rnn_tanh", "rnn_relu"))
    gates = (hidden,) * {"lstm": 4, "gru": 3}.get(cell, 1)
    rows = sum(gates)
    c = torch.randn(batch, hidden) if cell == "lstm" else torch.empty(0)
    biases = [torch.randn(rows) if chosen.random() < 0.7 else None for _ in range(2)]
    weights = [*_weight(rows, inputs, gates), *_weight(rows, hidden, gates)]
    return [torch.randn(steps, batch, inputs), torch.randn(batch, hidden), c, *weights, *biases, cell, True]


def _layer_backward(chosen: random.Random) -> Arguments:
    arguments = _layer(chosen)
    x, h, c, *weights = arguments[:7]
    cell = arguments[-2]
    kept = list(torch.ops.selfish_rnn.recurrent_layer(*arguments)[3:])
    dc = torch.randn(c.shape) if cell == "lstm" and chosen.random() < 0.5 else None
    dh = torch.randn(h.shape) if chosen.random() < 0.5 else None
    dy = torch.randn(*x.shape[:2], h.shape[1])
    return [x, *weights, kept, dy, dh, dc, cell, h.shape[1], [True, True, cell == "lstm", *[True] * 4]]


def _highway(chosen: random.Random) -> Arguments:
    steps, batch, inputs, hidden = _sizes(chosen)
    gates, depth = (hidden, hidden), chosen.randint(1, 3)
    levels = [_weight(2 * hidden, hidden, gates) for _ in range(depth)]
    mask = torch.rand(batch, hidden) if chosen.random() < 0.5 else None
    x, h = torch.randn(steps, batch, inputs), torch.randn(batch, hidden)
    values, indices = (list(part) for part in zip(*levels, strict=True))
    biases = [torch.randn(2 * hidden) for _ in levels]
    return [x, h, mask, *_weight(2 * hidden, inputs, gates), values, indices, biases, True, "float32"]


def _highway_backward(chosen: random.Random) -> Arguments:
    arguments = _highway(chosen)
    x, h, mask, input_values, input_index, values, indices, *_ = arguments
    kept = list(torch.ops.selfish_rnn.highway(*arguments)[1:])
    dy, needs = torch.randn(*x.shape[:2], h.shape[1]), [True] * (3 + 2 * len(values))
    return [x, mask, input_values, input_index, values, indices, kept, dy, needs]


def _ordered(chosen: random.Random) -> Arguments:
    steps, batch, inputs, hidden = _sizes(chosen)
    chunk = chosen.choice((1, 2, hidden))
    gates = (hidden // chunk,) * 2 + (hidden,) * 4
    rows = sum(gates)
    weights = [*_weight(rows, inputs, gates), *_weight(rows, hidden, gates)]
    x, states = torch.randn(steps, batch, inputs), [torch.randn(batch, hidden) for _ in range(2)]
    return [x, *states, *weights, torch.randn(rows), chunk, True]


def _ordered_backward(chosen: random.Random) -> Arguments:
    arguments = _ordered(chosen)
    x, h, c, *weights = arguments[:7]
    results = torch.ops.selfish_rnn.ordered_neurons(*arguments)
    kept = [results[place] for place in (4, 5, 7, 8)]
    dc = torch.randn(c.shape) if chosen.random() < 0.5 else None
    return [x, *weights, kept, torch.randn(*x.shape[:2], h.shape[1]), dc, arguments[-2], [True] * 6 + [False]]


def _windows(rows: int, columns: int) -> Tensor:
    return QuantizedWeight.from_dense(torch.randn(rows, columns) * (torch.rand(rows, columns) < 0.4)).windows


def _int8_linear(chosen: random.Random) -> Arguments:
    x, _, _, bias, rows = _linear(chosen)
    return [x, _windows(rows, x.shape[1]), bias, rows]


def _int8_lookup(chosen: random.Random) -> Arguments:
    rows, columns = chosen.choice((2, 12, 300)), chosen.choice((1, 5, 130))
    return [torch.randint(0, rows, (chosen.randint(1, 9), 2)), _windows(rows, columns), columns]


def _int8_layer(chosen: random.Random) -> Arguments:
    x, h, c, *_, bias, recurrent_bias, cell, _ = _layer(chosen)
    rows = {"lstm": 4, "gru": 3}.get(cell, 1) * h.shape[1]
    return [x, h, c, _windows(rows, x.shape[2]), _windows(rows, h.shape[1]), bias, recurrent_bias, cell]


# Wrong arguments


def changed(chosen: random.Random, value: Any) -> Any:
    """The argument, wrong in one way."""
    if isinstance(value, Tensor):
        return _changed_tensor(chosen, value)
    if isinstance(value, list):
        return _changed_list(chosen, value)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return chosen.choice((0, -1, value - 1, value + 1, 2 * value, -value, 2**31, 2**40, 2**62))
    if isinstance(value, str):
        return chosen.choice(("lstm", "gru", "rnn_tanh", "rnn_relu", "", "LSTM", "x" * 1000))
    return chosen.choice((None, torch.randn(3), torch.randn(0)))


def _changed_list(chosen: random.Random, values: list[Any]) -> list[Any]:
    values = list(values)
    way = chosen.choice(("one", "shorter", "longer", "empty"))
    if way == "empty" or not values:
        return []
    place = chosen.randrange(len(values))
    if way == "one":
        values[place] = changed(chosen, values[place])
    elif way == "shorter":
        del values[place]
    else:
        values.append(values[place])
    return values


def _changed_tensor(chosen: random.Random, tensor: Tensor) -> Tensor:
    if tensor.is_sparse:  # has no shape to change; it is wrong enough
        return tensor
    if tensor.dtype == torch.uint8 and chosen.random() < 0.6:
        return _changed_index(chosen, tensor)
    if tensor.dtype == torch.int64 and chosen.random() < 0.5:
        wrong = tensor.clone().flatten()
        if len(wrong):
            wrong[chosen.randrange(len(wrong))] = chosen.choice((-1, 10**6, 2**62, -(2**62)))
        return wrong.view(tensor.shape)
    ways: list[Callable[[], Tensor]] = [
        lambda: tensor.to(chosen.choice((torch.float64, torch.float16, torch.int32, torch.int8, torch.bool))),
        lambda: tensor.to(chosen.choice((torch.int64, torch.uint8, torch.float32, torch.bfloat16))),
        lambda: tensor.flatten()[: tensor.numel() // 2],
        lambda: torch.cat([tensor.flatten(), tensor.flatten()]),
        lambda: tensor[:0] if tensor.ndim else tensor,
        lambda: tensor[: max(len(tensor) - 1, 0)] if tensor.ndim else tensor,
        lambda: tensor.flatten(),
        lambda: tensor.unsqueeze(0),
        lambda: tensor.transpose(0, -1) if tensor.ndim > 1 else tensor,
        lambda: torch.stack([tensor, tensor], -1)[..., 0],
        lambda: tensor.new_zeros(()),
        lambda: tensor.to("meta"),
        lambda: tensor.expand(3, *tensor.shape),
        lambda: tensor.new_zeros(()).expand(tensor.shape),
        lambda: torch.full_like(tensor, torch.nan) if tensor.is_floating_point() else torch.zeros_like(tensor),
        lambda: tensor.to_sparse() if tensor.is_floating_point() and not tensor.is_meta else tensor,
        lambda: tensor.flatten()[1:] if tensor.numel() else tensor,
        lambda: tensor.requires_grad_() if tensor.is_floating_point() else tensor,
    ]
    return chosen.choice(ways)()


def _changed_index(chosen: random.Random, index: Tensor) -> Tensor:
    """An index with other bytes, sometimes in place: what was known of it does not hold any more."""
    damaged = index if chosen.random() < 0.3 else index.clone()
    if not damaged.numel() or not damaged.ndim:
        return damaged
    for _ in range(chosen.choice((1, 1, 2, 20))):
        end = min(152, len(damaged)) if chosen.random() < 0.5 else len(damaged)  # half of them in the header
        damaged[chosen.randrange(end)] = chosen.randrange(256)
    if chosen.random() < 0.2:
        return damaged[: chosen.randrange(len(damaged))]
    return damaged
