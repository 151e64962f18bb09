"""A room may import the rooms above it in one list, never those below."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import selfish_rnn

PACKAGE = "selfish_rnn"
SOURCE = Path(selfish_rnn.__file__).parent

ROOMS = (
    "errors",
    "files",
    "system",
    "text",
    "topology",
    "sparsifier",
    "optim",
    "engine",
    "runtime",
    "models",
    "corpora",
    "experiment",
    "training",
    "runs",
    "analysis",
    "scheduling",
    "reproduce",
    "integrations",
    "bench",
    "cli",
)
"""From the ground up."""


def room_of(module: str) -> str:
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


def files_by_room(root: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(root.rglob("*.py")):
        room = room_of(".".join([PACKAGE, *path.relative_to(root).with_suffix("").parts]))
        if not room.startswith("__"):
            yield room, path


def violations(root: Path) -> list[str]:
    found = []
    for room, path in files_by_room(root):
        for module in imported_modules(path, root):
            other = room_of(module)
            if other == PACKAGE:
                names = [alias.name for alias in _names_imported_from_the_package(path)]
                if any(name != "__version__" and not name.startswith("_") for name in names):
                    found.append(f"{path.relative_to(root)} imports {', '.join(names)} from the front door")
            elif ROOMS.index(other) > ROOMS.index(room):
                found.append(f"{path.relative_to(root)} imports {module}")
    return found


def _names_imported_from_the_package(path: Path) -> list[ast.alias]:
    return [
        alias
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module == PACKAGE
        for alias in node.names
        if alias.name not in ROOMS
    ]


def test_the_package_keeps_to_its_map() -> None:
    assert violations(SOURCE) == []


def test_the_list_names_every_room_and_no_other() -> None:
    assert {room for room, _ in files_by_room(SOURCE)} == set(ROOMS)


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("topology/x.py", "from selfish_rnn.sparsifier import Sparsifier"),
        ("topology/x.py", "from selfish_rnn import Sparsifier"),
        ("sparsifier/x.py", "def f():\n    import selfish_rnn.optim.averaged"),
        ("models/x.py", "from selfish_rnn.training import loop"),
        ("training/x.py", "from selfish_rnn import cli"),
        ("experiment/x.py", "from .. import cli"),
    ],
)
def test_a_wrong_import_is_found(tmp_path: Path, file: str, line: str) -> None:
    for name in ("runs/__init__.py", "cli/__init__.py", file):
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
        ("corpora/x.py", "from selfish_rnn.files import write_atomically\nfrom ..errors import UserError"),
        ("training/x.py", "from selfish_rnn.models import StackedRNN\nfrom selfish_rnn import __version__"),
    ],
)
def test_a_right_import_is_not(tmp_path: Path, file: str, line: str) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(line)
    assert violations(tmp_path) == []
