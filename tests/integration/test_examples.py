"""The examples in ``examples/`` and in the README do what they say."""

from __future__ import annotations

import doctest
import importlib
import re
import runpy
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_classifier_learns_with_a_tenth_of_its_weights() -> None:
    example = runpy.run_path(str(ROOT / "examples" / "classifier.py"))
    accuracy, sparsifier = example["train"]()
    assert accuracy > 0.8
    assert sparsifier.active_weights == round(0.1 * sparsifier.total_weights)


def test_the_classifier_needs_fewer_than_ten_added_lines() -> None:
    source = (ROOT / "examples" / "classifier.py").read_text()
    added = [line for line in source.splitlines() if line.endswith("# +")]
    assert 0 < len(added) < 10


SESSIONS = ("tutorial.md",)
"""Pages whose blocks go on from each other."""


def python_blocks() -> Iterator[tuple[str, str]]:
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        blocks = re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)
        for block in ["\n".join(blocks)] if page.name in SESSIONS else blocks:
            yield page.name, block


@pytest.mark.parametrize(("name", "block"), python_blocks())
@pytest.mark.usefixtures("tables_as_before")
def test_python_in_the_documentation_runs(
    name: str, block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "results").symlink_to(ROOT / "results")
    monkeypatch.chdir(tmp_path)  # what an example writes goes with it
    exec(compile(textwrap.dedent(block), name, "exec"), {})


@pytest.mark.parametrize(
    "module",
    [
        "analysis.distance",
        "analysis.flops.counting",
        "analysis.flops.training",
        "analysis.gates",
        "topology.allocation",
        "topology.gates",
        "topology.methods",
        "topology.removal",
        "optim.averaged",
        "sparsifier.registry",
    ],
)
@pytest.mark.usefixtures("tables_as_before")
def test_docstring_examples(module: str) -> None:
    tested = importlib.import_module(f"selfish_rnn.{module}")
    outcome = doctest.testmod(tested, extraglobs={"torch": torch})
    assert outcome.attempted
    assert not outcome.failed
