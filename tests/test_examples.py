"""The examples in ``examples/`` and in the README do what they say."""

from __future__ import annotations

import doctest
import importlib
import re
import runpy
import textwrap
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]


def test_the_classifier_learns_with_a_tenth_of_its_weights() -> None:
    example = runpy.run_path(str(ROOT / "examples" / "classifier.py"))
    accuracy, sparsifier = example["train"]()
    assert accuracy > 0.8
    assert sparsifier.active_weights == round(0.1 * sparsifier.total_weights)


def test_the_classifier_needs_fewer_than_ten_added_lines() -> None:
    source = (ROOT / "examples" / "classifier.py").read_text()
    added = [line for line in source.splitlines() if line.endswith("# +")]
    assert 0 < len(added) < 10
    assert all(("parsifier" in line) == line.endswith("# +") for line in source.split("def train")[1].splitlines()[:16])


def python_blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("block", python_blocks(), ids=lambda block: block.strip().splitlines()[0])
def test_python_in_the_readme_runs(block: str) -> None:
    exec(compile(textwrap.dedent(block), "README.md", "exec"), {})


@pytest.mark.parametrize(
    "module",
    ["topology.apportionment", "topology.gates", "topology.methods", "topology.removal", "optim.trigger", "cells"],
)
def test_docstring_examples(module: str) -> None:
    tested = importlib.import_module(f"selfish_rnn.{module}")
    outcome = doctest.testmod(tested, extraglobs={"torch": torch})
    assert outcome.attempted
    assert not outcome.failed
