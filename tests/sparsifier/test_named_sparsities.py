"""Sparsities by names of weights and gates, and allocations of the user's choice."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sparse_cases import Classifier, assert_inside_masks, backward, train
from torch import nn

from selfish_rnn import METHODS, Allocation, Sparsifier, deferred_init, engine

NAMES = ("embedding.weight", "rnn.weight_ih_l0", "rnn.weight_hh_l0", "rnn.weight_ih_l1", "rnn.weight_hh_l1", "decoder")
MOVING = ("dsr", "snfs", "granet")
"""Methods that move weights between matrices."""

GRU_SPARSITIES = {
    "weight_hh_l0": {"reset": 0.7, "update": 0.8, "candidate": 0.5},
    "weight_ih_l0": 0.25,
}

needs_kernels = pytest.mark.skipif(not engine.available(), reason="the kernels are not built")


def counts(sparsifier: Sparsifier) -> dict[str, int]:
    return {weight.name: weight.count for weight in sparsifier.weights}


def by_layer(weights: dict[str, int]) -> list[int]:
    layers = ("embedding.weight",), NAMES[1:3], NAMES[3:5], ("decoder.weight",)
    return [sum(weights[name] for name in names) for names in layers]


def epoch(sparsifier: Sparsifier, model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    optimizer.zero_grad()
    with sparsifier.dense_gradients():
        backward(model, seed)
    optimizer.step()
    sparsifier.rewire()


@pytest.mark.slow
@settings(max_examples=30)
@given(
    method=st.sampled_from(sorted(METHODS)),
    sparsities=st.lists(st.sampled_from([0, 0.0, 0.1, 0.5, 0.9, 0.999]), min_size=len(NAMES), max_size=len(NAMES)),
    rewirings=st.integers(1, 4),
    seed=st.integers(0, 99),
)
def test_every_method_keeps_exactly_the_budgets(
    method: str, sparsities: list[float], rewirings: int, seed: int
) -> None:
    model = Classifier(seed)
    by_name = dict(zip(NAMES, sparsities, strict=True))
    sparsifier = Sparsifier(model, sparsity=by_name, method=method, rewirings=rewirings, seed=seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    expected = {
        weight.name: max(round((1 - sparsity) * weight.size), 1)
        for weight, sparsity in zip(sparsifier.weights, sparsities, strict=True)
    }
    start = (
        {weight.name: weight.size for weight in sparsifier.weights} if METHODS[method].allocation.dense else expected
    )
    if METHODS[method].pruning is None or METHODS[method].allocation.dense:
        assert counts(sparsifier) == start
    for number in range(rewirings):
        epoch(sparsifier, model, optimizer, number)
        assert sparsifier.active_weights == sparsifier.target_weights
        assert_inside_masks(sparsifier)
        for weight in sparsifier.weights:
            if expected[weight.name] == weight.size:
                assert weight.count == weight.size
    if method in MOVING:
        assert sparsifier.active_weights == sum(expected.values())
    elif METHODS[method].pool.layer:
        assert by_layer(counts(sparsifier)) == by_layer(expected)
    elif method != "dense":
        assert counts(sparsifier) == expected
        assert sparsifier.sparsity == 1 - sum(expected.values()) / sparsifier.total_weights


@pytest.mark.parametrize("method", ["selfish", "dsr", "snfs", "rigl"])
def test_a_matrix_of_sparsity_0_is_never_rewired(method: str) -> None:
    """A full matrix would lose its smallest weights and grow them again at zero."""
    model, dense = Classifier(), Classifier()
    sparsifier = Sparsifier(model, sparsity={"*": 0.8, "decoder": 0}, method=method, rewirings=4)
    assert torch.equal(model.decoder.weight, dense.decoder.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for seed in range(3):
        train(model, optimizer, steps=1, seed=seed)
        before = model.decoder.weight.detach().clone()
        memory = optimizer.state[model.decoder.weight]["momentum_buffer"].clone()
        with sparsifier.dense_gradients():
            backward(model, seed)
        sparsifier.rewire()
        assert torch.equal(model.decoder.weight, before)
        assert torch.equal(optimizer.state[model.decoder.weight]["momentum_buffer"], memory)
    assert sparsifier.densities()["decoder.weight"] == 1
    assert "decoder.weight    10 x 5       50  100.0 %" in sparsifier.summary()


def test_gates_have_sparsities_of_their_own() -> None:
    model = nn.GRU(8, 20)
    sparsifier = Sparsifier(model, sparsity=GRU_SPARSITIES, method="static", rescale=True, seed=1)
    gates = sparsifier.weights[1].topology.gate_densities()
    assert gates == {"reset": 0.3, "update": 0.2, "candidate": 0.5}
    assert sparsifier.densities() == {"weight_ih_l0": 0.75, "weight_hh_l0": 400 / 1200}
    assert sparsifier.active_weights == 760
    torch.manual_seed(3)
    model, dense = nn.GRU(8, 20), None
    dense = copy.deepcopy(model)
    sparsifier = Sparsifier(model, sparsity=GRU_SPARSITIES, method="static", rescale=True, seed=1)
    mask = sparsifier.masks()["weight_hh_l0"]
    for gate, density in enumerate((0.3, 0.2, 0.5)):
        rows = slice(20 * gate, 20 * gate + 20)
        scaled = dense.weight_hh_l0[rows] * mask[rows] / density**0.5
        torch.testing.assert_close(model.weight_hh_l0[rows], scaled)


def test_gate_sparsities_start_a_deferred_model_too() -> None:
    torch.manual_seed(3)
    dense = nn.GRU(8, 20)
    torch.manual_seed(3)
    with deferred_init():
        deferred = nn.GRU(8, 20)
    topologies = [
        Sparsifier(model, sparsity=GRU_SPARSITIES, method="static", rescale=True, seed=1).weights
        for model in (dense, deferred)
    ]
    for mine, theirs in zip(*topologies, strict=True):
        positions = mine.topology.positions
        assert torch.equal(positions, theirs.topology.positions)
        torch.testing.assert_close(theirs.start(), mine.parameter.detach().flatten()[positions])  # type: ignore[attr-defined]


@needs_kernels
@pytest.mark.parametrize("method", ["selfish", "dsr", "rigl", "gmp"])
def test_packed_weights_keep_the_budgets_of_the_masked(method: str) -> None:
    results = []
    for packed in (False, True):
        model = Classifier()
        sparsities = {"*": 0.7, "rnn": 0.9, "decoder": 0}
        sparsifier = Sparsifier(model, sparsity=sparsities, method=method, rewirings=3, seed=4)
        if packed:
            engine.pack(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for seed in range(3):
            epoch(sparsifier, model, optimizer, seed)
        results.append(counts(sparsifier))
        assert sparsifier.active_weights == sparsifier.target_weights
    assert results[0] == results[1]
    assert results[0]["decoder.weight"] == 50


@pytest.mark.parametrize("method", ["selfish", "snfs", "gmp"])
def test_a_saved_run_continues(method: str) -> None:
    settings = {"sparsity": {"*": 0.7, "embedding": 0.5, "decoder": 0}, "method": method, "rewirings": 4}

    def make(seed: int) -> tuple[Classifier, Sparsifier, torch.optim.Optimizer]:
        model = Classifier(seed)
        sparsifier = Sparsifier(model, seed=seed, **settings)
        return model, sparsifier, torch.optim.Adam(model.parameters())

    first, twin = make(0), make(7)
    epoch(first[1], first[0], first[2], 0)
    for mine, theirs in zip(first, twin, strict=True):
        theirs.load_state_dict(copy.deepcopy(mine.state_dict()))
    for model, sparsifier, optimizer in (first, twin):
        for seed in range(1, 4):
            epoch(sparsifier, model, optimizer, seed)
    for mine, theirs in zip(first[0].parameters(), twin[0].parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_a_state_in_which_a_dense_matrix_is_sparse_is_refused() -> None:
    saved = Sparsifier(Classifier(), sparsity=0.5, rewirings=4).state_dict()
    sparsifier = Sparsifier(Classifier(), sparsity={"*": 0.5, "decoder": 0}, rewirings=4)
    with pytest.raises(
        ValueError, match=r"sparsity= leaves decoder\.weight dense, and in the saved topology it is sparse"
    ):
        sparsifier.load_state_dict(saved)


def test_a_tied_weight_is_known_under_each_of_its_names() -> None:
    model = Classifier()
    model.rnn = nn.LSTM(6, 6)
    model.decoder = nn.Linear(6, 10)
    model.decoder.weight = model.embedding.weight
    assert (
        Sparsifier(model, sparsity={"rnn": 0.9, "decoder": 0.5}, method="static").densities()["embedding.weight"] == 0.5
    )


MAPPINGS = pytest.mark.parametrize(
    ("sparsity", "message"),
    [
        ({"rnm": 0.9}, r"'rnm', which matches no sparse weight of the model \(did you mean 'rnn'\?\); there are emb"),
        ({"rnn": 0.9}, r"no pattern for embedding\.weight: add one"),
        ({"rnn": 0.9, "*": 0.5}, r"of 'rnn' applies to no weight, because later patterns match all of its weights"),
        ({"*": 1}, r"the sparsity of '\*' is the fraction of zeros, .* got 1"),
        ({"*": -0.1}, "from 0 up to"),
        ({"*": {"input": 0.5}}, r"embedding\.weight has no gates: give it one sparsity"),
        ({"*": 0.5, "rnn": {"input": 0.5}}, r"the gates of rnn\.weight_ih_l0, which are .*; 'forget' is missing"),
        ({"*": 0.5, "rnn": dict.fromkeys(("new", "forget"), 0.5)}, "'new' is no gate of it"),
        (
            {"*": 0.5, "rnn": dict.fromkeys(("input", "forget", "candidate", "output"), 2)},
            r"'rnn', gate 'input', is the",
        ),
    ],
)


@MAPPINGS
def test_a_wrong_mapping_is_refused_before_anything_is_touched(sparsity: object, message: str) -> None:
    model = Classifier()
    with pytest.raises(ValueError, match=message):
        Sparsifier(model, sparsity=sparsity, rewirings=4)  # type: ignore[arg-type]
    assert all(parameter.all() for parameter in model.parameters())


@pytest.mark.parametrize("sparsity", ["0.9", [0.9], {"*": "0.9"}, {"*": None}, {nn.LSTM: 0.9}, True])
def test_a_sparsity_of_another_type_is_named(sparsity: object) -> None:
    with pytest.raises(TypeError, match=r"must be a number|takes patterns of names"):
        Sparsifier(Classifier(), sparsity=sparsity, rewirings=4)  # type: ignore[arg-type]


def test_what_cannot_be_divided_is_refused() -> None:
    masks = Sparsifier(Classifier(), sparsity=0.5, method="static").masks()
    for arguments, message in (
        ({"sparsity": {"*": 0.5}, "allocation": "er"}, "and so does allocation="),
        ({"sparsity": {"*": 0.5}, "masks": masks}, "mapping for sparsity= divides"),
        ({"sparsity": {"*": 0.5}, "topology": "nonzero"}, "mapping for sparsity= divides"),
        ({"allocation": "er", "topology": "nonzero"}, "allocation= divides"),
        (
            {"sparsity": 0.5, "allocation": "er", "method": "gmp"},
            "'gmp' starts with every weight and divides no budget",
        ),
        (
            {"sparsity": 0.5, "allocation": "er", "method": "dense"},
            "'dense' starts with every weight and divides no budget",
        ),
        ({"sparsity": 0.5, "allocation": "dense"}, "'dense' starts with every weight, whatever the sparsity"),
        ({"sparsity": 0.5, "allocation": "ef"}, r"unknown allocation 'ef' \(did you mean 'er'\?\)"),
    ):
        with pytest.raises(ValueError, match=message):
            Sparsifier(Classifier(), rewirings=4, **arguments)  # type: ignore[arg-type]


@needs_kernels
def test_packed_weights_have_their_topology_already() -> None:
    model = nn.ModuleDict({"rnn": engine.PackedGRU(8, 8, sparsity=0.9), "out": engine.PackedLinear(8, 4, sparsity=0.5)})
    for arguments in ({"sparsity": {"rnn": 0.9, "out": 0.5}}, {"allocation": "er"}):
        with pytest.raises(ValueError, match="divides the weights over matrices without a topology"):
            Sparsifier(model, rewirings=4, **arguments)  # type: ignore[arg-type]


# Allocation


@pytest.mark.parametrize(
    "method", [name for name in METHODS if not (METHODS[name].allocation.dense or METHODS[name].prunes)]
)
def test_an_allocation_replaces_that_of_the_method(method: str) -> None:
    own = Allocation("last takes all", lambda shapes, density: [1] * (len(shapes) - 1) + [40])
    for allocation in ("uniform", "er", own):
        model = Classifier()
        sparsifier = Sparsifier(model, sparsity=0.6, method=method, allocation=allocation, rewirings=3)
        part = sparsifier.method.allocation
        assert sparsifier.method.name == method
        assert list(counts(sparsifier).values()) == part.counts([weight.shape for weight in sparsifier.weights], 0.4)
        assert part is own or part.name == allocation
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        before = sparsifier.active_weights
        epoch(sparsifier, model, optimizer, 0)
        assert sparsifier.active_weights == before == sparsifier.target_weights
