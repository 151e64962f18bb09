"""Turns, limits, ratios and baselines; no time is asserted."""

from __future__ import annotations

from typing import Any

import pytest

from selfish_rnn.bench import measurements
from selfish_rnn.bench.measurements import WARM_UPS, Row, compared, completed, grouped, interleaved


@pytest.fixture(autouse=True)
def _single_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurements, "SHORTEST", 0.0)


def test_everyone_has_a_turn_in_every_round_and_the_order_rotates():
    turns = list[str]()
    seconds = interleaved({name: lambda name=name: turns.append(name) for name in "abc"}, rounds=4)
    assert "".join(turns) == "a" * WARM_UPS + "b" * WARM_UPS + "c" * WARM_UPS + "abc" + "bca" + "cab" + "abc"
    assert {name: len(local) for name, local in seconds.items()} == {"a": 4, "b": 4, "c": 4}


def test_a_limit_leaves_at_least_one_round():
    rounds = list[int]()
    seconds = interleaved({"a": lambda: None, "b": lambda: None}, rounds=50, limit=1e-9, progress=rounds.append)
    assert [len(local) for local in seconds.values()] == [1, 1]
    assert rounds == [0]


def test_short_calls_are_timed_several_at_a_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(measurements, "SHORTEST", 1e-3)
    calls = list[int]()
    interleaved({"a": lambda: calls.append(1)}, rounds=1)
    assert len(calls) > WARM_UPS + 2, "one more goes before, untimed"


def test_ratios_are_of_the_same_round():
    result = compared({"dense": [2.0, 4.0, 6.0], "packed": [1.0, 1.0, 2.0]}, "dense")
    assert result["packed"]["ratios"] == [2, 4, 3]
    assert (result["packed"]["lowest"], result["packed"]["ratio"], result["packed"]["highest"]) == (2, 3, 4)
    assert result["packed"]["median_ms"] == 1000
    assert result["dense"]["ratio"] == 1


def row(kind: str, sparsity: float, engines: dict[str, dict[str, Any]]) -> Row:
    return {"kind": kind, "network": "lstm", "hidden": 20, "sparsity": sparsity, "engines": engines}


def timed(kind: str, sparsity: float, **seconds: float) -> Row:
    engines = {engine.replace("_", "-"): {"seconds": [local, 2 * local]} for engine, local in seconds.items()}
    return row(kind, sparsity, engines)


@pytest.mark.parametrize(
    ("first", "second", "baseline"),
    [
        ({"dense": 3.0, "no_onednn": 1.0}, {"dense": 3.0, "no_onednn": 4.0}, "no-onednn"),
        ({"dense": 3.0, "no_onednn": 1.0}, {"dense": 3.0, "no_onednn": 6.0}, "dense"),
        ({"dense": 3.0}, {"dense": 3.0, "no_onednn": 1.0}, "dense"),
    ],
)
def test_the_baseline_of_a_group_is_its_fastest_dense_torch(
    first: dict[str, float], second: dict[str, float], baseline: str
):
    rows = [timed("inference", 0.5, **first, packed=0.5), timed("inference", 0.9, **second, packed=0.25)]
    result = completed(rows)
    assert completed(result) == result, "what is saved says all that was measured"
    for saved, local in zip(result, (0.5, 0.25), strict=True):
        assert saved["baseline"] == baseline
        assert saved["engines"][baseline]["ratios"] == [1, 1]
        assert saved["engines"]["packed"]["seconds"] == [local, 2 * local]
        assert saved["engines"]["packed"]["ratio"] == saved["engines"][baseline]["seconds"][0] / local


def test_rows_of_one_kind_network_and_size_are_a_group():
    memory = row("memory", 0.5, {"dense": {"training": 2.0, "process": 3.0, "imports": 1.0}})
    rows = [timed("step", 0.5, dense=1.0), memory, timed("step", 0.9, dense=1.0)]
    assert grouped(rows) == [rows[::2], [memory]]
    assert completed([memory]) == [{**memory, "ideal": 2, "baseline": None}]
