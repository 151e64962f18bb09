"""The physically smaller network that remains where units have died."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from intrinsic_cases import WORDS, assert_same_outputs, count, group, kill, models

from selfish_rnn.models import LanguageModel, RecurrentHighwayNetwork, StackedRNN
from selfish_rnn.sparsifier.iss import IntrinsicSparseStructures, live_units, shrink


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(models(), st.data())
def test_without_dead_units_the_outputs_are_the_same(model: LanguageModel, data: st.DataObject) -> None:
    sizes = []
    for layer in model.unit_layers():
        dead = data.draw(st.sets(st.integers(0, layer.size - 1)), label=f"dead in {layer.name}")
        for unit in dead:
            kill(layer, unit)
        sizes.append(layer.size - len(dead))
    smaller = shrink(model)
    left = [layer.size for layer in smaller.unit_layers()]
    if all(sizes):
        assert left == sizes
    # What a dead layer hides is dead too.
    assert all(1 <= size <= max(want, 1) for size, want in zip(left, sizes, strict=True))
    assert_same_outputs(model, smaller)
    assert (count(smaller) < count(model)) == (left != [layer.size for layer in model.unit_layers()])
    assert_same_outputs(model.float(), shrink(model), tolerance=1e-5)


@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn"])
@pytest.mark.parametrize("hidden", [(20,), (20, 20), (20, 20, 20)])
def test_all_but_one_unit_dead(cell: Any, hidden: tuple[int, ...]) -> None:
    model = StackedRNN(WORDS, embedding=7, hidden=hidden, layers=len(hidden), cell=cell)
    for layer in model.unit_layers():
        for unit in range(1, layer.size):
            kill(layer, unit)
    smaller = shrink(model)
    assert [layer.size for layer in smaller.unit_layers()] == [1] * len(hidden)
    assert_same_outputs(model, smaller, 1e-5)


def test_what_only_dead_units_read_is_dead() -> None:
    model = StackedRNN(WORDS, embedding=5, hidden=6).double()
    first, second = model.unit_layers()
    with torch.no_grad():
        model.decoder.weight[:, 0] = 0
        model.rnn.weight_hh_l1[:, 0] = 0
        # Unit 3 of the first layer is read by that unit alone, and by unit 4, which reads it back.
        for unit in (3, 4):
            model.rnn.weight_ih_l1.view(4, 6, 6)[:, 1:, unit] = 0
            model.rnn.weight_hh_l0.view(4, 6, 6)[:, [0, 1, 2, 5], unit] = 0
    assert [units.tolist() for units in live_units([first, second])] == [
        [True, True, True, False, False, True],
        [False, True, True, True, True, True],
    ]
    smaller = shrink(model)
    assert [layer.size for layer in smaller.unit_layers()] == [4, 5]
    assert_same_outputs(model, smaller)


def test_biases_and_rows_of_an_unread_unit_do_not_matter() -> None:
    model = RecurrentHighwayNetwork(WORDS, hidden=5, depth=2).double()
    with torch.no_grad():
        model.embedding.weight[:, 2] = 0
        for weight in model.cell.recurrent_weights():
            weight[:, 2] = 0
    assert model.cell.weight_input[:, 2].all()
    smaller = shrink(model)
    assert smaller.cell.hidden == smaller.cell.inputs == 4
    assert_same_outputs(model, smaller)


def test_shrink_with_a_threshold_is_that_of_the_thresholded_model() -> None:
    model = StackedRNN(WORDS, embedding=5, hidden=6).double()
    with torch.no_grad():
        for layer in model.unit_layers():
            for parameter, mask in group(layer, 1).items():
                parameter[mask] *= 1e-6
    assert count(shrink(model)) == count(model)
    smaller = shrink(model, threshold=1e-4)
    assert [layer.size for layer in smaller.unit_layers()] == [5, 5]
    with IntrinsicSparseStructures(model, threshold=1e-4).thresholded():
        assert_same_outputs(model, smaller)


def test_shrink_leaves_model_and_random_numbers_alone() -> None:
    model = StackedRNN(WORDS, embedding=5, hidden=6).train()
    kill(model.unit_layers()[0], 2)
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    random = torch.get_rng_state()
    smaller = shrink(model)
    assert smaller.training
    assert not any(parameter.grad_fn for parameter in smaller.parameters())
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())


def train(model: LanguageModel, structure: IntrinsicSparseStructures) -> None:
    """On rows of three words in turn: first without the penalty, then with it."""
    rows = (torch.arange(16).unsqueeze(1) + torch.arange(4)) % 3
    for optimizer, steps, penalty in (
        (torch.optim.Adam(model.parameters(), lr=0.02), 50, 0),
        (torch.optim.SGD(model.parameters(), lr=0.3), 250, 1),
    ):
        for _ in range(steps):
            encoded = model.encode(rows[:-1], model.initial_state(4))
            optimizer.zero_grad()
            (model.loss(encoded.output, rows[1:]) + penalty * structure.penalty()).backward()
            optimizer.step()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lstm", "tied gru", "rhn"])
def test_training_kills_units(kind: str) -> None:
    torch.manual_seed(0)
    model: LanguageModel
    if kind == "rhn":
        without = {f"dropout_{where}": 0.0 for where in ("word", "input", "hidden", "output")}
        model = RecurrentHighwayNetwork(WORDS, hidden=16, depth=2, **without)
    elif kind == "lstm":
        model = StackedRNN(WORDS, embedding=6, hidden=16, dropout=0)
    else:
        model = StackedRNN(WORDS, embedding=16, hidden=16, dropout=0, cell="gru", tied=True)
    # A step moves a group of n weights by lr · strength: it can die if half of that over √n is below the threshold.
    structure = IntrinsicSparseStructures(model, strength=0.05, threshold=0.01)
    train(model, structure)
    live = structure.live_units()
    assert 0 < sum(live.values()) < sum(layer.size for layer in structure.layers)
    smaller = shrink(model)
    assert [max(units, 1) for units in live.values()] == [layer.size for layer in smaller.unit_layers()]
    assert count(smaller) < count(model)
    assert_same_outputs(model, smaller, 1e-5)
