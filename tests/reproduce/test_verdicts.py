"""The rule by which claims are decided."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfish_rnn.reproduce.rendering.verdicts import (
    FAILS,
    HOLDS,
    INCONCLUSIVE,
    LEAST_SEEDS,
    NOT_RUN,
    RULE,
    UNDECIDED,
    Evidence,
    overall,
    t_quantile,
)

numbers = st.floats(-1e3, 1e3, allow_nan=False).filter(lambda value: value == 0 or abs(value) > 1e-6)
samples = st.lists(numbers, min_size=1, max_size=8).map(tuple)
margins = st.floats(0, 10)


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 6.3138), (2, 2.9200), (3, 2.3534), (4, 2.1318), (7, 1.8946), (30, 1.6973)]
)
def test_quantiles_are_those_of_printed_tables(freedom: int, quantile: float) -> None:
    assert t_quantile(freedom) == pytest.approx(quantile, abs=5e-5)


@given(st.integers(1, 200), st.floats(0.001, 0.4))
def test_quantiles_are_those_of_scipy(freedom: int, level: float) -> None:
    stats = pytest.importorskip("scipy.stats")
    assert t_quantile(freedom, level) == pytest.approx(stats.t.ppf(1 - level, freedom), rel=1e-9)


@given(samples)
def test_negating_a_claim_negates_its_verdict(values: tuple[float, ...]) -> None:
    negated = Evidence(tuple(-value for value in values)).verdict
    opposite = {HOLDS: FAILS, FAILS: HOLDS, INCONCLUSIVE: INCONCLUSIVE}
    assert negated == opposite[Evidence(values).verdict]


@given(st.lists(numbers, min_size=1, max_size=LEAST_SEEDS - 1).map(tuple), margins)
def test_too_few_seeds_are_inconclusive(values: tuple[float, ...], margin: float) -> None:
    assert Evidence(values, margin).verdict == INCONCLUSIVE


def test_no_seed_is_not_run() -> None:
    evidence = Evidence(())
    assert evidence.verdict == NOT_RUN
    assert math.isnan(evidence.mean)
    assert evidence.interval == (-math.inf, math.inf)


@given(samples, margins)
def test_a_verdict_is_the_one_sided_t_test(values: tuple[float, ...], margin: float) -> None:
    evidence = Evidence(values, margin)
    if len(values) < LEAST_SEEDS:
        return
    error = statistics.stdev(values) / math.sqrt(len(values))
    bound = t_quantile(len(values) - 1) * error
    shifted = statistics.fmean(values) + margin
    expected = HOLDS if shifted > bound else FAILS if shifted < -bound else INCONCLUSIVE
    # At the bound itself the two ways of summing may differ in the last digit.
    if abs(abs(shifted) - bound) > 1e-9 * (1 + abs(shifted) + margin):
        assert evidence.verdict == expected


@given(samples, margins)
def test_a_margin_never_makes_a_claim_harder(values: tuple[float, ...], margin: float) -> None:
    order = [FAILS, INCONCLUSIVE, HOLDS]
    assert order.index(Evidence(values, margin).verdict) >= order.index(Evidence(values).verdict)


@given(samples, st.randoms(use_true_random=False))
def test_the_order_of_seeds_does_not_matter(values: tuple[float, ...], source: object) -> None:
    shuffled = list(values)
    source.shuffle(shuffled)  # type: ignore[attr-defined]
    assert Evidence(tuple(shuffled)).verdict == Evidence(values).verdict


@given(st.floats(0.01, 100), st.integers(3, 8))
def test_the_same_difference_with_every_seed_is_decided(value: float, seeds: int) -> None:
    assert Evidence((value,) * seeds).verdict == HOLDS


@pytest.mark.parametrize(
    ("values", "margin", "verdict"),
    [
        ((1.0, 1.2, 0.9), 0.0, HOLDS),
        ((-1.0, -1.2, -0.9), 0.0, FAILS),
        ((1.0, 1.2, -0.1), 0.0, INCONCLUSIVE),
        ((0.1, 0.1, 9.0), 0.0, INCONCLUSIVE),
        ((0.1, -0.2, 0.2, -0.1, 0.1), 0.8, HOLDS),
        ((-1.5, -1.2, -1.4, -1.3, -1.1), 0.8, FAILS),
    ],
)
def test_examples(values: tuple[float, ...], margin: float, verdict: str) -> None:
    assert Evidence(values, margin).verdict == verdict


@given(st.lists(numbers, min_size=2, max_size=6).map(tuple))
def test_an_inconclusive_claim_names_the_seeds_that_would_decide_it(values: tuple[float, ...]) -> None:
    evidence = Evidence(values)
    if evidence.verdict != INCONCLUSIVE:
        assert evidence.conclusion == evidence.verdict
        return
    count = evidence.deciding_seeds
    assert evidence.conclusion.startswith("inconclusive (")
    if count is None:
        assert "more than 100 seeds" in evidence.conclusion
        return
    spread = statistics.stdev(values)
    assert abs(evidence.mean) > t_quantile(count - 1) * spread / math.sqrt(count)
    assert count > len(values) or len(values) < LEAST_SEEDS


@given(samples)
def test_the_first_rule_is_that_of_the_first_edition(values: tuple[float, ...]) -> None:
    signs = {math.copysign(1, value) if value else 0 for value in values}
    decided = len(values) >= 3 and len(signs) == 1 and 0 not in signs
    if decided:
        decided = abs(statistics.fmean(values)) > 2 * statistics.stdev(values) / math.sqrt(len(values))
    assert (Evidence(values).first_rule != UNDECIDED) == decided


@given(st.lists(st.sampled_from([HOLDS, FAILS, INCONCLUSIVE, NOT_RUN]), min_size=1, max_size=5))
def test_a_claim_of_parts_holds_if_all_do_and_not_if_one_does_not(verdicts: list[str]) -> None:
    assert (overall(verdicts) == HOLDS) == (set(verdicts) == {HOLDS})
    assert (overall(verdicts) == FAILS) == (FAILS in verdicts)
    assert (overall(verdicts) == NOT_RUN) == (set(verdicts) == {NOT_RUN})


def test_a_claim_without_parts_is_not_run() -> None:
    assert overall([]) == NOT_RUN


def test_the_rule_names_its_numbers() -> None:
    for number in ("5 %", "2.13", f"fewer than {LEAST_SEEDS}", "1 %"):
        assert number in RULE
