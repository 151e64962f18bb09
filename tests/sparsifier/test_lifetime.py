"""How long a sparsifier lives, and what copies of its model are."""

from __future__ import annotations

import copy
import gc
import io
import weakref

import pytest
import torch
from sparse_cases import Classifier, assert_inside_masks, masks, same, sgd, train
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from selfish_rnn import Sparsifier
from selfish_rnn.sparsifier.hooks import _active_hooks, listeners


def test_lives_as_long_as_the_model_even_if_the_user_drops_it() -> None:
    model = Classifier()
    reference = weakref.ref(Sparsifier(model, sparsity=0.67, rewirings=10))
    gc.collect()
    train(model, sgd(model))
    sparsifier = reference()
    assert sparsifier is not None
    assert_inside_masks(sparsifier)


def test_lives_as_long_as_the_layer_that_owns_the_weights() -> None:
    model = Classifier()
    layer = model.decoder
    reference = weakref.ref(Sparsifier(model, sparsity=0.67, rewirings=10))
    del model
    gc.collect()
    assert reference() is not None
    optimizer = sgd(layer)
    layer(torch.randn(3, 5)).sum().backward()
    optimizer.step()
    assert int(layer.weight.count_nonzero()) < layer.weight.numel() / 2


def test_neither_outlives_the_other_when_all_is_dropped() -> None:
    gc.collect()
    hooks = len(_active_hooks)
    model = Classifier()
    optimizer = sgd(model)
    sparsifier = Sparsifier(model, sparsity=0.67, rewirings=10)
    train(model, optimizer)
    sparsifier.rewire()
    references = [weakref.ref(thing) for thing in (model, model.rnn, model.decoder.weight, optimizer, sparsifier)]
    del model, optimizer, sparsifier
    gc.collect()
    assert [reference() for reference in references] == [None] * len(references)
    assert len(_active_hooks) == hooks


def test_a_sparsifier_may_be_collected_in_the_middle_of_an_optimizer_step() -> None:
    """A hook on all optimizers that collects the garbage: torch would not bear the loss of one of its hooks."""
    gc.disable()
    collecting = register_optimizer_step_post_hook(lambda *_: gc.collect() and None)
    model = Classifier()
    model.circle = [model]  # type: ignore[assignment]
    garbage = weakref.ref(Sparsifier(model, sparsity=0.67, rewirings=10))
    del model
    assert garbage() is not None
    try:
        other = nn.Linear(2, 2)
        other(torch.ones(2)).sum().backward()
        sgd(other).step()
    finally:
        collecting.remove()
        gc.enable()
    assert garbage() is None


def test_optimizers_are_not_kept_alive() -> None:
    model = Classifier()
    sparsifier = Sparsifier(model, sparsity=0.67, rewirings=10)
    optimizer = sgd(model)
    train(model, optimizer)
    reference = weakref.ref(optimizer)
    del optimizer
    gc.collect()
    assert reference() is None
    sparsifier.rewire()


def pickled(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert isinstance(loaded, nn.Module)
    return loaded


@pytest.mark.parametrize("duplicate", [copy.deepcopy, pickled])
def test_a_copy_is_an_ordinary_module(duplicate: object) -> None:
    model = Classifier()
    sparsifier = Sparsifier(model, sparsity=0.67, rewirings=10)
    train(model, sgd(model))
    twin = duplicate(model)  # type: ignore[operator]
    assert same(list(twin.state_dict().values()), list(model.state_dict().values()))
    train(twin, sgd(twin))
    assert int(twin.rnn.weight_hh_l0.count_nonzero()) == twin.rnn.weight_hh_l0.numel()
    train(model, sgd(model))
    assert_inside_masks(sparsifier)
    again = Sparsifier(twin, sparsity=0.5, method="static")
    train(twin, sgd(twin))
    assert_inside_masks(again)


def test_detach_lets_go_and_keeps_the_zeros() -> None:
    model = Classifier()
    sparsifier = Sparsifier(model, sparsity=0.67, rewirings=10)
    optimizer = sgd(model)
    train(model, optimizer)
    before = masks(sparsifier)
    sparsifier.detach()
    assert_inside_masks(sparsifier)
    reference = weakref.ref(sparsifier)
    del sparsifier
    gc.collect()
    assert reference() is None
    train(model, optimizer)
    assert int(model.rnn.weight_hh_l0.count_nonzero()) == model.rnn.weight_hh_l0.numel()
    assert int(before[1].count_nonzero()) < before[1].numel()


def test_detach_leaves_no_trace_in_the_model() -> None:
    model, untouched = Classifier(), Classifier()
    sparsifier = Sparsifier(model, sparsity=0.67, rewirings=10)
    train(model, sgd(model))
    sparsifier.detach()
    for module, other in zip(model.modules(), untouched.modules(), strict=True):
        assert module.__dict__.keys() == other.__dict__.keys()
        assert not module._load_state_dict_post_hooks
        assert not module._forward_pre_hooks
    file = io.BytesIO()
    torch.save(model, file)
    assert b"selfish_rnn" not in file.getvalue()
    assert not any(parameter._backward_hooks for parameter in model.parameters())


def test_one_of_two_sparsifiers_is_detached() -> None:
    model = nn.LSTM(6, 5)
    first = Sparsifier(model, sparsity=0.5, method="static", include="weight_ih_l0")
    second = Sparsifier(model, sparsity=0.5, method="static", include="weight_hh_l0")
    first.detach()
    assert list(listeners(model)) == [second]
    second.detach()
    assert "_selfish_rnn_bound" not in model.__dict__


def test_a_bound_model_saved_whole_opens_with_weights_only() -> None:
    model = nn.Sequential(nn.Linear(8, 6))
    model.sparsifier = Sparsifier(model, sparsity=0.5, rewirings=10)  # type: ignore[assignment]
    model.sparsifier._hooks.listen_to_forward()  # as in a loop without an optimizer
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    with torch.serialization.safe_globals([nn.Sequential, nn.Linear]):
        twin = torch.load(file, weights_only=True)
    assert twin.sparsifier is None
    assert torch.equal(twin[0].weight, model[0].weight)
    twin(torch.ones(2, 8)).sum().backward()
    sgd(twin).step()
    assert int(twin[0].weight.count_nonzero()) > int(model[0].weight.count_nonzero())


def test_the_model_may_change_its_precision_after_binding() -> None:
    model = Classifier()
    sparsifier = Sparsifier(model, sparsity=0.67, rewirings=10)
    model.double()
    train(model, sgd(model))
    assert_inside_masks(sparsifier)
    sparsifier.rewire()
    assert sparsifier.active_weights == round(0.33 * sparsifier.total_weights)
    assert_inside_masks(sparsifier)
