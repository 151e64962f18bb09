"""A right call of every operator, made wrong in ways that once ended the process or gave memory nobody wrote to."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from operator_drill import all_cases
from torch import Tensor

from selfish_rnn.engine import PackedWeight, available
from selfish_rnn.engine.index import contents

pytestmark = pytest.mark.skipif(not available(), reason="the packed engine's kernels are not built")

KEPT = {"recurrent_layer_backward": 5, "highway_backward": 6, "ordered_neurons_backward": 5}
"""Operators that take what a forward pass kept, and where among their arguments; the gradient of the output is next."""


def right_call(name: str, seed: int = 0) -> list[Any]:
    torch.manual_seed(seed)
    return all_cases()[name](random.Random(seed))


def call(name: str, arguments: list[Any], **changed: Any) -> Any:
    """Call an operator with some arguments, by their places, changed."""
    given = [changed.get(f"at_{place}", argument) for place, argument in enumerate(arguments)]
    return getattr(torch.ops.selfish_rnn, name)(*given)


@pytest.mark.parametrize("name", all_cases())
def test_tensors_without_memory_do_not_mix_with_those_that_have_some(name: str) -> None:
    """Torch would take memory that nothing was written to for what the operator computed."""
    arguments = right_call(name)
    on_meta = [without_memory(argument) for argument in arguments]
    for place, argument in enumerate(on_meta):
        if argument is not arguments[place]:
            with pytest.raises(TypeError, match=rf"^{name} takes tensors of one device, not \w+ on \w+ and \w+ on"):
                call(name, arguments, **{f"at_{place}": argument})
    found = call(name, on_meta)
    assert all(tensor.is_meta for tensor in ([found] if isinstance(found, Tensor) else found))


def without_memory(argument: Any) -> Any:
    if isinstance(argument, Tensor):
        return argument.to("meta")
    if isinstance(argument, list) and isinstance(argument[0], Tensor):
        return [tensor.to("meta") for tensor in argument]
    return argument


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", KEPT)
def test_what_a_forward_pass_kept_is_that_of_this_window(name: str, seed: int) -> None:
    arguments, place = right_call(name, seed), KEPT[name]
    call(name, arguments)
    kept: list[Tensor] = arguments[place]
    for number, tensor in enumerate(kept):
        for wrong in (tensor[:-1] if len(tensor) else torch.zeros(1), torch.cat([tensor, torch.zeros(64)])):
            with pytest.raises(ValueError, match=r"the kept .* must be of shape"):
                call(name, arguments, **{f"at_{place}": [*kept[:number], wrong, *kept[number + 1 :]]})
    with pytest.raises((ValueError, TypeError)):
        call(name, arguments, **{f"at_{place}": kept[:-1]})


@pytest.mark.parametrize("name", KEPT)
def test_gradients_are_of_the_window_and_its_states(name: str) -> None:
    arguments = right_call(name, seed=1)
    x, place = arguments[0], KEPT[name] + 1
    dy = arguments[place]
    for wrong in (dy[:, :0], torch.cat([dy, dy]), dy[0]):
        with pytest.raises(ValueError, match=r"must be of shape|at least one step"):
            call(name, arguments, **{f"at_{place}": wrong})
    states = {"recurrent_layer_backward": (7, 8), "highway_backward": (1,), "ordered_neurons_backward": (7,)}[name]
    for state in states:
        with pytest.raises(ValueError, match="the state must be of shape"):
            call(name, arguments, **{f"at_{state}": torch.randn(x.shape[1] + 1, dy.shape[-1])})


@pytest.mark.parametrize(
    ("name", "values"),
    {"recurrent_layer": 5, "highway": 5, "ordered_neurons": 5, **dict.fromkeys(KEPT, 3), "highway_backward": 4}.items(),
)
def test_a_matrix_whose_gates_are_not_parted_is_refused(name: str, values: int) -> None:
    """Kernels take the same units of all gates at a time, and would read those of another."""
    seed = next(seed for seed in range(100) if not {"rnn_tanh", "rnn_relu"} & set(map(str, right_call(name, seed))))
    arguments = right_call(name, seed)
    uncut = [whole(index) for index in as_list(arguments[values + 1])]
    parts = [each.values.detach() for each in uncut], [each.index for each in uncut]
    changed = {
        f"at_{values + number}": part if isinstance(arguments[values], list) else part[0]
        for number, part in enumerate(parts)
    }
    with pytest.raises(ValueError, match="is needed, this one is cut otherwise"):
        call(name, arguments, **changed)


def as_list(argument: Any) -> list[Tensor]:
    return argument if isinstance(argument, list) else [argument]


def whole(index: Tensor) -> PackedWeight:
    """A matrix of the same size with as many weights, and one gate."""
    found = contents(index)
    return PackedWeight((found.rows, found.columns), torch.arange(found.count))
