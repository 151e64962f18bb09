from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from selfish_rnn.topology.apportionment import apportion

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
