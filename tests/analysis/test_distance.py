"""The distance between topologies: what must hold of any, and of networks with their units in another order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from network_cases import reorder, sparse_model, sparse_tagger, sparsifier_of, tokens
from torch import nn

from selfish_rnn import Sparsifier, pack, register_cell, topology_distance
from selfish_rnn.analysis.activations import Observer
from selfish_rnn.analysis.distance import align, compare_topologies, matrix_distance, units_of_rows
from selfish_rnn.analysis.networks import topologies_of
from selfish_rnn.engine import available
from selfish_rnn.models import MODELS
from selfish_rnn.topology import GateLayout, Topology

MATCHINGS = ("semi", "one-to-one")


@st.composite
def topology_pairs(draw: st.DrawFn, **options: Any) -> tuple[Topology, Topology]:
    """Two topologies of one matrix, its gates of the same size or not."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    gates = GateLayout(tuple(f"gate{number}" for number in range(len(sizes))), tuple(sizes))
    shape = (gates.rows, draw(st.integers(1, 5)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))
    counts = [draw(st.integers(0, shape[0] * shape[1])) for _ in range(2)]
    first, second = (Topology.random(shape, gates, count, generator) for count in counts)
    return first, second


@given(topology_pairs())
def test_a_distance_is_from_0_to_1_and_0_to_itself_and_symmetric(pair: tuple[Topology, Topology]) -> None:
    first, second = pair
    distance = matrix_distance(first, second)
    assert 0 <= distance <= 1
    assert matrix_distance(first, first) == 0
    assert matrix_distance(second, first) == pytest.approx(distance)
    assert distance > 0 or first.positions.equal(second.positions)


@given(topology_pairs(), st.data())
def test_any_alignment_compares_the_matrices_it_says(pair: tuple[Topology, Topology], data: st.DataObject) -> None:
    """Against whole matrices, with several rows and columns on the same partner."""
    first, second = pair
    height, width = first.shape
    unit_of_row, units = units_of_rows(first.gates)
    rows = np.array(data.draw(st.lists(st.integers(0, height - 1), min_size=height, max_size=height)))
    columns = np.array(data.draw(st.lists(st.integers(0, width - 1), min_size=width, max_size=width)))
    one, other = first.to_mask().numpy(), second.to_mask().numpy()[rows][:, columns]
    expected = []
    for unit in range(units):
        mine, theirs = one[unit_of_row == unit], other[unit_of_row == unit]
        union = (mine | theirs).sum()
        expected.append((mine ^ theirs).sum() / union if union else 0.0)
    assert matrix_distance(first, second, rows, columns) == pytest.approx(np.mean(expected))


def test_random_topologies_are_as_far_apart_as_theory_says() -> None:
    generator = torch.Generator().manual_seed(0)
    gates = GateLayout.even(("a", "b", "c", "d"), 400)
    first, second = (Topology.random((400, 300), gates, round(0.33 * 120_000), generator) for _ in range(2))
    assert matrix_distance(first, second) == pytest.approx(1 - 0.33 / (2 - 0.33), abs=0.01)


@pytest.mark.parametrize("matching", MATCHINGS)
@pytest.mark.parametrize("name", MODELS)
def test_a_network_is_at_0_from_itself_and_far_from_another(name: str, matching: Any) -> None:
    model, candidate = sparse_model(name, 0), sparse_model(name, 1)
    assert topology_distance(model, model, tokens(), matching=matching).overall == 0
    distance = topology_distance(model, candidate, tokens(), matching=matching)
    assert all(0.3 < matrix.distance < 1 for matrix in distance.matrices)
    matched = {matrix.name: (matrix.rows_by, matrix.columns_by) for matrix in distance.matrices}
    assert matched["embedding.weight"] == ("", "embedding")
    recurrent = [by for name, by in matched.items() if "hh" in name or "recurrent" in name]
    assert recurrent
    assert all(rows == columns != "" for rows, columns in recurrent)


def reordered_model(name: str) -> tuple[nn.Module, nn.Module]:
    """A model and the same with its units in another order, so that it computes the same."""
    model, candidate = sparse_model(name), sparse_model(name)
    for module in (model, candidate):
        sparsifier_of(module).detach()
    order = torch.randperm(8, generator=torch.Generator().manual_seed(4))
    second = torch.randperm(8, generator=torch.Generator().manual_seed(5))
    if name == "rhn":
        reorder(candidate.embedding, "weight", 1, order)
        for local, parameter in candidate.cell.named_parameters():
            reorder(candidate.cell, local, 0, order)
            if parameter.ndim == 2:
                reorder(candidate.cell, local, 1, order)
        return model, candidate
    if (
        name == "on-lstm"
    ):  # the order of chunks means something, that within a chunk of two does not; the last is silent
        within = torch.tensor([1, 0, 2, 3, 5, 4, 6, 7])
        cell = candidate.cells[0]
        for local in ("weight_input", "bias_input", "weight_recurrent", "bias_recurrent"):
            parameter = cell.get_parameter(local)
            rows = torch.cat([torch.arange(8), *(8 + 8 * block + within for block in range(4))])
            with torch.no_grad():
                parameter.copy_(parameter.detach()[rows])
        reorder(cell, "weight_recurrent", 1, within)
        reorder(candidate.cells[1], "weight_input", 1, within)
        return model, candidate
    reorder(candidate.embedding, "weight", 1, order)
    reorder(candidate.rnn, "weight_ih_l0", 1, order)
    for layer, units in enumerate((order.flip(0), second)):
        for local in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            reorder(candidate.rnn, f"{local}_l{layer}", 0, units)
        reorder(candidate.rnn, f"weight_hh_l{layer}", 1, units)
    reorder(candidate.rnn, "weight_ih_l1", 1, order.flip(0))
    reorder(candidate.decoder, "weight", 1, second)
    return model, candidate


@pytest.mark.parametrize("matching", MATCHINGS)
@pytest.mark.parametrize("name", ["stacked-lstm", "stacked-gru", "stacked-rnn", "rhn", "on-lstm"])
def test_the_order_of_units_does_not_count(name: str, matching: Any) -> None:
    model, candidate = reordered_model(name)
    text = tokens(60)
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(text)[0], candidate.eval()(text)[0])
    assert topology_distance(model, candidate, text, matching=matching).overall == 0
    assert compare_topologies(topologies_of(model), topologies_of(candidate)).overall > 0.1


@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}, {"proj_size": 4, "num_layers": 2}])
def test_a_users_model_of_any_make(options: dict[str, Any]) -> None:
    if "proj_size" in options:  # the read-out of projected units
        model, candidate = (nn.LSTM(5, 6, **options), nn.LSTM(5, 6, **options))
        for seed, entry in enumerate((model, candidate)):
            Sparsifier(entry, sparsity=0.5, rewirings=1, seed=seed)
        recurrent = "weight_hh_l1"
    else:
        model, candidate = sparse_tagger(0, **options), sparse_tagger(1, **options)
        recurrent = f"lstm.weight_hh_l{options.get('num_layers', 1) - 1}"
    features = torch.randn(20, 5, 5)
    assert topology_distance(model, model, features).overall == 0
    distance = topology_distance(model, candidate, features, matching="one-to-one")
    assert 0 < distance.overall < 1
    by = {matrix.name: (matrix.rows_by, matrix.columns_by) for matrix in distance.matrices}
    group = recurrent.replace("weight_hh_", "")
    assert by[recurrent] == (("", group) if "proj_size" in options else (group, group))
    if options.get("bidirectional"):
        assert by["lstm.weight_ih_l1_reverse"] == ("lstm.l1_reverse", "lstm.l0 + lstm.l0_reverse")
        assert by["middle.weight"] == ("middle", "lstm.l1 + lstm.l1_reverse")
    if not options:
        assert by["lstm.weight_ih_l0"] == ("lstm.l0", "lstm.input")
        assert by["head.weight"] == ("", "head.input")
    with pytest.raises(ValueError, match=r"other matrices|not of the same shape"):
        topology_distance(model, sparse_tagger(0, hidden=4), features)


def test_one_to_one_is_the_same_both_ways_and_semi_need_not_be() -> None:
    model, candidate = sparse_model("stacked-lstm", 0), sparse_model("stacked-lstm", 1)
    ways = ((model, candidate), (candidate, model))
    there, back = (topology_distance(*way, tokens(), matching="one-to-one").overall for way in ways)
    assert there == pytest.approx(back)
    there, back = (topology_distance(*way, tokens()).overall for way in ways)
    assert there != pytest.approx(back)


def test_a_linear_layer_can_be_named_as_a_readout() -> None:
    model, candidate = sparse_tagger(0), sparse_tagger(1)
    features = torch.randn(20, 5, 5)
    for readouts, expected in ((None, ("middle", "")), (["middle"], ("", "head")), (["middle", "head"], ("", ""))):
        distance = topology_distance(model, candidate, features, readouts=readouts)
        by = {matrix.name: matrix.rows_by for matrix in distance.matrices}
        assert (by["middle.weight"], by["head.weight"]) == expected
    with pytest.raises(ValueError, match="no module of the model: decoder"):
        topology_distance(model, candidate, features, readouts=["decoder"])


class Joined(nn.Module):
    """A cell with one matrix for its inputs and its state together."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2 * hidden, inputs + hidden))

    def forward(self, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        gate, candidate = (torch.cat([x, h], 1) @ self.weight.t()).chunk(2, 1)
        return gate.sigmoid() * candidate.tanh() + (1 - gate.sigmoid()) * h


register_cell(Joined, lambda cell: {"weight": GateLayout.even(("gate", "candidate"), len(cell.weight))})


class Looped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = Joined(3, 6)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        state = features.new_zeros(features.shape[1], 6)
        for step in features:
            state = self.cell(step, state)
        return state


@pytest.mark.parametrize("matching", MATCHINGS)
def test_a_registered_cell_in_a_loop_over_time(matching: Any) -> None:
    torch.manual_seed(0)
    model, candidate = Looped(), Looped()
    candidate.load_state_dict(model.state_dict())
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    reorder(candidate.cell, "weight", 0, order)
    reorder(candidate.cell, "weight", 1, torch.cat([torch.arange(3), 3 + order]))
    for entry in (model, candidate):
        entry.cell.weight.data[entry.cell.weight.abs() < 0.5] = 0
    distance = topology_distance(model, candidate, torch.randn(40, 5, 3), matching=matching)
    assert distance.matrices[0].columns_by == "cell.input + cell"
    assert distance.overall == 0


@pytest.mark.skipif(not available(), reason="the kernels are not built")
@pytest.mark.parametrize("name", MODELS)
def test_packed_networks_are_as_far_apart_as_masked_ones(name: str) -> None:
    masked = topology_distance(sparse_model(name, 0), sparse_model(name, 1), tokens())
    packed = topology_distance(sparse_model(name, 0, packed=True), sparse_model(name, 1, packed=True), tokens())
    assert {m.name: m.distance for m in packed.matrices} == pytest.approx({m.name: m.distance for m in masked.matrices})


@pytest.mark.skipif(not available(), reason="the kernels are not built")
def test_a_packed_model_without_a_sparsifier_has_its_gates() -> None:
    lstm = nn.Sequential(nn.LSTM(4, 6))
    lstm[0].weight_hh_l0.data[:, ::2] = 0
    lstm[0].weight_ih_l0.data[3] = 0
    before = topologies_of(lstm)
    after = topologies_of(pack(lstm))
    assert {name: entry.positions.tolist() for name, entry in before.items()} == {
        name: entry.positions.tolist() for name, entry in after.items()
    }
    assert after["0.weight_hh_l0"].gates == before["0.weight_hh_l0"].gates


@pytest.mark.skipif(not available(), reason="the kernels are not built")
@pytest.mark.parametrize("options", [{"bidirectional": True}, {"proj_size": 3}, {"bias": False}])
def test_layers_of_packed_lstms_are_seen_as_those_of_torch(options: dict[str, Any]) -> None:
    def distance(packed: bool) -> dict[str, float]:
        networks: list[nn.Module] = []
        for seed in range(2):
            torch.manual_seed(seed)
            networks.append(nn.Sequential(nn.LSTM(4, 6, num_layers=2, **options)))
            Sparsifier(networks[-1], sparsity=0.5, rewirings=1, seed=seed)
        result = topology_distance(*(map(pack, networks) if packed else networks), data)
        return {matrix.name: matrix.distance for matrix in result.matrices}

    data = torch.randn(30, 2, 4, generator=torch.Generator().manual_seed(0))
    assert distance(packed=True) == pytest.approx(distance(packed=False))


def test_a_weight_that_has_just_grown_exists() -> None:
    model = sparse_model("stacked-lstm")
    sparsifier = sparsifier_of(model)
    sparsifier.rewire()
    topologies = topologies_of(model)
    assert sum(topology.count for topology in topologies.values()) == sparsifier.active_weights
    nonzero = sum(int(weight.parameter.count_nonzero()) for weight in sparsifier.weights)
    assert nonzero < sparsifier.active_weights


def test_the_model_is_left_as_it_was() -> None:
    model, candidate = sparse_tagger(0), sparse_tagger(1)
    model.middle.eval()
    topology_distance(model, candidate, torch.randn(20, 5, 5))
    assert (model.training, model.middle.training, model.head.training) == (True, False, True)
    assert not any(module._forward_hooks for module in (*model.modules(), *candidate.modules()))


def test_earlier_topologies_can_be_compared_and_data_may_come_in_batches() -> None:
    model, second = sparse_model("stacked-lstm", 0), sparse_model("stacked-lstm", 1)
    text = tokens(40)
    whole = align(model, second, text)
    pieces = align(model, second, text.split(8))
    assert {name: match.partners.tolist() for name, match in whole.matches.items()} == {
        name: match.partners.tolist() for name, match in pieces.matches.items()
    }
    local = topologies_of(model)
    assert topology_distance(model, second, text, topologies=(local, local)).overall > 0
    with pytest.raises(ValueError, match="the batches are empty"):
        align(model, second, [])
    with pytest.raises(TypeError, match="tokens, time x batch"):
        align(model, second, [(text, text)])
    features = torch.randn(20, 5, 5)
    taggers = sparse_tagger(0), sparse_tagger(1)
    first, other_way = (
        topology_distance(*taggers, data) for data in (features, [(part,) for part in features.split(20)])
    )
    assert first.overall == other_way.overall
    with pytest.raises(TypeError, match="a batch is a tensor"):
        align(sparse_tagger(0), sparse_tagger(1), [[torch.randn(3, 2, 5)]])  # type: ignore[list-item]


def test_what_a_readout_gives_is_not_kept() -> None:
    with Observer(sparse_tagger(0), samples=50) as observer:
        observer.run(torch.randn(20, 5, 5))
    assert set(observer.activations().units) == {"lstm.input", "lstm.l0", "middle", "head.input"}
    with Observer(sparse_tagger(0), samples=50, readouts=["middle"]) as observer:
        observer.run(torch.randn(20, 5, 5))
    assert set(observer.activations().units) == {"lstm.input", "lstm.l0", "head", "head.input"}


def test_layers_below_the_last_are_seen_as_they_are() -> None:
    """Against a stack of single layers, with a state that is not zero."""
    torch.manual_seed(0)
    both = nn.GRU(5, 6, num_layers=2)
    lower = nn.GRU(5, 6)
    lower.load_state_dict({name: entry for name, entry in both.state_dict().items() if name.endswith("_l0")})
    features, state = torch.randn(9, 4, 5), torch.randn(2, 4, 6)
    with Observer(both, samples=100) as observer:
        observer.run((features, state))
    units = observer.activations().units
    torch.testing.assert_close(units["l0"], lower(features, state[:1])[0].detach().flatten(0, 1))
    torch.testing.assert_close(units["l1"], both(features, state)[0].detach().flatten(0, 1))


def test_no_more_samples_are_used_than_asked_for() -> None:
    model, candidate = sparse_model("stacked-lstm", 0), sparse_model("stacked-lstm", 1)

    def endless() -> Any:
        while True:
            yield tokens(10)

    assert align(model, candidate, endless(), samples=50).matching == "semi"


def test_the_table_tells_everything() -> None:
    lines = str(topology_distance(sparse_model("rhn", 0), sparse_model("rhn", 1), tokens())).splitlines()
    assert lines[0].split() == ["matrix", "distance", "weights", "rows", "matched", "by", "columns", "matched", "by"]
    assert lines[2].startswith("cell.weight_input")
    assert lines[-1].startswith("all")
    with pytest.raises(KeyError, match=r"there are embedding\.weight"):
        topology_distance(sparse_model("rhn", 0), sparse_model("rhn", 1), tokens())["rnn"]
