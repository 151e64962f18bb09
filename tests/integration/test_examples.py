"""The examples in ``examples/`` and in the README do what they say."""

from __future__ import annotations

import doctest
import importlib
import json
import re
import shutil
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
    "own_cell": (2, 3),
    "characters": (2, 2000),
    "fine_tuning": (1, "epochs=1", "train_tokens=3000"),
    "denoiser": (1, 4, 1),
    "with_lightning": (2, 128),
    "two_processes": (2, 5),
}
"""The examples, each with a small setting of its ``main``."""

NUMBER = re.compile(r"\d[\d,.]*")


def test_every_example_is_run_here() -> None:
    needs_ray = {"ray_tune"}
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == EXAMPLES.keys() | needs_ray


def test_the_list_of_examples_is_complete() -> None:
    listed = re.findall(r"^\| \[(.+?)\]", (ROOT / "examples" / "README.md").read_text(), flags=re.MULTILINE)
    folder = ROOT / "examples"
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    assert set(listed) == files - {"README.md"}


@pytest.mark.slow
@pytest.mark.skipif(not engine.available(), reason="needs the packed engine")
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_prints_the_lines_of_its_docstring(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Every example runs away from the others, and prints what its docstring announces, but for scores and texts."""
    if name == "with_lightning":
        pytest.importorskip("lightning")
    shutil.copy(ROOT / "examples" / f"{name}.py", tmp_path / f"{name}_alone.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    example = importlib.import_module(f"{name}_alone")
    example.main(*EXAMPLES[name])
    printed = [line for line in capfd.readouterr().out.splitlines() if line]
    expected = [line.strip() for line in (example.__doc__ or "").splitlines() if line.startswith("    ")]
    assert expected
    if name != "fine_tuning":  # its vocabulary, and so its weights, follow the text it was given
        weights = [re.findall(r"([\d,]+) weights", line) for line in printed]
        assert weights == [re.findall(r"([\d,]+) weights", line) for line in expected]
    for line, model in zip(printed, expected, strict=True):
        assert NUMBER.split(line)[0] == NUMBER.split(model)[0]


@pytest.mark.slow
@pytest.mark.skipif(not engine.available(), reason="needs the packed engine")
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    cells = json.loads((ROOT / "examples" / "tour.ipynb").read_text())["cells"]
    source = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    names: dict[str, Any] = {}
    try:
        exec(compile(source.replace("range(60)", "range(2)"), "tour.ipynb", "exec"), names)
    finally:
        torch.set_num_threads(threads)
    assert names["after"] == pytest.approx(names["before"], abs=0.1)
    assert names["size"] < 100_000
    assert all(not cell.get("outputs") for cell in cells)


def test_the_classifier_needs_fewer_than_ten_added_lines() -> None:
    source = (ROOT / "examples" / "classifier.py").read_text()
    added = [line for line in source.splitlines() if line.endswith("# +")]
    assert 0 < len(added) < 10


SESSIONS = ("tutorial.md", "streaming.md")
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
        "experiment.optimizers",
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
