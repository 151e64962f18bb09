"""What a sparsifier cannot keep it says, with the name of the weight and what to do."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from sparse_cases import Classifier, assert_inside_masks, backward, masks, same, sgd, train
from torch import distributed, nn
from torch.nn.utils.prune import l1_unstructured

from selfish_rnn import METHODS, Sparsifier, engine
from selfish_rnn.models import StackedRNN
from selfish_rnn.sparsifier.iss import IntrinsicSparseStructures

needs_kernels = pytest.mark.skipif(not engine.available(), reason="the kernels are not built")


def assign(model: Classifier) -> None:
    model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)


def weight_norm(model: Classifier) -> None:
    nn.utils.parametrizations.weight_norm(model.decoder)


def old_weight_norm(model: Classifier) -> None:
    nn.utils.weight_norm(model.decoder)


def prune(model: Classifier) -> None:
    l1_unstructured(model.decoder, "weight", 0.5)


def new_parameter(model: Classifier) -> None:
    """As fully_shard() does."""
    model.decoder.weight = nn.Parameter(model.decoder.weight.detach().clone())


REPLACING = pytest.mark.parametrize(
    ("replace", "name"),
    [
        (assign, "embedding.weight"),
        (weight_norm, "decoder.weight"),
        (old_weight_norm, "decoder.weight"),
        (prune, "decoder.weight"),
        (new_parameter, "decoder.weight"),
    ],
)


@REPLACING
@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_a_replaced_parameter_is_noticed_at_the_next_step(replace: Callable[[Classifier], None], name: str) -> None:
    model = Classifier()
    sparsifier = Sparsifier(model, sparsity=0.67, rewirings=10)
    replace(model)
    with pytest.raises(RuntimeError, match=rf"{name} of the model is no longer .* detach\(\) and bind again"):
        train(model, sgd(model))
    sparsifier.detach()
    train(model, sgd(model))


@REPLACING
@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_a_replaced_parameter_is_noticed_at_a_rewiring(replace: Callable[[Classifier], None], name: str) -> None:
    model = Classifier()
    sparsifier = Sparsifier(model, sparsity=0.67, rewirings=10)
    replace(model)
    with pytest.raises(RuntimeError, match=rf"{name} of the model is no longer"):
        sparsifier.rewire()
    assert sparsifier.rewirings_done == 0


def test_a_replaced_layer_is_noticed_at_a_rewiring() -> None:
    model = Classifier()
    sparsifier = Sparsifier(model, sparsity=0.67, rewirings=10)
    model.decoder = nn.Linear(5, 3)
    with pytest.raises(RuntimeError, match=r"decoder\.weight of the model is no longer"):
        sparsifier.rewire()


def test_steps_of_other_models_are_not_stopped_by_a_replaced_parameter() -> None:
    model, other = Classifier(), Classifier()
    Sparsifier(model, sparsity=0.67, rewirings=10)
    assign(model)
    train(other, sgd(other))


def test_intrinsic_structures_notice_it_too() -> None:
    model = StackedRNN(11, embedding=6, hidden=5, layers=1)
    IntrinsicSparseStructures(model)
    model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)
    with pytest.raises(RuntimeError, match="is no longer the parameter that was made sparse"):
        sgd(model).step()


@needs_kernels
def test_an_optimizer_of_what_pack_replaced_is_refused() -> None:
    model = Classifier()
    Sparsifier(model, sparsity=0.67, rewirings=10)
    optimizer = sgd(model)
    engine.pack(model)
    with pytest.raises(RuntimeError, match=r"holds embedding\.weight, which packing or unpacking has replaced"):
        train(model, optimizer)
    train(model, sgd(model))


@needs_kernels
@pytest.mark.parametrize("held", [True, False])
def test_a_root_module_whose_packed_form_was_dropped_is_noticed(held: bool) -> None:
    model = nn.LSTM(8, 16)
    sparsifier = Sparsifier(model, sparsity=0.67, rewirings=10)
    if not held:
        del sparsifier
    engine.pack(model)
    optimizer = sgd(model)
    model(torch.randn(5, 3, 8))[0].square().mean().backward()
    with pytest.raises(RuntimeError, match=r"holds weight_ih_l0 .* the model that was returned"):
        optimizer.step()


@needs_kernels
def test_a_root_module_whose_packed_form_was_dropped_is_noticed_at_a_rewiring() -> None:
    """Also by who makes steps without an optimizer of torch."""
    model = nn.LSTM(8, 16)
    sparsifier = Sparsifier(model, sparsity=0.67, rewirings=10)
    packed = engine.pack(model)
    sparsifier.rewire()
    del packed
    with pytest.raises(RuntimeError, match=r"use what pack returns, model = pack\(model\)"):
        sparsifier.rewire()
    del model  # nothing is left to train
    sparsifier.rewire()


@needs_kernels
def test_a_packed_layer_that_is_replaced_is_noticed_at_a_rewiring() -> None:
    model = Classifier()
    sparsifier = Sparsifier(model, sparsity=0.67, rewirings=10)
    engine.pack(model)
    model.decoder = nn.Linear(5, 3)
    with pytest.raises(RuntimeError, match=r"decoder\.weight of the model is no longer"):
        sparsifier.rewire()


# Frozen weights


@pytest.mark.parametrize("method", [name for name in METHODS if METHODS[name].rewires or METHODS[name].prunes])
def test_weights_frozen_later_are_not_rewired(method: str) -> None:
    model = Classifier()
    sparsifier = Sparsifier(model, sparsity=0.67, method=method, rewirings=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(model, optimizer)
    model.rnn.requires_grad_(False)
    frozen = {name: value.clone() for name, value in model.rnn.state_dict().items()}
    before = masks(sparsifier)
    for _ in range(3):
        optimizer.zero_grad()
        with sparsifier.dense_gradients():
            backward(model)
        optimizer.step()
        sparsifier.rewire()
        assert sparsifier.active_weights == sparsifier.target_weights
    assert same(list(model.rnn.state_dict().values()), list(frozen.values()))
    after = masks(sparsifier)
    assert same(before[1:-1], after[1:-1])
    if method != "dsr":  # it removes what is below a threshold, here nothing
        assert not same([before[0], before[-1]], [after[0], after[-1]])
    model.requires_grad_(False)
    sparsifier.rewire()
    assert same(after, masks(sparsifier))
    model.requires_grad_(True)
    train(model, optimizer)
    assert_inside_masks(sparsifier)


@needs_kernels
def test_a_frozen_weight_is_packed_frozen_and_may_be_thawed() -> None:
    model = Classifier()
    sparsifier = Sparsifier(model, sparsity=0.67, method="rigl", rewirings=9)
    model.decoder.requires_grad_(False)
    engine.pack(model)
    assert not sparsifier.weights[-1].parameter.requires_grad
    model.decoder.requires_grad_(True)
    optimizer = sgd(model)
    with sparsifier.dense_gradients():
        backward(model)
    optimizer.step()
    before = sparsifier.weights[-1].topology.positions
    sparsifier.rewire()
    assert not torch.equal(before, sparsifier.weights[-1].topology.positions)


# Gradients and numbers that are none


@pytest.mark.parametrize("method", ["selfish", "set", "dsr", "gmp"])
def test_gradients_are_zero_outside_the_new_topology(method: str) -> None:
    model = Classifier()
    sparsifier = Sparsifier(model, sparsity=0.67, method=method, rewirings=10)
    train(model, sgd(model))
    sparsifier.rewire()
    for weight in sparsifier.weights:
        assert weight.parameter.grad is not None
        assert weight.parameter.grad.any()
        assert not weight.parameter.grad[weight.mask == 0].any()


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("packed", [False, pytest.param(True, marks=needs_kernels)])
def test_weights_that_are_not_finite_are_found(value: float, packed: bool) -> None:
    model = Classifier()
    sparsifier = Sparsifier(model, sparsity=0.67, rewirings=10)
    if packed:
        engine.pack(model)
    with torch.no_grad():
        sparsifier.weights[2].parameter[0] = value
    before = [weight.topology.positions for weight in sparsifier.weights]
    with pytest.raises(FloatingPointError, match=r"rnn\.weight_hh_l0 has NaN or infinite weights"):
        sparsifier.rewire()
    assert sparsifier.rewirings_done == 0
    assert same(before, [weight.topology.positions for weight in sparsifier.weights])


def test_a_gradient_that_growth_goes_by_is_finite() -> None:
    model = Classifier()
    sparsifier = Sparsifier(model, sparsity=0.67, method="rigl", rewirings=10)
    with sparsifier.dense_gradients():
        (model(torch.zeros(2, 2, dtype=torch.int64)) * math.inf).sum().backward()
    with pytest.raises(FloatingPointError, match=r"the gradient of embedding\.weight by which weights grow is NaN"):
        sparsifier.rewire()


# What is chosen


@pytest.mark.parametrize("kind", [nn.Conv1d, nn.Conv2d])
def test_a_model_of_convolutions_is_told_how_to_name_them(kind: type[nn.Conv1d] | type[nn.Conv2d]) -> None:
    model = nn.Sequential(kind(4, 8, 3), nn.ReLU())
    with pytest.raises(ValueError, match=rf"say include=nn\.{kind.__name__}$"):
        Sparsifier(model, sparsity=0.5, rewirings=2)
    assert Sparsifier(model, sparsity=0.5, rewirings=2, include=kind).active_weights > 0


def test_a_model_whose_weights_are_all_parametrized_is_told_so() -> None:
    with pytest.raises(ValueError, match=r"weight norm\) and computed from other tensors; .*remove_parametrizations"):
        Sparsifier(nn.utils.parametrizations.weight_norm(nn.Linear(8, 16)), sparsity=0.5, rewirings=2)


def test_weights_that_stay_dense_unasked_are_told_of_where_they_are_the_most() -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.Conv1d(8, 16, 3), nn.Flatten(), nn.Linear(16, 4))

    with pytest.warns(UserWarning, match=r"384 weights of the model stay dense, those of nn\.Conv1d; only 64"):
        Sparsifier(model(), sparsity=0.5, rewirings=2)
    frozen = model()
    frozen.requires_grad_(False)[2].requires_grad_(True)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "[0-9,]+ weights of the model stay dense")
        Sparsifier(model(), sparsity=0.5, rewirings=2, exclude=nn.Conv1d)
        Sparsifier(model(), sparsity=0.5, rewirings=2, include=nn.Linear)
        Sparsifier(frozen, sparsity=0.5, rewirings=2)
        Sparsifier(nn.TransformerEncoderLayer(16, 2, 64), sparsity=0.5, rewirings=2)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*deprecated:DeprecationWarning")
def test_scripted_models_are_refused_in_words() -> None:
    scripted = torch.jit.trace(nn.Linear(8, 6), torch.ones(2, 8))
    for model, settings in (
        (scripted, {}),
        (nn.Sequential(scripted, nn.Linear(6, 2)), {"include": "0"}),
    ):
        with pytest.raises(
            ValueError, match=r"a torch\.jit model, whose parameters .*: bind the nn\.Module it was made of"
        ):
            Sparsifier(model, sparsity=0.5, rewirings=4, **settings)  # type: ignore[arg-type]


def test_classes_are_named_with_their_module() -> None:
    class Conv1d(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(8, 8))

    with pytest.raises(ValueError, match=r"say include=test_nothing_silent\..*Conv1d$"):
        Sparsifier(Conv1d(), sparsity=0.5, rewirings=2)
    with pytest.warns(UserWarning, match=r"stay dense, those of nn\.Conv1d, test_nothing_silent\..*Conv1d; only"):
        Sparsifier(nn.Sequential(Conv1d(), nn.Conv1d(4, 4, 3), nn.Linear(2, 2)), sparsity=0.5, rewirings=2)


@pytest.mark.slow
def test_sharded_weights_are_refused(tmp_path: Path) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (1,))
        before = nn.Sequential(nn.Linear(8, 16))
        fully_shard(before, mesh=mesh)
        with pytest.raises(ValueError, match="weight is divided over processes"):
            Sparsifier(before, sparsity=0.5, rewirings=3)
        after = nn.Sequential(nn.Linear(8, 16))
        sparsifier = Sparsifier(after, sparsity=0.5, rewirings=3)
        fully_shard(after, mesh=mesh)
        with pytest.raises(RuntimeError, match=r"0\.weight of the model is no longer the parameter"):
            sparsifier.rewire()
    finally:
        distributed.destroy_process_group()
