"""The masked engine on a device that is not the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from device_scenarios import SCENARIOS

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def outcome() -> dict[str, Any]:
    """Run all scenarios in a process of their own: a device stays registered as long as the process lives."""
    run = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("device_scenarios.py"))],
        capture_output=True,
        text=True,
        timeout=900,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert run.returncode == 0, run.stderr[-4000:]
    result: dict[str, Any] = json.loads(run.stdout)
    return result


@pytest.mark.parametrize("name", SCENARIOS)
def test_on_an_emulated_device(name: str, outcome: dict[str, Any]) -> None:
    assert name in outcome["ran"]
    assert name not in outcome["errors"], outcome["errors"][name]


def test_limits_say_how_often_a_rewiring_waits(outcome: dict[str, Any]) -> None:
    assert "rewiring costs" not in outcome["errors"], outcome["errors"]["rewiring costs"]
    rows = [
        [cell.strip() for cell in line.strip("| ").split("|")]
        for line in (ROOT / "docs" / "limits.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("| `")
    ]
    documented = {
        method.strip("`"): [int(number) for number in numbers]
        for methods, *numbers in rows
        for method in methods.split(", ")
    }
    measured = {
        method: [*(cost[kind][0] for kind in ("SGD", "Adam", "SNTASGD")), cost["SGD"][1]]
        for method, cost in outcome["costs"].items()
    }
    assert documented == measured
    assert all(len({writes for _, writes in cost.values()}) == 1 for cost in outcome["costs"].values())
