"""The examples in ``examples/`` and in the README do what they say."""

from __future__ import annotations

import doctest
import importlib
import math
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from selfish_rnn import engine

ROOT = Path(__file__).parents[2]


EXAMPLES: dict[str, tuple[Any, ...]] = {
    "classifier": (2, 20),
    "tagger": (2, 3),
    "forecaster": (2, 3),
    "characters": (2, 2000),
    "own_cell": (2, 3),
    "fine_tuning": (1, "epochs=1", "train_tokens=3000"),
    "with_lightning": (2, 128),
    "two_processes": (2, 5),
}
"""The examples, each with a small setting of its ``main``."""


def test_every_example_is_run_here() -> None:
    others = {"comparison", "ray_tune"}  # what they share, and one that needs Ray
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == EXAMPLES.keys() | others


@pytest.mark.slow
@pytest.mark.skipif(not engine.available(), reason="needs the packed engine")
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_prints_sparse_beside_dense(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if name == "with_lightning":
        pytest.importorskip("lightning")
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    example = importlib.import_module(name)
    try:
        before, *after = example.main(*EXAMPLES[name])
    finally:
        for module in (*EXAMPLES, "comparison"):
            sys.modules.pop(module, None)
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("weights", "seconds", "file, kB", before.name, after[0].name))
    for each in after:
        assert math.isfinite(each.score)
        assert each.seconds > 0
        assert each.weights < 0.25 * before.weights or name == "fine_tuning"
        assert each.file_bytes < before.file_bytes or name == "fine_tuning"


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


@pytest.mark.slow
@pytest.mark.parametrize(("name", "block"), list(python_blocks()))
@pytest.mark.usefixtures("tables_as_before")
def test_python_in_the_documentation_runs(
    name: str, block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for optional in ("lightning", "transformers", "accelerate"):
        if f"import {optional}\n" in block or f"from {optional} " in block:
            pytest.importorskip(optional)
    (tmp_path / "results").symlink_to(ROOT / "results")
    monkeypatch.chdir(tmp_path)  # what an example writes goes with it
    exec(compile(textwrap.dedent(block), name, "exec"), {})


@pytest.mark.parametrize(
    "module",
    [
        "analysis.distance",
        "analysis.flops",
        "analysis.training_flops",
        "analysis.networks",
        "topology.allocation",
        "topology.gates",
        "topology.methods",
        "topology.removal",
        "experiment.settings",
        "optim.triggers",
        "sparsifier.selection",
    ],
)
@pytest.mark.usefixtures("tables_as_before")
def test_docstring_examples(module: str) -> None:
    tested = importlib.import_module(f"selfish_rnn.{module}")
    outcome = doctest.testmod(tested, extraglobs={"torch": torch})
    assert outcome.attempted
    assert not outcome.failed
