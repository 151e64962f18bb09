from __future__ import annotations

import math

import pytest
from optim_cases import golden

from selfish_rnn.optim import NonMonotoneTrigger

ROWS = golden("ntasgd_trigger")


@pytest.mark.parametrize("row", range(len(ROWS["nonmono"])))
def test_golden_trigger_epoch(row: int) -> None:
    losses = [loss for loss in ROWS["losses"][row].tolist() if not math.isnan(loss)]
    trigger = NonMonotoneTrigger(int(ROWS["nonmono"][row]))
    fired = [epoch for epoch, loss in enumerate(losses, start=1) if trigger.observe(loss)]
    expected = int(ROWS["trigger_epoch"][row])
    assert fired == ([] if expected == -1 else [expected])
    assert trigger.fired == (expected != -1)


def test_earliest_epoch_with_the_paper_interval_is_the_seventh() -> None:
    trigger = NonMonotoneTrigger(5)
    assert [trigger.observe(epoch) for epoch in range(1, 9)] == [False] * 6 + [True, False]


def test_equal_to_the_best_is_not_worse() -> None:
    trigger = NonMonotoneTrigger(0)
    assert [trigger.observe(loss) for loss in (2.0, 2.0, 2.0, 2.1)] == [False, False, False, True]


def test_nan_is_refused_and_not_remembered() -> None:
    trigger = NonMonotoneTrigger(0)
    trigger.observe(1.0)
    with pytest.raises(ValueError, match="NaN"):
        trigger.observe(math.nan)
    assert trigger.losses == [1.0]
