"""Turns, ratios and limits; no time is asserted."""

from __future__ import annotations

import pytest

from selfish_rnn.bench import timing
from selfish_rnn.bench.timing import WARM_UPS, compared, interleaved


@pytest.fixture(autouse=True)
def _single_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "SHORTEST", 0.0)


def test_everyone_has_a_turn_in_every_round_and_the_order_rotates():
    turns = list[str]()
    seconds = interleaved({name: lambda name=name: turns.append(name) for name in "abc"}, rounds=4)
    assert "".join(turns) == "a" * WARM_UPS + "b" * WARM_UPS + "c" * WARM_UPS + "abc" + "bca" + "cab" + "abc"
    assert {name: len(own) for name, own in seconds.items()} == {"a": 4, "b": 4, "c": 4}


def test_a_limit_leaves_at_least_one_round():
    rounds = list[int]()
    seconds = interleaved({"a": lambda: None, "b": lambda: None}, rounds=50, limit=1e-9, told=rounds.append)
    assert [len(own) for own in seconds.values()] == [1, 1]
    assert rounds == [0]


def test_short_calls_are_timed_several_at_a_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(timing, "SHORTEST", 1e-3)
    calls = list[int]()
    interleaved({"a": lambda: calls.append(1)}, rounds=1)
    assert len(calls) > WARM_UPS + 1


def test_ratios_are_of_the_same_round():
    found = compared({"dense": [2.0, 4.0, 6.0], "packed": [1.0, 1.0, 2.0]}, "dense")
    assert found["packed"]["ratios"] == [2, 4, 3]
    assert (found["packed"]["lowest"], found["packed"]["ratio"], found["packed"]["highest"]) == (2, 3, 4)
    assert found["packed"]["median_ms"] == 1000
    assert found["dense"]["ratio"] == 1
