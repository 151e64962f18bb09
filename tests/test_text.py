"""Numbers and tables as people read them."""

from __future__ import annotations

import pytest

from selfish_rnn.text import aligned, counted, duration, spread


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (185, "3 min 05 s"),
        (3599.7, "1 h 00 min"),
        (7830, "2 h 10 min"),
        (360000, "100 h 00 min"),
    ],
)
def test_durations_as_a_person_says_them(seconds: float, text: str):
    assert duration(seconds) == text


def test_a_mean_has_its_spread_where_there_are_several_values() -> None:
    assert spread([71.6, 71.8]) == "71.70 ± 0.14"
    assert spread([71.652], digits=1) == "71.7"
    assert (spread([]), spread([], none="nothing")) == ("-", "nothing")


def test_a_noun_follows_its_number() -> None:
    assert [counted(number, "seed") for number in (0, 1, 2)] == ["0 seeds", "1 seed", "2 seeds"]


def test_columns_stand_one_below_the_other() -> None:
    assert aligned([("matrix", "n", "x"), ("a", "1234", "")], right=[1]) == "matrix     n  x\na       1234"
