"""Hooks tell a listener of gradients, steps and loaded weights of the parameters it names, and of no others."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from sparse_cases import Classifier, assert_inside_masks, backward, masks, same, sgd, train
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer

from selfish_rnn import Sparsifier
from selfish_rnn.sparsifier.hooks import HookListener, Hooks, check_unbound, listeners


class Recorder(HookListener):
    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters
        self.heard: list[object] = []

    @property
    def hooked_parameters(self) -> list[nn.Parameter]:
        return self.parameters

    def on_gradient(self, index: int, gradient: Tensor) -> None:
        self.heard.append(("gradient", index, self.parameters[index].grad is None))

    def before_step(self) -> None:
        self.heard.append("before")

    def on_step(self, optimizer: Optimizer, held: Sequence[int]) -> None:
        self.heard.append(("step", list(held)))

    def on_load(self) -> None:
        self.heard.append("load")


def test_a_listener_hears_of_its_parameters() -> None:
    model = Classifier()
    recorder = Recorder([model.decoder.weight, model.embedding.weight])
    hooks = Hooks(recorder, model)
    assert list(listeners(model)) == [recorder]
    backward(model)
    assert recorder.heard == [("gradient", 0, True), ("gradient", 1, True)]
    recorder.heard.clear()
    for parameters in (model.parameters(), model.embedding.parameters(), model.rnn.parameters()):
        torch.optim.SGD(parameters, lr=0.1).step()
    assert recorder.heard == ["before", ("step", [0, 1]), "before", ("step", [1])]
    recorder.heard.clear()
    model.load_state_dict(model.state_dict())
    assert recorder.heard == ["load", "load"]  # of the two modules that own the parameters
    hooks.release()
    recorder.heard.clear()
    train(model, sgd(model))
    assert recorder.heard == []
    assert list(listeners(model)) == []


def test_a_listener_that_overrides_nothing_hears_nothing() -> None:
    model = Classifier()
    listener = type("Deaf", (HookListener,), {"hooked_parameters": [model.decoder.weight]})()
    Hooks(listener, model)
    train(model, sgd(model))
    model.load_state_dict(model.state_dict())


def test_a_parameter_has_one_listener() -> None:
    model = Classifier()
    Hooks(Recorder([model.decoder.weight]), model)
    check_unbound(model, {id(model.embedding.weight): "embedding.weight"})
    with pytest.raises(ValueError, match=r"decoder\.weight already has a sparsifier"):
        check_unbound(model, {id(model.decoder.weight): "decoder.weight"})


@pytest.mark.parametrize("value", [0.1, None, [1]])
def test_a_users_own_attribute_bound_is_left_alone(value: object) -> None:
    class Bounded(nn.Linear):
        def __init__(self) -> None:
            super().__init__(8, 6)
            self._bound = value

    model = Bounded()
    sparsifier = Sparsifier(model, sparsity=0.5, rewirings=4)
    optimizer = sgd(model)
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    assert_inside_masks(sparsifier)
    before = masks(sparsifier)
    sparsifier.rewire()
    assert not same(before, masks(sparsifier))
    sparsifier.detach()
    assert model._bound is value
