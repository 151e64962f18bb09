"""Models that have a topology already, and states that are loaded in any order."""

from __future__ import annotations

import copy
import itertools
import pickle

import pytest
import torch
from sparse_cases import Classifier, assert_inside_masks, masks, same, sgd, train
from torch import Tensor, nn
from torch.nn.utils import prune

from selfish_rnn import Sparsifier, engine

SETTINGS = {"sparsity": 0.9, "prune_rate": 0.5, "rewirings": 8}


def trained(seed: int = 0) -> tuple[Classifier, Sparsifier, torch.optim.Adam]:
    model = Classifier(seed)
    sparsifier = Sparsifier(model, seed=seed, **SETTINGS)
    optimizer = torch.optim.Adam(model.parameters())
    train(model, optimizer)
    sparsifier.rewire()
    train(model, optimizer)
    return model, sparsifier, optimizer


def values(model: nn.Module) -> list[Tensor]:
    return [value.clone() for value in model.state_dict().values()]


def test_the_weights_that_are_not_zero_may_be_the_topology() -> None:
    model, first, _ = trained()
    first.detach()
    before = values(model)
    sparsifier = Sparsifier(model, topology="nonzero", rewirings=4)
    assert same(values(model), before)
    count = sparsifier.active_weights
    assert count == sum(int(weight.parameter.count_nonzero()) for weight in sparsifier.weights)
    assert sparsifier.sparsity == 1 - count / sparsifier.total_weights
    optimizer = sgd(model)
    for _ in range(3):
        train(model, optimizer)
        sparsifier.rewire()
        assert sparsifier.active_weights == sparsifier.target_weights == count
        assert_inside_masks(sparsifier)


def test_masks_may_be_the_topology() -> None:
    _, first, _ = trained()
    given = {name: mask for name, mask in first.masks().items() if not name.startswith("embedding")}
    model = Classifier(seed=1)
    sparsifier = Sparsifier(model, masks=given, rewirings=4)
    assert sparsifier.masks().keys() == given.keys()
    assert same(list(sparsifier.masks().values()), list(given.values()))
    assert sparsifier.densities() == {name: float(mask.double().mean()) for name, mask in given.items()}
    assert model.embedding.weight.all()
    assert_inside_masks(sparsifier)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, r'sparsity= is needed, or topology="nonzero" or masks='),
        ({"topology": "zero"}, "topology is"),
        ({"topology": "nonzero", "masks": {}}, "leave one of them out"),
        ({"topology": "nonzero", "method": "gmp"}, "starts with a dense network"),
        ({"topology": "nonzero", "sparsity": 0.5}, "the existing topology has sparsity 0, not 0.5"),
        ({"masks": {"weight": torch.ones(2, 2)}}, r"mask of weight is of shape \(2, 2\), the weight of shape \(3, 4\)"),
        ({"masks": {"weight": torch.zeros(3, 4)}}, "no weight of weight exists"),
        ({"masks": {"w*": torch.ones(3, 4)}}, "masks= has the names of weights, such as weight"),
        ({"masks": {"wait": torch.ones(3, 4)}}, "no weight matrix of the model matches wait; there are weight"),
    ],
)
def test_topologies_that_cannot_be_are_refused(settings: dict[str, object], message: str) -> None:
    model = nn.Linear(4, 3)
    with pytest.raises(ValueError, match=message):
        Sparsifier(model, **{"rewirings": 3, **settings})  # type: ignore[arg-type]
    assert model.weight.all()


def test_what_torch_pruned_is_refused_until_it_is_permanent() -> None:
    model = Classifier()
    prune.l1_unstructured(model.decoder, "weight", 0.8)
    with pytest.raises(ValueError, match=r"decoder\.weight is pruned by .* prune\.remove\(module, 'weight'\) first"):
        Sparsifier(model, sparsity=0.5, rewirings=3)
    prune.remove(model.decoder, "weight")
    sparsifier = Sparsifier(model, topology="nonzero", rewirings=3)
    assert sparsifier.densities()["decoder.weight"] == 0.2


def test_binding_a_sparse_model_without_saying_so_warns() -> None:
    model, first, _ = trained()
    first.detach()
    with pytest.warns(UserWarning, match=r"sparse already.* bind it with topology=\"nonzero\"") as caught:
        Sparsifier(model, **SETTINGS)
    assert caught[0].filename == __file__


@pytest.mark.filterwarnings("error")
def test_a_layer_that_begins_at_zero_is_no_sparse_model() -> None:
    model = Classifier()
    nn.init.zeros_(model.decoder.weight)
    Sparsifier(model, **SETTINGS)


# Loading


@pytest.mark.parametrize("order", [*itertools.permutations(["model", "sparsifier", "optimizer"])], ids="-".join)
@pytest.mark.parametrize("packed", [False, True])
def test_state_is_loaded_in_any_order(order: tuple[str, ...], packed: bool) -> None:
    if packed and not engine.available():
        pytest.skip("the kernels are not built")

    def make(seed: int) -> dict[str, object]:
        model = Classifier(seed)
        sparsifier = Sparsifier(model, seed=seed, **SETTINGS)
        if packed:
            engine.pack(model)
        return {"model": model, "sparsifier": sparsifier, "optimizer": torch.optim.Adam(model.parameters())}

    def go_on(parts: dict[str, object]) -> list[Tensor]:
        for seed in range(3):
            train(parts["model"], parts["optimizer"], seed=seed)  # type: ignore[arg-type]
            parts["sparsifier"].rewire()  # type: ignore[attr-defined]
        return values(parts["model"])  # type: ignore[arg-type]

    first, twin = make(0), make(5)
    go_on(first)
    for name in order:
        twin[name].load_state_dict(copy.deepcopy(first[name].state_dict()))  # type: ignore[attr-defined]
    assert same(go_on(first), go_on(twin))


@pytest.mark.filterwarnings("ignore:only .* weights are not zero:UserWarning")
def test_a_model_loaded_before_binding_finds_its_topology_after() -> None:
    model, first, _ = trained()
    twin = Classifier(seed=3)
    twin.load_state_dict(model.state_dict())
    second = Sparsifier(twin, seed=9, **SETTINGS)
    second.load_state_dict(first.state_dict())
    assert same(values(twin), values(model))
    assert_inside_masks(second)


def test_a_sparse_model_bound_as_it_is_takes_its_saved_state() -> None:
    """A weight that has just grown is zero, and not found among the non-zeros; the saved topology has it."""
    model, first, _ = trained()
    first.rewire()
    twin = Classifier(seed=3)
    twin.load_state_dict(model.state_dict())
    second = Sparsifier(twin, topology="nonzero", rewirings=8)
    assert second.active_weights < first.active_weights
    second.load_state_dict(first.state_dict())
    assert same(masks(first), masks(second))
    assert second.target_weights == first.target_weights
    second.rewire()
    assert second.active_weights == first.active_weights


def test_weights_of_exactly_zero_are_counted_where_the_sparsity_says_how_many_there_were() -> None:
    for rate, zeros in ((0.01, 10), (0.2, 200)):
        model = nn.Linear(100, 20)
        first = Sparsifier(model, sparsity=0.5, prune_rate=rate, schedule="constant", rewirings=4)
        first.rewire()  # the weights that have just grown are zero
        first.detach()
        message = rf"{1000 - zeros} weights, {zeros} fewer than sparsity=0\.5 gives: .* exactly zero"
        if zeros < 0.01 * 2000:
            with pytest.warns(UserWarning, match=message):
                second = Sparsifier(model, sparsity=0.5, topology="nonzero", rewirings=4)
        else:
            with pytest.raises(ValueError, match=rf"has sparsity 0\.6, not 0\.5: .*{message}"):
                Sparsifier(model, sparsity=0.5, topology="nonzero", rewirings=4)
            second = Sparsifier(model, topology="nonzero", rewirings=4)
        second.load_state_dict(first.state_dict())
        assert second.active_weights == first.active_weights


@pytest.mark.parametrize("by", ["step", "rewiring"])
def test_weights_loaded_outside_the_topology_are_refused(by: str) -> None:
    """They would be set to zero without a word."""
    model = Classifier()
    sparsifier = Sparsifier(model, sparsity=0.6, rewirings=3)
    dense = Classifier(seed=1).state_dict()
    model.load_state_dict(dense)
    message = r"weights of embedding\.weight were loaded that do not lie in .* load the sparsifier's state_dict too"
    with pytest.raises(RuntimeError, match=message):
        train(model, sgd(model)) if by == "step" else sparsifier.rewire()
    sparsifier.detach()
    train(model, sgd(model))


# Copies


def test_a_module_that_holds_its_sparsifier_is_copied_and_pickled_without_it() -> None:
    model = Classifier()
    model.sparsifier = Sparsifier(model, **SETTINGS)  # type: ignore[assignment]
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert twin.sparsifier is None
        assert same(values(twin), values(model))
        train(twin, sgd(twin))
    assert copy.copy(model).sparsifier is model.sparsifier


@pytest.mark.parametrize("packed", [False, True])
def test_gradients_that_wait_for_a_rewiring_are_saved(packed: bool) -> None:
    if packed and not engine.available():
        pytest.skip("needs the packed engine")

    def make() -> tuple[nn.Module, Sparsifier]:
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 2))
        sparsifier = Sparsifier(model, sparsity=0.6, method="rigl", rewirings=4)
        if packed:
            engine.pack(model)
        return model, sparsifier

    model, sparsifier = make()
    with sparsifier.dense_gradients():
        model(torch.randn(5, 6)).square().sum().backward()
    saved, weights = sparsifier.state_dict(), copy.deepcopy(model.state_dict())
    fresh, other = make()
    fresh.load_state_dict(weights)
    other.load_state_dict(saved)
    for each in (sparsifier, other):
        each.rewire()
    assert {name: mask.tolist() for name, mask in sparsifier.masks().items()} == {
        name: mask.tolist() for name, mask in other.masks().items()
    }
