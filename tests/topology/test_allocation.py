from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from topology_cases import golden_cases

from selfish_rnn.topology import ALLOCATIONS, budget
from selfish_rnn.topology.allocation import apportion, erdos_renyi, erdos_renyi_kernel, uniform

STACKED_LSTM = [(10_000, 1500), *[(6000, 1500)] * 4, (10_000, 1500)]
RHN = [(10_000, 830), (1660, 830), *[(1660, 830)] * 10]

matrices = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=6)
densities = st.one_of(st.sampled_from([0.01, 1.0]), st.floats(0.01, 1.0))


SPARSE = [name for name, part in ALLOCATIONS.items() if not part.dense]


@pytest.mark.parametrize("name", SPARSE)
@given(shapes=matrices, density=densities)
@example(shapes=[(1, 1), (1, 1), (40, 40)], density=0.01)
@example(shapes=[(1, 40)], density=1.0)
def test_exact_total_and_bounds(name: str, shapes: list[tuple[int, ...]], density: float) -> None:
    counts = ALLOCATIONS[name].counts(shapes, density)
    assert sum(counts) == max(round(density * sum(map(math.prod, shapes))), len(shapes))
    assert all(1 <= count <= math.prod(shape) for count, shape in zip(counts, shapes, strict=True))


@given(shapes=matrices, density=densities)
def test_uniform_gives_every_matrix_the_same_density(shapes: list[tuple[int, ...]], density: float) -> None:
    assume(all(density * math.prod(shape) >= 1 for shape in shapes))  # else "at least one" takes from the others
    for count, shape in zip(uniform(shapes, density), shapes, strict=True):
        assert abs(count - density * math.prod(shape)) < 1.5  # within one, and the rounding of the total


@given(shapes=matrices, density=densities)
def test_er_has_one_epsilon_for_all_matrices_that_are_not_full(shapes: list[tuple[int, ...]], density: float) -> None:
    """Full matrices are those whose density would exceed 1 at the epsilon of the rest: it was solved again."""
    assume(density * sum(map(math.prod, shapes)) >= 4 * len(shapes))
    counts = erdos_renyi(shapes, density)
    rest = [(count, sum(shape)) for count, shape in zip(counts, shapes, strict=True) if count < math.prod(shape)]
    epsilon = sum(count for count, _ in rest) / max(sum(ends for _, ends in rest), 1)
    for count, ends in rest:
        assert abs(count - epsilon * ends) <= 1.5
    if rest:
        for count, shape in zip(counts, shapes, strict=True):
            if count == math.prod(shape):
                assert epsilon * sum(shape) >= count - 2


def test_over_full_matrix_is_made_dense_and_the_rest_solved_again() -> None:
    shapes = [(2, 2), (100, 100), (100, 300)]
    counts = erdos_renyi(shapes, 0.5)
    epsilon = (20_002 - 4) / (200 + 400)  # of the two that are not full
    assert counts[0] == 4
    assert counts[1:] == pytest.approx([200 * epsilon, 400 * epsilon], abs=1)


@pytest.mark.parametrize("case", golden_cases("er_density", 2))
def test_er_golden_probabilities(case: dict[str, np.ndarray]) -> None:
    assert case["prob"].max() < 1  # the closed form is exact only where nothing is over-full
    shapes = [tuple(map(int, shape)) for shape in case["shapes"]]
    counts = erdos_renyi(shapes, float(case["density"]))
    for count, shape, probability in zip(counts, shapes, case["prob"], strict=True):
        assert abs(count - probability * math.prod(shape)) <= 1


@pytest.mark.parametrize("name", SPARSE)
@pytest.mark.parametrize(
    ("shapes", "density", "masked"), [(STACKED_LSTM, 0.33, 21_780_000), (RHN, 0.472, 11_071_138)], ids=["lstm", "rhn"]
)
def test_counts_of_the_paper(name: str, shapes: list[tuple[int, ...]], density: float, masked: int) -> None:
    assert sum(ALLOCATIONS[name].counts(shapes, density)) == masked


def test_kernel_dimensions_count_in_erk_only() -> None:
    shapes = [(8, 4, 3, 3), (16, 8, 1, 1)]
    assert erdos_renyi([(8, 4), (16, 8)], 0.5) == erdos_renyi_kernel([(8, 4), (16, 8)], 0.5)
    er, erk = erdos_renyi(shapes, 0.2), erdos_renyi_kernel(shapes, 0.2)
    assert er[0] / er[1] == pytest.approx(12 * 9 / 24, rel=0.1)
    assert erk[0] / erk[1] == pytest.approx(18 / 26, rel=0.1)


@pytest.mark.parametrize("density", [0.0, -0.1, 1.1, math.nan])
def test_impossible_density_is_refused(density: float) -> None:
    with pytest.raises(ValueError, match="density must lie in"):
        budget([(3, 3)], density)


def test_dense_has_every_weight() -> None:
    assert ALLOCATIONS["dense"].counts([(3, 4), (5, 1)], 0.1) == [12, 5]


places = st.tuples(st.one_of(st.just(0.0), st.floats(1e-6, 1e6)), st.integers(1, 50))


@st.composite
def problems(draw: st.DrawFn) -> tuple[int, list[float], list[int], int]:
    drawn = draw(st.lists(places, min_size=1, max_size=8))
    shares, capacities = [share for share, _ in drawn], [capacity for _, capacity in drawn]
    minimum = draw(st.sampled_from([0, 1]))
    total = draw(st.integers(minimum * len(drawn), sum(capacities)))
    return total, shares, capacities, minimum


@given(problems())
def test_exact_total_within_bounds(problem: tuple[int, list[float], list[int], int]) -> None:
    total, shares, capacities, minimum = problem
    parts = apportion(total, shares, capacities, minimum)
    assert sum(parts) == total
    assert all(minimum <= part <= capacity for part, capacity in zip(parts, capacities, strict=True))
    assert parts == apportion(total, shares, capacities, minimum)


@given(st.integers(0, 1000), st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=8))
def test_within_one_of_proportional_when_no_bound_binds(total: int, shares: list[float]) -> None:
    parts = apportion(total, shares, [total + 1] * len(shares))
    for part, share in zip(parts, shares, strict=True):
        assert abs(part - total * share / sum(shares)) < 1 + 1e-9


def test_what_a_full_place_cannot_take_goes_to_the_others_by_share() -> None:
    assert apportion(40, shares=[10, 2, 1], capacities=[10, 100, 100]) == [10, 20, 10]


def test_places_without_a_share_get_something_only_when_the_others_are_full() -> None:
    assert apportion(5, shares=[0, 1], capacities=[100, 5]) == [0, 5]
    assert apportion(8, shares=[0, 1, 0], capacities=[20, 5, 10]) == [2, 5, 1]
    assert apportion(9, shares=[0, 0], capacities=[20, 10]) == [6, 3]


def test_minimum_takes_from_a_place_at_its_capacity() -> None:
    """The rich place would fill up, but then the poor ones could not have one each."""
    assert apportion(10, shares=[1000, 1, 1], capacities=[9, 5, 5], minimum=1) == [8, 1, 1]


def test_ties_go_to_the_first() -> None:
    assert apportion(5, shares=[1, 1, 1], capacities=[9, 9, 9]) == [2, 2, 1]


@pytest.mark.parametrize("total", [1, 21])
def test_impossible_total_is_refused(total: int) -> None:
    with pytest.raises(ValueError, match=r"hold 2 to 20"):
        apportion(total, shares=[1, 1], capacities=[10, 10], minimum=1)
