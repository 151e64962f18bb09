"""The rule by which claims are decided."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfish_rnn.reproduce.rendering.verdicts import FAILS, HOLDS, UNDECIDED, Evidence, overall

numbers = st.floats(-1e3, 1e3, allow_nan=False).filter(lambda value: value == 0 or abs(value) > 1e-6)
values = st.lists(numbers, min_size=1, max_size=8).map(tuple)


@given(values)
def test_turning_a_claim_round_turns_its_verdict(given_values: tuple[float, ...]) -> None:
    turned = Evidence(tuple(-value for value in given_values)).verdict
    assert turned == {HOLDS: FAILS, FAILS: HOLDS, UNDECIDED: UNDECIDED}[Evidence(given_values).verdict]


@given(st.lists(numbers, min_size=1, max_size=2).map(tuple))
def test_fewer_than_three_seeds_decide_nothing(given_values: tuple[float, ...]) -> None:
    assert Evidence(given_values).verdict == UNDECIDED


@given(values, st.randoms(use_true_random=False))
def test_the_order_of_seeds_does_not_matter(given_values: tuple[float, ...], source: object) -> None:
    shuffled = list(given_values)
    source.shuffle(shuffled)  # type: ignore[attr-defined]
    assert Evidence(tuple(shuffled)).verdict == Evidence(given_values).verdict


@given(values)
def test_a_verdict_is_the_rule_as_it_is_written(given_values: tuple[float, ...]) -> None:
    signs = {math.copysign(1, value) if value else 0 for value in given_values}
    enough = len(given_values) >= 3 and len(signs) == 1 and 0 not in signs
    if enough:
        error = statistics.stdev(given_values) / math.sqrt(len(given_values))
        enough = abs(statistics.fmean(given_values)) > 2 * error
    assert (Evidence(given_values).verdict != UNDECIDED) == enough


@given(st.floats(0.01, 100), st.integers(3, 8))
def test_the_same_difference_with_every_seed_is_decided(value: float, seeds: int) -> None:
    assert Evidence((value,) * seeds).verdict == HOLDS


@pytest.mark.parametrize(
    ("given_values", "verdict"),
    [
        ((1.0, 1.2, 0.9), HOLDS),
        ((-1.0, -1.2, -0.9), FAILS),
        ((1.0, 1.2, -0.1), UNDECIDED),
        ((0.1, 0.1, 9.0), UNDECIDED),
    ],
)
def test_examples(given_values: tuple[float, ...], verdict: str) -> None:
    assert Evidence(given_values).verdict == verdict


@given(st.lists(st.sampled_from([HOLDS, FAILS, UNDECIDED]), min_size=1, max_size=5))
def test_a_claim_of_parts_holds_if_all_do_and_not_if_one_does_not(verdicts: list[str]) -> None:
    assert (overall(verdicts) == HOLDS) == (set(verdicts) == {HOLDS})
    assert (overall(verdicts) == FAILS) == (FAILS in verdicts)


def test_nothing_measured_is_undecided() -> None:
    assert overall([]) == UNDECIDED
