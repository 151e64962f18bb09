from __future__ import annotations

import json
import math
from collections.abc import Callable

import pytest
from optim_cases import golden

from selfish_rnn.optim import EpochTrigger, NonMonotoneTrigger, Trigger

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


def test_epochs_that_are_not_below_the_limit_do_not_count():
    limited, plain = NonMonotoneTrigger(1, below=5.0), NonMonotoneTrigger(1)
    losses = [6.0, 5.0, 7.0, math.inf, 4.9, 5.5, 4.8, 4.7, 4.85]
    assert [limited.observe(loss) for loss in losses] == [False] * 8 + [True]
    assert [plain.observe(loss) for loss in losses if loss < 5] == [False] * 3 + [True]
    assert limited.state_dict() == plain.state_dict()


def test_without_a_limit_an_infinite_loss_counts():
    trigger = NonMonotoneTrigger(0)
    assert [trigger.observe(loss) for loss in (1.0, math.inf)] == [False, True]


@pytest.mark.parametrize("epochs", [1, 3])
def test_an_epoch_trigger_fires_once_after_its_epochs(epochs: int):
    trigger = EpochTrigger(epochs)
    assert [trigger.observe(loss) for loss in (3.0, math.inf, 5.0, 1.0)] == [each == epochs for each in range(1, 5)]
    assert trigger.fired


@pytest.mark.parametrize("make", [lambda: NonMonotoneTrigger(1, below=9.0), lambda: EpochTrigger(3)])
@pytest.mark.parametrize("stop", range(6))
def test_a_loaded_trigger_goes_on_as_the_saved_one(make: Callable[[], Trigger], stop: int):
    losses = [9.5, 3.0, 2.0, 2.5, 2.6]
    whole, before, after = make(), make(), make()
    expected = [whole.observe(loss) for loss in losses]
    fires = [before.observe(loss) for loss in losses[:stop]]
    after.load_state_dict(json.loads(json.dumps(before.state_dict())))
    assert fires + [after.observe(loss) for loss in losses[stop:]] == expected
    assert True in expected
