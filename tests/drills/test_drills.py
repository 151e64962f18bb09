"""Every drill in a short version; ``run.py`` has them at any length."""

from __future__ import annotations

import operator_drill
import pytest
from drill import Outcome

from selfish_rnn.engine import available


def assert_nothing_failed(outcome: Outcome, tries: int) -> None:
    assert outcome.failures == []
    assert outcome.tried == tries


@pytest.mark.slow
@pytest.mark.skipif(not available(), reason="the packed engine's kernels are not built")
def test_wrong_calls_of_operators_end_no_process() -> None:
    outcome = operator_drill.drill(tries=150, seed=0)
    assert_nothing_failed(outcome, 150)
    assert outcome.kinds["ValueError"] > 30
