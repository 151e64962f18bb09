"""Grids grow until their best value is bracketed, and scale small uses the values that its results choose."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reproduce_cases import made_up

from selfish_rnn.errors import UserError
from selfish_rnn.reproduce.campaign import check_choices, missing_runs, tuned_value, tuning_run
from selfish_rnn.reproduce.case import Case
from selfish_rnn.reproduce.plan import PlannedRun
from selfish_rnn.reproduce.results import Results
from selfish_rnn.reproduce.scales import SMALL, SMALL_FIRST
from selfish_rnn.reproduce.tuning import CHOSEN, GRIDS, TUNING_SEED, Grid, start_of, tuned_overrides

REPOSITORY = Path(__file__).parents[2]
BY_NAME = {grid.name: grid for grid in GRIDS}


@st.composite
def grids_with_perplexities(draw: st.DrawFn) -> tuple[Grid, dict[float, float]]:
    """A grid, and the validation perplexity that each of its values would have."""
    count = draw(st.integers(1, 12))
    values = tuple(float(value) for value in range(count))
    first = draw(st.integers(0, count - 1))
    last = draw(st.integers(first, count - 1))
    grid = Grid("x", Case("rhn"), ("model.dropout",), values, values[first : last + 1])
    return grid, dict(zip(values, draw(st.lists(st.floats(50, 200), min_size=count, max_size=count)), strict=True))


@given(grids_with_perplexities())
def test_a_grid_grows_until_its_best_value_has_a_worse_neighbour_on_both_sides(
    example: tuple[Grid, dict[float, float]],
) -> None:
    grid, truth = example
    measured: dict[float, float] = {}
    while missing := grid.missing(measured):
        assert not set(missing) & set(measured)
        measured |= {value: truth[value] for value in missing}
    assert set(grid.first) <= set(measured) <= set(grid.values)
    best = grid.best(measured)
    place = grid.values.index(best)
    for neighbour in grid.values[max(place - 1, 0) : place + 2]:
        assert measured[neighbour] >= measured[best]


def test_grids_are_well_formed() -> None:
    assert len(BY_NAME) == len(GRIDS)
    for grid in GRIDS:
        assert list(grid.values) == sorted(set(grid.values))
        place = grid.values.index(grid.first[0])
        assert grid.values[place : place + len(grid.first)] == grid.first
        assert grid.name not in CHOSEN or CHOSEN[grid.name] in grid.values
    assert CHOSEN.keys() <= BY_NAME.keys()


def test_tuning_trains_dense_and_static_networks_only() -> None:
    assert {grid.case.method for grid in GRIDS} == {"dense", "small-dense", "static"}
    assert TUNING_SEED not in SMALL.seeds


def test_a_tuning_run_depends_on_no_choice() -> None:
    """The choice of a grid must not change its runs."""
    for grid in GRIDS:
        for value in grid.values:
            run = tuning_run(grid, value, SMALL)
            assert run.arguments == PlannedRun(SMALL_FIRST_CHOICES, run.case, TUNING_SEED).arguments
            assert run.averages == ()


SMALL_FIRST_CHOICES = type(SMALL)(
    **{**vars(SMALL), "name": "small", "chosen": {**SMALL_FIRST.chosen, "dense": 0.3, "adam": 0.01}}
)


@pytest.mark.parametrize("name", CHOSEN)
def test_scale_small_uses_what_its_tuning_chooses(name: str) -> None:
    results = Results(REPOSITORY / "results", "small")
    choice = tuned_value(BY_NAME[name], SMALL, results)
    if choice is None:
        pytest.skip(f"the tuning of {name} is not finished")
    assert choice == CHOSEN[name]


def test_a_campaign_refuses_a_choice_that_its_scale_does_not_use(tmp_path: Path) -> None:
    results = Results(tmp_path, "small")
    grid = BY_NAME["sparse-0.67"]
    assert [run.name for run in missing_runs(grid, SMALL, results)] == [
        f"stacked-lstm/static-snt-asgd-s0.67-model.dropout-{value:g}-seed11" for value in grid.first
    ]
    for value in grid.first:
        results.save(*made_up(grid.case_of(value), TUNING_SEED, 100 - value))
    # The best is the last one, so the grid grows by one.
    (run,) = missing_runs(grid, SMALL, results)
    assert run.case == grid.case_of(0.65)
    check_choices(["sparse-0.67"], SMALL, results)
    results.save(*made_up(grid.case_of(0.65), TUNING_SEED, 101.0))
    assert tuned_value(grid, SMALL, results) == 0.6
    with pytest.raises(UserError, match=r"sparse-0\.67 is 0\.5, the tuning chooses 0\.6"):
        check_choices(["sparse-0.67"], SMALL, results)


@pytest.mark.parametrize(
    ("case", "start"),
    [
        (Case("rhn", "dense", "nt-asgd"), "dense"),
        (Case("rhn", "gmp"), "dense"),
        (Case("stacked-lstm", "dense", changes=("model.embedding=92", "model.hidden=92")), "dense-92"),
        (Case("stacked-lstm", "small-dense"), "small-dense"),
        (Case("stacked-lstm", "by-matrix"), "sparse"),
        (Case("stacked-lstm", "static-er"), "sparse"),
    ],
)
def test_starts(case: Case, start: str) -> None:
    assert start_of(case) == start


def test_an_optimizer_has_its_learning_rate_and_the_dropout_of_its_start() -> None:
    chosen = {"sparse-0.67": 0.5, "dense": 0.6, "adam": 0.002}
    assert tuned_overrides(Case("stacked-lstm", "set", "adam"), 0.67, chosen) == [
        "model.dropout=0.5",
        "optimizer.lr=0.002",
    ]
    assert tuned_overrides(Case("stacked-lstm", "set"), 0.9, chosen) == ["model.dropout=0.5"]
    assert tuned_overrides(Case("stacked-lstm", "gmp"), 0.9, chosen) == ["model.dropout=0.6"]
    assert tuned_overrides(Case("rhn", "set"), 0.9, chosen) == []
