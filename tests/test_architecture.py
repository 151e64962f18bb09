"""Arrows point down only: what each part of the package may know of the others."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import selfish_rnn

PACKAGE = "selfish_rnn"
SOURCE = Path(selfish_rnn.__file__).parent

BINDING = {"sparsifier", "sparse_weight", "binding", "signals", "selection", "cells", "optimizer_state"}
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "topology": set(),
    "optim": set(),
    **dict.fromkeys(BINDING, BINDING | {"topology", "errors"}),
    "intrinsic": BINDING | {"topology", "errors", "models"},
    "engine": BINDING | {"topology", "errors"},
    "models": {"topology", "cells", "errors", "engine"},
    "corpora": {"errors"},
}
"""Of the lower parts, besides themselves. What is not here may use everything but the parts above it."""

ABOVE = {"training": {"experiments", "cli"}, "analysis": {"experiments", "cli"}, "experiments": {"cli"}}


def part_of(module: str) -> str:
    """``selfish_rnn.topology.gates`` belongs to ``topology``, the package's own ``__init__`` to ``selfish_rnn``."""
    return module.split(".")[1] if "." in module else PACKAGE


def imported_modules(path: Path, root: Path) -> Iterator[str]:
    """The modules of the package that a file imports, wherever in the file and in whichever way."""
    package = (PACKAGE, *path.relative_to(root).parent.parts)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == PACKAGE)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*start, *([node.module] if node.module else [])])
            if base.split(".")[0] != PACKAGE:
                continue
            for alias in node.names:
                inside = root.joinpath(*base.split(".")[1:], alias.name)
                yield f"{base}.{alias.name}" if inside.is_dir() or inside.with_suffix(".py").exists() else base


def files_by_part(root: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(root.rglob("*.py")):
        yield part_of(".".join([PACKAGE, *path.relative_to(root).with_suffix("").parts])), path


def violations(root: Path) -> list[str]:
    found = []
    for part, path in files_by_part(root):
        if part == "__init__":
            continue
        for module in imported_modules(path, root):
            other = part_of(module)
            if part in MAY_IMPORT:
                allowed = other == part or other in MAY_IMPORT[part]
            else:
                allowed = other == part or other not in ABOVE.get(part, set())
            if not allowed:
                found.append(f"{path.relative_to(root)} imports {module}")
    return found


def test_the_package_keeps_to_its_map() -> None:
    assert violations(SOURCE) == []


def test_nobody_imports_the_command_line() -> None:
    importers = [
        path.name for part, path in files_by_part(SOURCE) if "cli" in map(part_of, imported_modules(path, SOURCE))
    ]
    assert [name for name in importers if name != "__main__.py"] == []


def test_every_lower_part_exists() -> None:
    """A renamed part would otherwise escape its rule; the engine comes later."""
    assert set(MAY_IMPORT) - {"engine"} <= {part for part, _ in files_by_part(SOURCE)}


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("topology/x.py", "from selfish_rnn.sparsifier import Sparsifier"),
        ("topology/x.py", "from ..errors import UserError"),
        ("topology/x.py", "from selfish_rnn import Sparsifier"),
        ("optim/x.py", "def f():\n    import selfish_rnn.topology.bits"),
        ("sparsifier.py", "from .optim import SNTASGD"),
        ("models/x.py", "from selfish_rnn.training import loop"),
        ("corpora/x.py", "from selfish_rnn.training.files import write_atomically"),
        ("training/x.py", "from selfish_rnn import experiments"),
        ("experiments/x.py", "from .. import cli"),
    ],
)
def test_a_wrong_import_is_found(tmp_path: Path, file: str, line: str) -> None:
    for name in ("experiments/__init__.py", "cli.py", file):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / file).write_text(line)
    assert len(violations(tmp_path)) == 1


@pytest.mark.parametrize(
    ("file", "line"),
    [
        (
            "topology/x.py",
            "import torch\nfrom selfish_rnn.topology.gates import GateLayout\nfrom .gates import GateLayout",
        ),
        ("sparsifier.py", "from selfish_rnn.topology import Topology\nfrom .cells import register_cell"),
        ("training/x.py", "from selfish_rnn.models import StackedRNN\nfrom selfish_rnn import __version__"),
    ],
)
def test_a_right_import_is_not(tmp_path: Path, file: str, line: str) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(line)
    assert violations(tmp_path) == []
