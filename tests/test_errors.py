"""Errors for the person at the keyboard."""

from __future__ import annotations

import pytest

from selfish_rnn.errors import UserError, nearest, unknown
from selfish_rnn.models import StackedRNN


def test_what_a_model_refuses_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="hidden must be at least 1") as caught:
        StackedRNN(10, hidden=0)
    assert isinstance(caught.value, UserError)


def test_an_unknown_name_is_told_with_the_nearest_and_all_known_ones() -> None:
    assert unknown("method", "st", ["set", "dsr"]) == "unknown method 'st' (did you mean 'set'?); known are set, dsr"
    assert nearest("xyzzy", ["set", "dsr"]) == ""
