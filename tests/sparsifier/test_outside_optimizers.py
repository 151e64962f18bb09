"""Training that goes around ``.grad`` and around torch's optimizers."""

from __future__ import annotations

import copy
import io
import warnings

import pytest
import torch
from sparse_cases import Classifier, assert_inside_masks, backward, masks, same, sgd, tokens, train
from torch import Tensor, nn

from selfish_rnn import METHODS, Sparsifier, deferred_init, engine

needs_kernels = pytest.mark.skipif(not engine.available(), reason="the kernels are not built")


def loss_of(model: nn.Module, seed: int = 0) -> Tensor:
    loss: Tensor = model(tokens(seed)).pow(2).mean()
    return loss


def update_by_hand(model: nn.Module, seed: int = 0) -> None:
    """A step of word_language_model's kind."""
    model.zero_grad()
    backward(model, seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.data.add_(parameter.grad, alpha=-0.5)


# Gradients


@pytest.mark.parametrize("method", [name for name in METHODS if name not in ("snfs", "dense", "gmp")])
def test_gradients_of_autograd_grad_are_masked(method: str) -> None:
    model, dense = Classifier(), Classifier()
    sparsifier = Sparsifier(model, sparsity=0.8, method=method, rewirings=4)
    dense.load_state_dict(model.state_dict())
    gradients = torch.autograd.grad(loss_of(model), list(model.parameters()))
    expected = torch.autograd.grad(loss_of(dense), list(dense.parameters()))
    kept = {weight.name: weight.mask for weight in sparsifier.weights}
    for name, mine, theirs in zip(dict(model.named_parameters()), gradients, expected, strict=True):
        torch.testing.assert_close(mine, theirs * kept.get(name, 1))
    backward(model)
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        assert torch.equal(parameter.grad, gradient)


def test_the_gradient_that_rigl_grows_by_is_collected_before_it_is_masked() -> None:
    model, dense = Classifier(), Classifier()
    sparsifier = Sparsifier(model, sparsity=0.8, method="rigl", rewirings=4)
    dense.load_state_dict(model.state_dict())
    with sparsifier.dense_gradients():
        torch.autograd.grad(loss_of(model), list(model.parameters()))
    backward(dense)
    for weight in sparsifier.weights:
        torch.testing.assert_close(weight.collected_gradient(), dense.get_parameter(weight.name).grad)
    sparsifier.rewire()


def test_a_gradient_that_two_weights_share_is_masked_for_each() -> None:
    """Autograd passes the same tensor to both; masking it in place would mask it twice."""
    one, two = nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False)
    model = nn.ModuleList([one, two])
    sparsifier = Sparsifier(model, sparsity=0.5, method="static")
    (one.weight + two.weight).sum().backward()
    for weight in sparsifier.weights:
        assert torch.equal(weight.parameter.grad, weight.mask)


def test_a_gradient_penalty_goes_through_the_masked_gradient() -> None:
    model, reference = Classifier().double(), Classifier().double()
    sparsifier = Sparsifier(model, sparsity=0.7, method="static", include="decoder")
    reference.load_state_dict(model.state_dict())
    mask = sparsifier.weights[0].mask
    for network, factor in ((model, 1.0), (reference, mask)):
        (gradient,) = torch.autograd.grad(loss_of(network), [network.decoder.weight], create_graph=True)
        (gradient * factor).square().sum().backward()
    torch.testing.assert_close(model.decoder.weight.grad, reference.decoder.weight.grad * mask)
    torch.testing.assert_close(model.embedding.weight.grad, reference.embedding.weight.grad)


def test_gradients_from_before_binding_are_masked() -> None:
    model = Classifier()
    backward(model)
    sparsifier = Sparsifier(model, sparsity=0.8, method="static")
    for weight in sparsifier.weights:
        assert not weight.parameter.grad[weight.mask == 0].any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_gradients_keep_the_type_of_a_model_that_was_converted(dtype: torch.dtype) -> None:
    model = Classifier()
    sparsifier = Sparsifier(model, sparsity=0.8, rewirings=4)
    model.to(dtype)
    gradients = torch.autograd.grad(loss_of(model), list(model.parameters()))
    assert {gradient.dtype for gradient in gradients} == {dtype}
    train(model, sgd(model))
    assert_inside_masks(sparsifier)


def test_tied_and_frozen_weights_and_those_on_the_meta_device() -> None:
    model = Classifier()
    model.rnn = nn.LSTM(6, 6)
    model.decoder = nn.Linear(6, 10)
    model.decoder.weight = model.embedding.weight
    sparsifier = Sparsifier(model, sparsity=0.8, method="static")
    gradient, *_ = torch.autograd.grad(loss_of(model), list(model.parameters()))
    assert torch.equal(gradient != 0, (gradient != 0) & sparsifier.masks()["embedding.weight"])
    model.rnn.requires_grad_(False)
    backward(model)
    assert model.rnn.weight_hh_l0.grad is None
    layer = nn.Linear(6, 5, device="meta")
    Sparsifier(layer, sparsity=0.5, method="static")
    assert torch.autograd.grad(layer(torch.ones(2, 6, device="meta")).sum(), [layer.weight])[0].is_meta
    with deferred_init():
        deferred = nn.Linear(6, 5)
    assert Sparsifier(deferred, sparsity=0.8, method="static").weights[0].count == 6


def test_an_ordinary_step_masks_every_gradient_once_and_every_weight_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And never asks whether weights lie outside the topology, which would synchronize a GPU."""
    calls: list[str] = []
    model = Classifier()
    sparsifier = Sparsifier(model, sparsity=0.8, rewirings=4, rewire_every=100)
    kind = type(sparsifier.weights[0])
    for name in ("masked_gradient", "mask_gradient", "apply_mask", "has_weights_outside"):
        method = getattr(kind, name)
        monkeypatch.setattr(
            kind, name, lambda self, *inputs, name=name, method=method: (calls.append(name), method(self, *inputs))[1]
        )
    train(model, sgd(model), steps=1)
    number = len(sparsifier.weights)
    assert sorted(calls) == ["apply_mask"] * number + ["masked_gradient"] * number


# Changes by hand


def test_rewiring_refuses_weights_outside_the_topology() -> None:
    model = Classifier()
    sparsifier = Sparsifier(model, sparsity=0.8, rewirings=4)
    with torch.no_grad():
        model.rnn.weight_hh_l1.add_(torch.randn(20, 5))
    before = masks(sparsifier)
    message = r"rnn\.weight_hh_l1 has nonzero weights outside .* sparsifier\.apply_masks\(\) after every such update"
    with pytest.raises(RuntimeError, match=message):
        sparsifier.rewire()
    assert sparsifier.rewirings_done == 0
    assert same(before, masks(sparsifier))
    sparsifier.apply_masks()
    assert_inside_masks(sparsifier)
    sparsifier.rewire()
    assert sparsifier.active_weights == sparsifier.target_weights


def test_updates_by_gradients_of_autograd_grad_stay_in_the_topology() -> None:
    model = Classifier()
    sparsifier = Sparsifier(model, sparsity=0.8, rewirings=4)
    for seed in range(4):
        gradients = torch.autograd.grad(loss_of(model, seed), list(model.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.sub_(0.5 * gradient)
        assert_inside_masks(sparsifier)
        sparsifier.rewire()
        assert_inside_masks(sparsifier)


def test_applying_masks_to_a_dense_network_changes_nothing() -> None:
    model = Classifier()
    sparsifier = Sparsifier(model, sparsity=0.5, method="dense")
    before = copy.deepcopy(model.state_dict())
    sparsifier.apply_masks()
    assert same(list(before.values()), list(model.state_dict().values()))


# rewire_every without an optimizer


def without_an_optimizer(packed: bool = False, method: str = "selfish", seed: int = 0) -> tuple[nn.Module, Sparsifier]:
    model = Classifier(seed)
    sparsifier = Sparsifier(model, sparsity=0.6, method=method, rewirings=20, rewire_every=2, seed=seed)
    return (engine.pack(model) if packed else model), sparsifier


@pytest.mark.parametrize("method", ["selfish", "rigl", "dsr"])
@pytest.mark.parametrize("packed", [False, pytest.param(True, marks=needs_kernels)])
def test_updates_by_hand_are_counted_after_a_warning(packed: bool, method: str) -> None:
    model, sparsifier = without_an_optimizer(packed, method)
    count = sparsifier.active_weights
    for seed in range(19):
        update_by_hand(model, seed)
    with pytest.warns(UserWarning, match=r"none in 20 backward passes, but .* leave rewire_every= out and call rewire"):
        update_by_hand(model, 19)
    assert sparsifier.rewirings_done == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for seed in range(8):
            update_by_hand(model, seed)
    assert sparsifier.steps_done == 8  # from the 20th on; the last one is counted at the next forward pass
    assert sparsifier.rewirings_done == 4
    assert sparsifier.active_weights == count
    train(model, sgd(model), steps=3)  # an optimizer's steps count from here on
    assert sparsifier.steps_done == 12
    assert not model._forward_pre_hooks


def test_backward_passes_that_change_nothing_are_no_updates() -> None:
    """Gradients of a trained model: saliency, Fisher information, accumulation over many batches."""
    model, sparsifier = without_an_optimizer()
    optimizer = sgd(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for seed in range(50):
            backward(model, seed)
        model.load_state_dict(model.state_dict())
        for seed in range(50):
            backward(model, seed)
        optimizer.step()
    assert sparsifier.rewirings_done == 0
    assert sparsifier.steps_done == 1


@pytest.mark.filterwarnings("ignore:rewire_every=2 counts optimizer steps:UserWarning")
@pytest.mark.parametrize("updates", [23, 24])
def test_a_run_without_an_optimizer_is_resumed(updates: int) -> None:
    (first, sparsifier), (second, twin) = without_an_optimizer(), without_an_optimizer(seed=3)
    for seed in range(updates):
        update_by_hand(first, seed)
    twin.load_state_dict(copy.deepcopy(sparsifier.state_dict()))
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for model in (first, second):
        for seed in range(5):
            update_by_hand(model, seed)
    assert sparsifier.rewirings_done == twin.rewirings_done > 2
    assert same(list(first.state_dict().values()), list(second.state_dict().values()))


@pytest.mark.filterwarnings("ignore:rewire_every=2 counts optimizer steps:UserWarning")
def test_a_model_whose_updates_are_counted_is_copied_saved_and_called_functionally() -> None:
    model, sparsifier = without_an_optimizer()
    for seed in range(22):
        update_by_hand(model, seed)
    done = sparsifier.rewirings_done
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for twin in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        for seed in range(4):
            update_by_hand(twin, seed)
    other = {name: torch.zeros_like(value) for name, value in model.named_parameters()}
    torch.func.functional_call(model, other, (tokens(),))
    assert sparsifier.rewirings_done == done
    sparsifier.detach()
    assert not model._forward_pre_hooks
