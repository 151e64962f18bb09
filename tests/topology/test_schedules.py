from __future__ import annotations

import numpy as np
import pytest
from topology_cases import golden_cases

from selfish_rnn.topology import SCHEDULES
from selfish_rnn.topology.schedules import cosine, linear


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
