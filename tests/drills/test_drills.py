"""Every drill in a short version; ``run.py`` has them at any length."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import corpus_drill
import file_drill
import kill_drill
import operator_drill
import pytest
import setting_drill
import sweep_drill
from drill import Outcome

from selfish_rnn.engine import available


def assert_nothing_failed(outcome: Outcome, tries: int) -> None:
    assert outcome.failures == []
    assert outcome.tried == tries


@pytest.mark.slow
@pytest.mark.parametrize(
    ("drill", "tries"),
    [
        (kill_drill.kill_drill, 8),
        (kill_drill.signal_drill, 6),
        (kill_drill.disk_drill, 2),
        (file_drill.drill, 25),
        (setting_drill.drill, 300),
        (corpus_drill.drill, 20),
        (sweep_drill.drill, 4),
    ],
    ids=["kill", "signal", "disk", "files", "settings", "corpora", "sweep"],
)
def test_nothing_fails_in_a_short_drill(drill: Callable[[int, int], Outcome], tries: int) -> None:
    assert_nothing_failed(drill(tries, 0), tries)


@pytest.mark.slow
@pytest.mark.skipif(not available(), reason="the packed engine's kernels are not built")
def test_wrong_calls_of_operators_end_no_process() -> None:
    outcome = operator_drill.drill(tries=150, seed=0)
    assert_nothing_failed(outcome, 150)
    assert outcome.kinds["ValueError"] > 30


# What the documentation says

TOP = Path(__file__).parents[2]
PROMISES = (TOP / "docs" / "reliability.md").read_text()


def test_the_documentation_says_what_the_long_drills_came_to() -> None:
    rows = re.findall(r"^\| ([\w-]+)[^|]*\| ([\d,]+) \| (\d+) \|", PROMISES, re.MULTILINE)
    records = {path.stem: json.loads(path.read_text()) for path in (TOP / "results" / "drills").glob("*.json")}
    told = {name: (int(tried.replace(",", "")), int(failed)) for name, tried, failed in rows}
    assert told == {name: (record["tried"], record["failed"]) for name, record in records.items()}


def test_the_tests_that_the_page_names_are_there() -> None:
    assert all((TOP / path).exists() for path in re.findall(r"`(tests/[\w/.]+)`", PROMISES))
