"""Narrow matrices stay dense by default, starting weights are rescaled, and binding warns where units are cut off."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from selfish_rnn import METHODS, GateLayout, Sparsifier, deferred_init, engine, register_cell


class Reader(nn.Module):
    """A recurrent layer that reads one number after another, and a linear layer that answers."""

    def __init__(self, inputs: int = 1, hidden: int = 96, outputs: int = 4) -> None:
        super().__init__()
        self.rnn = nn.GRU(inputs, hidden)
        self.out = nn.Linear(hidden, outputs)

    def forward(self, x: Tensor) -> Tensor:
        answers: Tensor = self.out(self.rnn(x)[0][-1])
        return answers


RECURRENT = {"rnn.weight_hh_l0"}
ALL = {"rnn.weight_ih_l0", "rnn.weight_hh_l0", "out.weight"}


def sparse_names(model: nn.Module, **settings: Any) -> set[str]:
    return set(Sparsifier(model, **({"sparsity": 0.5, "rewirings": 2} | settings)).densities())


@contextmanager
def no_warning() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


# Selection


def test_a_narrow_input_and_a_narrow_output_stay_dense_by_default() -> None:
    model = Reader()
    sparsifier = Sparsifier(model, sparsity=0.9, rewirings=2)
    assert set(sparsifier.densities()) == RECURRENT
    assert "left dense: rnn.weight_ih_l0 (288), out.weight (384)" in sparsifier.summary()
    assert sparsifier.active_weights == round(0.1 * 288 * 96)
    assert bool(model.out.weight.all())
    assert bool(model.rnn.weight_ih_l0.all())


@pytest.mark.parametrize(("width", "sparse"), [(15, RECURRENT), (16, ALL)])
def test_sixteen_rows_and_columns_are_enough(width: int, sparse: set[str]) -> None:
    assert sparse_names(Reader(width, 32, width)) == sparse


def test_min_side_moves_the_limit() -> None:
    assert sparse_names(Reader(8, 64, 8), min_side=8) == ALL
    assert sparse_names(Reader(8, 64, 8), min_side=9) == RECURRENT
    assert sparse_names(Reader(), min_side=1) == ALL
    with pytest.raises(ValueError, match="min_side is a number of rows and columns, at least 1; got 0"):
        Sparsifier(Reader(), sparsity=0.5, rewirings=2, min_side=0)


def test_weights_that_the_user_names_become_sparse_however_narrow() -> None:
    assert sparse_names(Reader(), include=["rnn", "out"]) == ALL
    assert sparse_names(Reader(), include="out.weight") == {"out.weight"}
    assert sparse_names(Reader(), sparsity={"*": 0.5}) == ALL
    masks = {"out.weight": torch.ones(4, 96).triu()}
    assert sparse_names(Reader(), sparsity=None, masks=masks) == {"out.weight"}


def test_a_model_of_narrow_matrices_only_becomes_sparse() -> None:
    assert sparse_names(Reader(3, 5, 2)) == ALL


def test_gates_of_one_matrix_count_together() -> None:
    class Cell(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.forget, self.candidate = nn.Linear(32, 8), nn.Linear(32, 8)

    register_cell(
        Cell, lambda cell: {("forget.weight", "candidate.weight"): GateLayout.even(("forget", "candidate"), 16)}
    )
    model = nn.ModuleDict({"cell": Cell(), "alone": nn.Linear(32, 8), "wide": nn.Linear(32, 32)})
    assert sparse_names(model) == {"cell.forget.weight", "cell.candidate.weight", "wide.weight"}


def test_an_existing_topology_keeps_the_zeros_of_narrow_matrices() -> None:
    """A matrix without zeros stays dense: rewiring one would only forget its smallest weights."""
    sparse, dense = Reader(), Reader()
    Sparsifier(sparse, sparsity=0.5, rewirings=2, min_side=1).detach()
    Sparsifier(dense, sparsity=0.5, rewirings=2).detach()
    assert sparse_names(sparse, sparsity=None, topology="nonzero") == ALL
    assert sparse_names(dense, sparsity=None, topology="nonzero") == RECURRENT


@pytest.mark.skipif(not engine.available(), reason="the kernels are not built")
def test_packed_matrices_without_zeros_stay_dense() -> None:
    sparse, dense = Reader(), Reader()
    sparsifiers = [
        Sparsifier(sparse, sparsity=0.5, rewirings=2, min_side=1),
        Sparsifier(dense, sparsity=0.5, rewirings=2),
    ]
    for model, sparsifier in zip((sparse, dense), sparsifiers, strict=True):
        engine.pack(model)
        sparsifier.detach()
    assert sparse_names(sparse, sparsity=None) == ALL
    assert sparse_names(dense, sparsity=None, topology="nonzero") == RECURRENT


def test_a_deferred_model_has_the_same_rule() -> None:
    with deferred_init():
        model = Reader()
    assert sparse_names(model) == RECURRENT


@given(
    inputs=st.integers(1, 40),
    hidden=st.integers(16, 40),
    outputs=st.integers(1, 40),
    sparsity=st.floats(0, 0.97),
    min_side=st.integers(1, 30),
    method=st.sampled_from(sorted(METHODS)),
)
def test_the_budget_is_that_of_the_sparse_matrices(
    inputs: int, hidden: int, outputs: int, sparsity: float, min_side: int, method: str
) -> None:
    model = Reader(inputs, hidden, outputs)
    shapes = {name: parameter.shape for name, parameter in model.named_parameters() if parameter.ndim == 2}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sparsifier = Sparsifier(model, sparsity=sparsity, method=method, min_side=min_side, rewirings=2)
    names = {name for name, shape in shapes.items() if min(shape) >= min_side} or set(shapes)
    assert set(sparsifier.densities()) == names
    total = sum(shapes[name].numel() for name in names)
    assert sparsifier.total_weights == total
    if method == "dense":
        assert sparsifier.active_weights == total
        return
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        optimizer.zero_grad()
        with sparsifier.dense_gradients():
            model(torch.randn(3, 2, inputs)).square().mean().backward()
        optimizer.step()
        sparsifier.rewire()
    assert sparsifier.active_weights == max(round((1 - sparsity) * total), len(names))


# Starting values


def scale(model: nn.Module, dense: nn.Module) -> float:
    weights, before = model.get_parameter("rnn.weight_hh_l0"), dense.get_parameter("rnn.weight_hh_l0")
    existing = weights != 0
    return (weights[existing] / before[existing]).mean().item()


@pytest.mark.parametrize(("rescale", "expected"), [(None, 2.0), (True, 2.0), (False, 1.0)])
def test_starting_weights_are_rescaled_by_default(rescale: bool | None, expected: float) -> None:
    model = Reader()
    dense = copy.deepcopy(model)
    Sparsifier(model, sparsity=0.75, rewirings=2, rescale=rescale)
    assert scale(model, dense) == pytest.approx(expected)
    assert torch.equal(model.out.weight, dense.out.weight)


@pytest.mark.parametrize(("rescale", "expected"), [(None, 1.0), (True, 2.0)])
def test_weights_with_a_topology_are_rescaled_on_request_only(rescale: bool | None, expected: float) -> None:
    model, other = Reader(), Reader()
    masks = Sparsifier(other, sparsity=0.75, rewirings=2).masks()
    dense = copy.deepcopy(model)
    Sparsifier(model, masks=masks, rewirings=2, rescale=rescale)
    assert scale(model, dense) == pytest.approx(expected)


# Units cut off


def test_binding_warns_of_units_that_reach_no_output() -> None:
    torch.manual_seed(0)
    with pytest.warns(UserWarning, match="cuts units off") as caught:
        sparsifier = Sparsifier(Reader(), sparsity=0.9, rewirings=2, min_side=1)
    masks = sparsifier.masks()
    blind = int((~masks["rnn.weight_ih_l0"].any(1)).sum())
    mute = int((~masks["out.weight"].any(0)).sum())
    text = str(caught[0].message)
    assert f"rnn.weight_ih_l0: {blind} of 288 gates see no input (their rows are empty)" in text
    assert f"out.weight: {mute} of 96 units reach no output (their columns are empty)" in text
    assert "rnn.weight_hh_l0" not in text
    assert "exclude=['rnn.weight_ih_l0', 'out.weight']" in text
    assert 'sparsity={"*": 0.9, "rnn.weight_ih_l0": 0, "out.weight": 0}' in text
    assert 'allocation="er"' in text
    assert caught[0].filename == __file__


def test_the_remedies_of_the_warning_work() -> None:
    with no_warning():
        Sparsifier(Reader(), sparsity=0.9, rewirings=2)
        Sparsifier(Reader(), sparsity=0.9, rewirings=2, min_side=1, exclude=["rnn.weight_ih_l0", "out.weight"])
        Sparsifier(Reader(), sparsity={"*": 0.9, "rnn.weight_ih_l0": 0, "out.weight": 0}, rewirings=2)
        Sparsifier(Reader(), sparsity=0.9, rewirings=2, min_side=1, allocation="er")


@pytest.mark.parametrize("method", ["set", "rigl", "gmp", "dense"])
def test_methods_that_start_with_dense_narrow_matrices_do_not_warn(method: str) -> None:
    with no_warning():
        Sparsifier(Reader(), sparsity=0.9, method=method, rewirings=2, min_side=1)


def test_sparsities_by_name_are_not_told_to_change_the_allocation() -> None:
    with pytest.warns(UserWarning, match="cuts units off") as caught:
        Sparsifier(Reader(), sparsity={"*": 0.9}, rewirings=2)
    assert "allocation" not in str(caught[0].message)


def test_empty_words_of_an_embedding_are_named_as_such() -> None:
    model = nn.Sequential(nn.Embedding(20, 32), nn.LSTM(32, 64))
    with pytest.warns(UserWarning, match=r"0\.weight: \d+ of 20 entries are zero .* dimensions are zero in every"):
        Sparsifier(model, sparsity=0.97, rewirings=2)


def test_the_remedy_by_names_keeps_narrow_matrices_dense() -> None:
    model = Reader(1, 64, 20)
    with pytest.warns(UserWarning, match=r'sparsity=\{"\*": 0\.95, "out\.weight": 0, "rnn\.weight_ih_l0": 0\}'):
        Sparsifier(model, sparsity=0.95, rewirings=2)


def test_a_long_list_is_cut_short() -> None:
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(5)))
    with pytest.warns(UserWarning, match="; and 2 more matrices. Remedies"):
        Sparsifier(model, sparsity=0.95, rewirings=2)


def test_nothing_is_said_where_hardly_a_unit_is_lost() -> None:
    model = nn.Sequential(nn.Embedding(400, 128), nn.LSTM(128, 128), nn.Linear(128, 400))
    with no_warning():
        for sparsity in (0.67, 0.9, 0.95):
            Sparsifier(copy.deepcopy(model), sparsity=sparsity, rewirings=2)
        Sparsifier(copy.deepcopy(model), sparsity=0.98, rewirings=2, exclude="0")
