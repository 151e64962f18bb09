"""Plain words: the first words of docstrings and the names of variables, package by package.

A docstring starts with a verb or a noun, and a variable is named by a noun. Whoever reads "What there is" or ``found``
has to look up what they stand for.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import selfish_rnn

SOURCE = Path(selfish_rnn.__file__).parent
OPENER = re.compile(r"(What|Whether|How|Which|Who|Of|Those|That|As many)\b")
NAMES = frozenset(
    ["drawn", "each", "found", "given", "held", "kept", "made", "one", "other", "own", "rest", "told", "wanted"]
)
MOST = 0.02
"""Share of docstrings that may start with a question word; some are right."""


class Words(NamedTuple):
    """Docstrings and variables of a package."""

    docstrings: int
    openers: list[str]
    names: list[str]


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the docstrings of modules, classes, functions and attributes, with their lines."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        before: ast.stmt | None = None
        for statement in node.body:
            documents = before is None or isinstance(before, ast.Assign | ast.AnnAssign)
            match statement:
                case ast.Expr(value=ast.Constant(value=str(text))) if documents:
                    yield statement.lineno, text.strip()
            before = statement


def bindings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the names that are bound, with their lines.

    Parameters of special methods such as ``__eq__`` are free, and so are declared fields, which may stand in files.
    """
    fields = {
        id(statement.target)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for statement in node.body
        if isinstance(statement, ast.AnnAssign)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in fields:
            yield node.lineno, node.id
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            if not (isinstance(node, ast.FunctionDef) and re.fullmatch(r"__\w+__", node.name)):
                arguments = node.args
                every = [
                    *arguments.posonlyargs,
                    *arguments.args,
                    *arguments.kwonlyargs,
                    arguments.vararg,
                    arguments.kwarg,
                ]
                yield from ((argument.lineno, argument.arg) for argument in every if argument is not None)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            yield node.lineno, node.name


def words(package: str) -> Words:
    """Read a package, or a module at the top."""
    path = SOURCE / package
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    count, openers, names = 0, [], []
    for file in files:
        tree, place = ast.parse(file.read_text(encoding="utf-8")), file.relative_to(SOURCE)
        for line, text in docstrings(tree):
            count += 1
            if OPENER.match(text):
                openers.append(f"{place}:{line} {text[:60]!r}")
        names += [f"{place}:{line} {name}" for line, name in bindings(tree) if name in NAMES]
    return Words(count, openers, names)


PACKAGES = sorted(
    path.name
    for path in SOURCE.iterdir()
    if path.suffix == ".py" or (path.is_dir() and any(path.glob("*.py")) and path.name != "__pycache__")
)


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_and_names_are_plain(package: str) -> None:
    result = words(package)
    assert len(result.openers) <= MOST * result.docstrings, "\n".join(result.openers)
    assert not result.names, "\n".join(result.names)


def test_the_check_sees_both() -> None:
    tree = ast.parse('def f(found, *rest):\n    """Whether."""\nx = 1\n"""What."""\n[each for each in x]\n')
    assert {text for _, text in docstrings(tree)} == {"Whether.", "What."}
    assert {name for _, name in bindings(tree)} == {"found", "rest", "x", "each"}
