from __future__ import annotations

import itertools

import numpy as np
import pytest
from topology_cases import golden_cases

from selfish_rnn.topology import GMP, SCHEDULES
from selfish_rnn.topology.allocation import uniform
from selfish_rnn.topology.schedules import PRUNINGS, cosine, linear


@pytest.mark.parametrize("case", golden_cases("cosine", 3))
def test_cosine_golden(case: dict[str, np.ndarray]) -> None:
    """The released code has a floor of 0.005 and goes on past the period."""
    period, initial = int(case["T_max"]), float(case["p0"])
    rates = [cosine(step / period, initial, floor=0.005) for step in range(len(case["rate"]))]
    assert rates == pytest.approx(case["rate"].tolist(), rel=0, abs=1e-9)


@pytest.mark.parametrize("name", ["cosine", "linear"])
def test_decays_from_the_initial_rate_to_exactly_zero(name: str) -> None:
    rates = [SCHEDULES[name].rate(step / 10, 0.7) for step in range(11)]
    assert rates[0] == 0.7
    assert rates[5] == pytest.approx(0.35)
    assert rates[-1] == 0
    assert rates == sorted(rates, reverse=True)


def test_linear_floor() -> None:
    assert linear(1.0, 0.5, floor=0.1) == pytest.approx(0.1)


def test_constant_stays() -> None:
    assert {SCHEDULES["constant"].rate(step / 4, 0.3) for step in range(5)} == {0.3}


SHAPES = [(10, 6), (20, 6), (20, 5)]


@pytest.mark.parametrize("planned", range(2, 13))
def test_a_short_run_is_at_its_sparsity_by_its_last_evaluation(planned: int) -> None:
    """The last of the planned prunings comes after the last evaluation, so the one before it has to reach the end."""
    counts = [GMP.counts(SHAPES, 0.7, done, planned) for done in range(planned + 1)]
    final = uniform(SHAPES, 1 - 0.7)
    assert counts[0] == [60, 120, 100]
    assert counts[planned - 1] == counts[planned] == final
    for before, after in itertools.pairwise(counts):
        assert all(a >= b for a, b in zip(before, after, strict=True))


def test_one_pruning_reaches_the_sparsity_at_once() -> None:
    assert GMP.counts(SHAPES, 0.7, 0, 1) == [60, 120, 100]
    assert GMP.counts(SHAPES, 0.7, 1, 1) == uniform(SHAPES, 1 - 0.7)


def test_pruning_takes_place_between_30_and_90_percent_of_the_run() -> None:
    sparsities = [PRUNINGS["gradual"].sparsity(progress, 0.8) for progress in (0, 0.3, 0.31, 0.6, 0.9, 1)]
    assert sparsities == pytest.approx([0, 0, 0.8 * (1 - (59 / 60) ** 3), 0.7, 0.8, 0.8])
