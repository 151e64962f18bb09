"""Layers on real networks: both engines, frozen and excluded matrices, saving and continuing."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from sparse_cases import Classifier, layer_counts, train
from torch import Tensor, nn

from reference import equal_shares, sorted_removal
from selfish_rnn import SELFISH, SNTASGD, Method, Sparsifier, engine
from selfish_rnn.engine import unpack
from selfish_rnn.models import MODELS
from selfish_rnn.sparsifier.selection import layer_weights

ENGINES = ["masked", pytest.param("packed", marks=pytest.mark.skipif(not engine.available(), reason="needs kernels"))]


def bound(engine_name: str, method: Method | str = "selfish", seed: int = 1) -> tuple[nn.Module, Sparsifier]:
    model: nn.Module = Classifier()
    sparsifier = Sparsifier(model, sparsity=0.6, method=method, prune_rate=0.7, rewirings=8, seed=seed)
    return (engine.pack(model, strict=True) if engine_name == "packed" else model), sparsifier


def dense_weights(sparsifier: Sparsifier, names: list[str]) -> list[Tensor]:
    weights = []
    for name in names:
        existing = next(weight for weight in sparsifier.weights if weight.name == name).existing()
        dense = torch.zeros(existing.topology.size)
        dense[existing.topology.positions] = existing.values.detach()
        weights.append(dense.view(existing.topology.shape))
    return weights


@pytest.mark.parametrize("engine_name", ENGINES)
@pytest.mark.parametrize("optimizer_name", ["sgd", "adam", "snt-asgd"])
def test_every_rewiring_is_that_of_the_plain_loop(engine_name: str, optimizer_name: str) -> None:
    model, sparsifier = bound(engine_name)
    optimizer = {
        "sgd": lambda: torch.optim.SGD(model.parameters(), lr=0.5),
        "adam": lambda: torch.optim.Adam(model.parameters(), lr=0.01),
        "snt-asgd": lambda: SNTASGD(model.parameters(), lr=0.5),
    }[optimizer_name]()
    budget = layer_counts(sparsifier)
    for number in range(4):
        train(model, optimizer, seed=number)
        before, rate = sparsifier.masks(), sparsifier.prune_rate
        layers = [[f"rnn.weight_{side}_l{layer}" for side in ("ih", "hh")] for layer in range(2)]
        kept = [sorted_removal([before[n] for n in names], dense_weights(sparsifier, names), rate) for names in layers]
        sparsifier.rewire()
        after = sparsifier.masks()
        assert layer_counts(sparsifier) == budget
        for names, masks in zip(layers, kept, strict=True):
            assert all(bool((after[name] & mask).equal(mask)) for name, mask in zip(names, masks, strict=True))
            gates = [gate for mask in masks for gate in mask.chunk(4)]
            grown = [gate for name, mask in zip(names, masks, strict=True) for gate in (after[name] ^ mask).chunk(4)]
            freed = sum(int(before[name].sum()) for name in names) - sum(int(mask.sum()) for mask in masks)
            shares = equal_shares(freed, [5] * 8, [int((~gate).sum()) for gate in gates])
            assert all(abs(int(new.sum()) - share) < 1 for new, share in zip(grown, shares, strict=True))
    assert len({weight.count for weight in sparsifier.weights if "l1" in weight.name}) == 2


@pytest.mark.skipif(not engine.available(), reason="needs kernels")
@pytest.mark.parametrize("redistribution", ["gates-equal", "gates-by-magnitude", "gates-by-gradient", "matrix", "gate"])
@pytest.mark.parametrize("growth", ["random", "gradient"])
def test_both_engines_have_one_topology(redistribution: str, growth: str) -> None:
    method = SELFISH.replace(redistribution=redistribution, growth=growth)
    outcomes = []
    for name in ("masked", "packed"):
        model, sparsifier = bound(name, method)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for number in range(4):
            with sparsifier.dense_gradients():
                train(model, optimizer, seed=number)
            sparsifier.rewire()
        outcomes.append(sparsifier.masks())
        if name == "packed":
            weights = unpack(copy.deepcopy(model)).state_dict()
            assert all(not weights[name][~mask].any() for name, mask in sparsifier.masks().items())
    assert all(torch.equal(mask, outcomes[1][name]) for name, mask in outcomes[0].items())


@pytest.mark.parametrize("engine_name", ENGINES)
def test_a_run_continues_from_its_state_to_the_same_bits(engine_name: str) -> None:
    """The packed matrices have other numbers of values by then than a new model starts with."""
    futures = []
    for saved in (False, True):
        model, sparsifier = bound(engine_name)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
        for number in range(3):
            train(model, optimizer, seed=number)
            sparsifier.rewire()
        if saved:
            file = io.BytesIO()
            torch.save([each.state_dict() for each in (model, sparsifier, optimizer)], file)
            file.seek(0)
            states = torch.load(file, weights_only=False)
            model, sparsifier = bound(engine_name, seed=5)
            sparsifier.load_state_dict(states[1])
            model.load_state_dict(states[0])
            optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
            optimizer.load_state_dict(states[2])
        for number in range(3, 6):
            train(model, optimizer, seed=number)
            sparsifier.rewire()
        futures.append((sparsifier.masks(), [parameter.detach().clone() for parameter in model.parameters()]))
    assert all(torch.equal(mask, futures[1][0][name]) for name, mask in futures[0][0].items())
    assert all(map(torch.equal, futures[0][1], futures[1][1]))


def counts(sparsifier: Sparsifier) -> dict[str, int]:
    return {weight.name: weight.count for weight in sparsifier.weights}


def test_a_frozen_matrix_stays_and_the_rest_of_its_layer_is_rewired() -> None:
    model, sparsifier = bound("masked")
    model.rnn.weight_ih_l0.requires_grad_(False)  # type: ignore[union-attr]
    before, masks = counts(sparsifier), sparsifier.masks()
    sparsifier.rewire()
    assert torch.equal(sparsifier.masks()["rnn.weight_ih_l0"], masks["rnn.weight_ih_l0"])
    assert not torch.equal(sparsifier.masks()["rnn.weight_hh_l0"], masks["rnn.weight_hh_l0"])
    after = counts(sparsifier)
    assert {name for name in after if after[name] != before[name]} <= {"rnn.weight_ih_l1", "rnn.weight_hh_l1"}


def test_an_excluded_matrix_leaves_a_layer_of_the_others() -> None:
    model = Classifier()
    sparsifier = Sparsifier(model, sparsity=0.6, prune_rate=0.7, rewirings=8, exclude="rnn.weight_ih_*", seed=1)
    before = counts(sparsifier)
    sparsifier.rewire()
    assert counts(sparsifier) == before


def test_directions_and_projections_have_budgets_of_their_own() -> None:
    model = nn.LSTM(4, 8, proj_size=3, bidirectional=True)
    sparsifier = Sparsifier(model, sparsity=0.6, prune_rate=0.7, rewirings=8, seed=1)
    with torch.no_grad():
        model.weight_ih_l0.mul_(9)
        model.weight_hh_l0_reverse.mul_(9)
    before = counts(sparsifier)
    sparsifier.rewire()
    after = counts(sparsifier)
    for suffix in ("l0", "l0_reverse"):
        pair = [f"weight_{side}_{suffix}" for side in ("ih", "hh")]
        assert sum(before[name] for name in pair) == sum(after[name] for name in pair)
        assert after[f"weight_hr_{suffix}"] == before[f"weight_hr_{suffix}"]
    assert after["weight_ih_l0"] > before["weight_ih_l0"]
    assert after["weight_ih_l0_reverse"] < before["weight_ih_l0_reverse"]


def test_a_module_in_two_places_is_one_layer() -> None:
    cell = nn.LSTMCell(6, 6)
    model = nn.ModuleList([cell, cell])
    sparsifier = Sparsifier(model, sparsity=0.6, prune_rate=0.7, rewirings=8, seed=1)
    total = sparsifier.active_weights
    sparsifier.rewire()
    assert (len(sparsifier.weights), sparsifier.active_weights) == (2, total)


SMALL: dict[str, dict[str, int]] = {
    "stacked-lstm": {"embedding": 6, "hidden": 8},
    "stacked-gru": {"embedding": 6, "hidden": 8},
    "stacked-rnn": {"embedding": 6, "hidden": 8},
    "rhn": {"hidden": 8, "depth": 3},
    "on-lstm": {"embedding": 6, "hidden": 8, "chunk": 2},
    "awd-lstm-mos": {"embedding": 6, "hidden": 8, "hidden_last": 7, "experts": 3},
}


@pytest.mark.parametrize("name", MODELS)
def test_the_models_keep_the_budget_of_every_layer_in_both_engines(name: str) -> None:
    topologies = []
    for packed in (False, True) if engine.available() else (False,):
        torch.manual_seed(0)
        model: nn.Module = MODELS[name](13, **SMALL[name])
        groups = [set(weights) for weights in layer_weights(model)]
        sparsifier = Sparsifier(model, sparsity=0.6, prune_rate=0.7, rewirings=8, seed=1)
        layers = [[w.name for w in sparsifier.weights if id(w.parameter) in group] for group in groups]
        before = counts(sparsifier)
        if packed:
            model = engine.pack(model, strict=True)
        for _ in range(3):
            sparsifier.rewire()
        after = counts(sparsifier)
        for layer in layers:
            assert sum(after[each] for each in layer) == sum(before[each] for each in layer)
        assert any(after[each] != before[each] for each in after)
        topologies.append(sparsifier.masks())
    assert all(torch.equal(mask, topologies[-1][each]) for each, mask in topologies[0].items())
