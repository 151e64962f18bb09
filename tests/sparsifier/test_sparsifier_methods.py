"""What every method promises, on a real network with real gradients."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sparse_cases import Classifier, assert_inside_masks, backward, layer_counts, masks, train

from selfish_rnn import METHODS, RIGL, SELFISH, SNFS, SNTASGD, Method, Sparsifier
from selfish_rnn.topology.schedules import gradual_sparsity

REWIRING = [name for name, method in METHODS.items() if method.rewires]
SPARSE_BACKWARD = [name for name, method in METHODS.items() if method.sparse_backward and method.signal is None]
OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.5),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    "snt-asgd": lambda parameters: SNTASGD(parameters, lr=0.5),
}


def collected(sparsifier: Sparsifier) -> int:
    """Of how many matrices a dense gradient is held."""
    return sum(weight.has_gradient for weight in sparsifier.weights)


def epoch(sparsifier: Sparsifier, model: Classifier, optimizer: torch.optim.Optimizer, seed: int = 0) -> None:
    """Three steps, the last of them with the gradients a method may want, then a rewiring."""
    train(model, optimizer, steps=2, seed=seed)
    optimizer.zero_grad()
    with sparsifier.dense_gradients():
        backward(model, seed + 2)
    optimizer.step()
    sparsifier.rewire()


@pytest.mark.slow
@pytest.mark.parametrize("optimizer_name", OPTIMIZERS)
@pytest.mark.parametrize("name", [name for name in REWIRING if not METHODS[name].prunes])
@settings(max_examples=8)
@given(
    sparsity=st.sampled_from([0.0, 0.3, 0.67, 0.95, 0.99]),
    rate=st.floats(0.05, 1.0),
    seed=st.integers(0, 1000),
)
def test_every_rewiring_method_keeps_its_number_of_weights(
    name: str, optimizer_name: str, sparsity: float, rate: float, seed: int
) -> None:
    model = Classifier(seed)
    sparsifier = Sparsifier(model, sparsity=sparsity, method=name, prune_rate=rate, rewirings=4, seed=seed)
    optimizer = OPTIMIZERS[optimizer_name](model.parameters())
    sparsifier.track(optimizer)
    count = sparsifier.active_weights
    for number in range(4):
        epoch(sparsifier, model, optimizer, seed + 10 * number)
        assert sparsifier.active_weights == count == sparsifier.target_weights
        assert all(weight.count >= 1 for weight in sparsifier.weights)
        assert_inside_masks(sparsifier)


@pytest.mark.parametrize(
    "name", [name for name in REWIRING if name not in ("dsr", "snfs") and not METHODS[name].prunes]
)
def test_only_dsr_and_snfs_move_weights_between_layers(name: str) -> None:
    model = Classifier()
    sparsifier = Sparsifier(model, sparsity=0.6, method=name, prune_rate=0.5, rewirings=4)
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    counts, by_layer = [weight.count for weight in sparsifier.weights], layer_counts(sparsifier)
    before = masks(sparsifier)
    epoch(sparsifier, model, optimizer)
    assert layer_counts(sparsifier) == by_layer
    assert ([weight.count for weight in sparsifier.weights] == counts) == (name != "selfish")
    assert any(not torch.equal(a, b) for a, b in zip(before, masks(sparsifier), strict=True))


@pytest.mark.parametrize("name", ["dsr", "snfs"])
def test_dsr_and_snfs_do(name: str) -> None:
    model = Classifier()
    sparsifier = Sparsifier(model, sparsity=0.6, method=name, prune_rate=0.5, rewirings=20)
    optimizer = OPTIMIZERS["momentum"](model.parameters())
    counts = [weight.count for weight in sparsifier.weights]
    for number in range(8):  # the threshold of DSR takes some rewirings to find its size
        epoch(sparsifier, model, optimizer, number)
    assert [weight.count for weight in sparsifier.weights] != counts


@pytest.mark.parametrize("optimizer_name", OPTIMIZERS)
@pytest.mark.parametrize("name", SPARSE_BACKWARD)
def test_methods_with_a_sparse_backward_never_touch_a_dense_gradient(name: str, optimizer_name: str) -> None:
    model = Classifier()
    sparsifier = Sparsifier(model, sparsity=0.6, method=name, prune_rate=0.5, rewirings=3)
    optimizer = OPTIMIZERS[optimizer_name](model.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        with sparsifier.dense_gradients():
            backward(model)
        assert collected(sparsifier) == 0
        for weight in sparsifier.weights:
            assert not weight.parameter.grad[weight.mask == 0].any()
        optimizer.step()
        for weight in sparsifier.weights:
            for value in optimizer.state.get(weight.parameter, {}).values():
                if torch.is_tensor(value) and value.shape == weight.mask.shape and value.is_floating_point():
                    assert not value[weight.mask == 0].any()
        sparsifier.rewire()


def test_rigl_collects_dense_gradients_only_where_asked() -> None:
    model = Classifier()
    sparsifier = Sparsifier(model, sparsity=0.6, method=RIGL, prune_rate=0.5, rewirings=3)
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    train(model, optimizer, steps=2)
    assert collected(sparsifier) == 0
    optimizer.zero_grad()
    with sparsifier.dense_gradients():
        backward(model)
    assert collected(sparsifier) == len(sparsifier.weights)
    for weight in sparsifier.weights:  # what the optimizer and the clipping see is sparse all the same
        assert not weight.parameter.grad[weight.mask == 0].any()
    optimizer.step()
    sparsifier.rewire()
    assert collected(sparsifier) == 0


def test_rigl_every_few_steps_collects_by_itself_at_those_steps() -> None:
    model = Classifier()
    sparsifier = Sparsifier(model, sparsity=0.6, method="rigl", prune_rate=0.5, rewirings=3, rewire_every=3)
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    for step in range(6):
        optimizer.zero_grad()
        backward(model, step)
        assert bool(collected(sparsifier)) == (step % 3 == 2)
        optimizer.step()
    assert sparsifier.rewirings_done == 2


def test_rigl_sums_the_gradients_of_sub_batches_and_grows_the_largest() -> None:
    model = Classifier()
    sparsifier = Sparsifier(
        model,
        sparsity=0.6,
        method="rigl",
        prune_rate=0.3,
        rewirings=3,
        schedule="constant",
        include=["rnn.weight_hh_l0"],
    )
    dense = Classifier()
    dense.load_state_dict(model.state_dict())
    for copy in (model, dense):
        with sparsifier.dense_gradients() if copy is model else torch.enable_grad():
            backward(copy, 0)
            backward(copy, 1)
    expected = dense.rnn.weight_hh_l0.grad.abs()
    (weight,) = sparsifier.weights
    before = weight.mask.clone()
    sparsifier.rewire()
    grown = (weight.mask == 1) & (before == 0)
    passed_over = (weight.mask == 0) & (before == 0)
    assert grown.any()
    assert expected[grown].min() >= expected[passed_over].max()


def test_growth_by_gradient_without_one_is_a_clear_error() -> None:
    model = Classifier()
    sparsifier = Sparsifier(model, sparsity=0.6, method="rigl", prune_rate=0.5, rewirings=3)
    train(model, OPTIMIZERS["sgd"](model.parameters()))
    with pytest.raises(RuntimeError, match=r"with sparsifier.dense_gradients\(\)"):
        sparsifier.rewire()


@pytest.mark.parametrize("optimizer_name", ["momentum", "adam"])
def test_snfs_keeps_the_momentum_of_weights_that_do_not_exist(optimizer_name: str) -> None:
    model = Classifier()
    sparsifier = Sparsifier(model, sparsity=0.6, method="snfs", prune_rate=0.5, rewirings=3)
    optimizer = OPTIMIZERS[optimizer_name](model.parameters())
    sparsifier.track(optimizer)
    train(model, optimizer)
    key = "momentum_buffer" if optimizer_name == "momentum" else "exp_avg"
    weight = sparsifier.weights[-1]
    kept = optimizer.state[weight.parameter][key].clone()
    assert kept[weight.mask == 0].any()
    sparsifier.rewire()
    assert torch.equal(optimizer.state[weight.parameter][key], kept)
    assert_inside_masks(sparsifier)


@pytest.mark.slow
@settings(max_examples=25)
@given(
    sparsity=st.sampled_from([0.0, 0.3, 0.67, 0.8, 0.9, 0.97]), rewirings=st.integers(1, 40), seed=st.integers(0, 99)
)
def test_gmp_follows_its_schedule_and_never_grows(sparsity: float, rewirings: int, seed: int) -> None:
    model = Classifier(seed)
    sparsifier = Sparsifier(model, sparsity=sparsity, method="gmp", rewirings=rewirings)
    optimizer = OPTIMIZERS["adam"](model.parameters())
    assert sparsifier.active_weights == sparsifier.total_weights
    for number in range(rewirings):
        before = masks(sparsifier)
        if number % 10 == 0:
            epoch(sparsifier, model, optimizer, number)
        else:
            sparsifier.rewire()
        progress = min((number + 1) / max(rewirings - 1, 1), 1.0)  # done before the last evaluation
        expected = (1 - gradual_sparsity(progress, sparsity)) * sparsifier.total_weights
        assert sparsifier.active_weights == sparsifier.target_weights
        assert abs(sparsifier.active_weights - expected) <= len(sparsifier.weights)  # each matrix rounds
        assert all(bool((new <= old).all()) for old, new in zip(before, masks(sparsifier), strict=True))
        assert_inside_masks(sparsifier)
    assert sparsifier.at_target
    assert sparsifier.active_weights == round((1 - sparsity) * sparsifier.total_weights)


@pytest.mark.parametrize("rewirings", range(2, 8))
def test_gmp_has_its_sparsity_at_the_last_evaluation_of_a_short_run(rewirings: int) -> None:
    """A run evaluates before the rewiring that ends an epoch, so the last rewiring comes too late."""
    model = Classifier()
    sparsifier = Sparsifier(model, sparsity=0.8, method="gmp", rewirings=rewirings)
    optimizer = OPTIMIZERS["adam"](model.parameters())
    assert not sparsifier.at_target
    for _ in range(rewirings - 1):
        epoch(sparsifier, model, optimizer)
    train(model, optimizer)
    assert sparsifier.at_target
    assert sparsifier.active_weights == round(0.2 * sparsifier.total_weights)
    sparsifier.rewire()
    assert sparsifier.active_weights == round(0.2 * sparsifier.total_weights)


def test_gmp_with_one_rewiring_has_its_sparsity_after_it() -> None:
    sparsifier = Sparsifier(Classifier(), sparsity=0.8, method="gmp", rewirings=1)
    assert sparsifier.active_weights == sparsifier.total_weights
    sparsifier.rewire()
    assert sparsifier.active_weights == round(0.2 * sparsifier.total_weights)


def test_gmp_is_settled_only_at_its_final_sparsity() -> None:
    model = Classifier()
    sparsifier = Sparsifier(model, sparsity=0.8, method="gmp", rewirings=10)
    settled = []
    for _ in range(10):
        settled.append(sparsifier.at_target)
        sparsifier.rewire()
    assert not any(settled[:7])
    assert settled[9]


@pytest.mark.parametrize("optimizer_name", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize(
    "method", [SNFS.replace(growth="random"), SELFISH.replace(redistribution="layers-by-momentum")]
)
def test_shares_by_momentum_need_no_growth_by_momentum(method: Method, optimizer_name: str) -> None:
    model = Classifier()
    sparsifier = Sparsifier(model, sparsity=0.6, method=method, prune_rate=0.5, rewirings=4)
    optimizer = OPTIMIZERS[optimizer_name](model.parameters())
    count = sparsifier.active_weights
    for number in range(3):
        epoch(sparsifier, model, optimizer, number)
        assert sparsifier.active_weights == count


def test_snfs_goes_by_whatever_momentum_there_is() -> None:
    """Adamax has no second moment; without its first one the first rows would fill up."""
    model = Classifier()
    sparsifier = Sparsifier(model, sparsity=0.6, method="snfs", prune_rate=0.5, rewirings=4)
    optimizer = torch.optim.Adamax(model.parameters(), lr=0.01)
    sparsifier.track(optimizer)
    epoch(sparsifier, model, optimizer)
    weight = next(weight for weight in sparsifier.weights if weight.name == "rnn.weight_hh_l0")
    assert max(weight.topology.gate_densities().values()) < 0.8


def test_snfs_before_any_step_is_a_clear_error() -> None:
    model = Classifier()
    sparsifier = Sparsifier(model, sparsity=0.6, method="snfs", prune_rate=0.5, rewirings=4)
    optimizer = OPTIMIZERS["adam"](model.parameters())
    sparsifier.track(optimizer)
    with pytest.raises(RuntimeError, match="has made no step yet"):
        sparsifier.rewire()


def test_rewired_tells_the_fraction_that_went() -> None:
    model = Classifier()
    sparsifier = Sparsifier(model, sparsity=0.6, prune_rate=0.5, rewirings=2)
    sparsifier.rewire()
    assert sparsifier.last_rewired_fraction == pytest.approx(0.25, abs=0.01)
    sparsifier.rewire()
    assert sparsifier.last_rewired_fraction == 0


def test_two_optimizers_count_an_iteration_once() -> None:
    model = Classifier()
    sparsifier = Sparsifier(model, sparsity=0.6, prune_rate=0.5, rewirings=4, rewire_every=2)
    first = torch.optim.SGD(model.rnn.parameters(), lr=0.1)
    second = torch.optim.SGD([*model.embedding.parameters(), *model.decoder.parameters()], lr=0.1)
    for step in range(4):
        backward(model, step)
        first.step()
        second.step()
        assert sparsifier.rewirings_done == (step + 1) // 2


def test_dense_leaves_the_network_alone() -> None:
    model, untouched = Classifier(), Classifier()
    sparsifier = Sparsifier(model, sparsity=0.8, method="dense")
    for copy in (model, untouched):
        train(copy, OPTIMIZERS["adam"](copy.parameters()))
    sparsifier.rewire()
    for mine, theirs in zip(model.parameters(), untouched.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_the_state_of_a_method_is_saved() -> None:
    """DSR's threshold decides its next removal, so the same future needs it."""
    futures = []
    for saved in (False, True):
        model = Classifier()
        sparsifier = Sparsifier(model, sparsity=0.6, method="dsr", prune_rate=0.5, rewirings=8)
        optimizer = OPTIMIZERS["sgd"](model.parameters())
        for number in range(4):
            epoch(sparsifier, model, optimizer, number)
        if saved:
            state, weights = sparsifier.state_dict(), {k: v.clone() for k, v in model.state_dict().items()}
            model = Classifier(seed=9)
            sparsifier = Sparsifier(model, sparsity=0.6, method="dsr", prune_rate=0.5, rewirings=8, seed=9)
            sparsifier.load_state_dict(state)
            model.load_state_dict(weights)
            optimizer = OPTIMIZERS["sgd"](model.parameters())
        for number in range(4, 8):
            epoch(sparsifier, model, optimizer, number)
        futures.append(masks(sparsifier))
    assert all(torch.equal(a, b) for a, b in zip(*futures, strict=True))


def test_the_state_of_a_method_is_json_and_not_of_another_method() -> None:
    state = Sparsifier(Classifier(), sparsity=0.6, method="dsr", rewirings=8).state_dict()
    assert json.loads(json.dumps(state["parts"])) == state["parts"] == {"removal": 1e-3}
    with pytest.raises(ValueError, match="by a different method than 'selfish'"):
        Sparsifier(Classifier(), sparsity=0.6, rewirings=8).load_state_dict(state)


def test_snfs_has_dense_gradients_from_the_first_step() -> None:
    """The optimizer is not known before its first step, and its momentum starts with that step's gradient."""
    model = Classifier()
    sparsifier = Sparsifier(model, sparsity=0.6, method="snfs", prune_rate=0.5, rewirings=3)
    optimizer = OPTIMIZERS["momentum"](model.parameters())
    train(model, optimizer, steps=1)
    weight = sparsifier.weights[-1]
    assert optimizer.state[weight.parameter]["momentum_buffer"][weight.mask == 0].any()
    assert_inside_masks(sparsifier)


def test_rewiring_by_itself_and_by_hand_do_not_mix() -> None:
    sparsifier = Sparsifier(Classifier(), sparsity=0.6, rewirings=3, rewire_every=2)
    with pytest.raises(RuntimeError, match="happens by itself every 2 steps"):
        sparsifier.rewire()
