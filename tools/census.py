"""Count files, lines, imports and the words of docstrings and variables of a source tree.

python tools/census.py                      # this tree
python tools/census.py --tree ../earlier    # another one, for example of `git archive`
python tools/census.py --names training     # the places of discouraged names in one package
"""

from __future__ import annotations

import argparse
import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

PACKAGE = "selfish_rnn"
TRAIN = f"{PACKAGE}.cli.training"
COMMANDS = f"{PACKAGE}.cli.app"
"""Module that registers all commands; the imports of the others are not those of `train`."""

OPENERS = re.compile(r"\s*(?:What|Whether|How|Which|Who|Where|Of|Those|That|As many)\b")
NAMES = frozenset(
    ("drawn", "each", "found", "given", "held", "kept", "made", "one", "other", "own", "rest", "told", "wanted")
)
"""Participles and pronouns that are no names for a variable."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, default=Path(__file__).parents[1], help="root of a source tree")
    parser.add_argument("--names", metavar="PACKAGE", help="list the discouraged names of a package")
    arguments = parser.parse_args()
    root = arguments.tree / "src" / PACKAGE
    modules = {_module(path, root): path for path in sorted(root.rglob("*.py"))}
    if arguments.names is not None:
        _list_names({name: path for name, path in modules.items() if name.split(".")[1:2] == [arguments.names]})
        return
    _count_packages(root, modules)
    _count_imports(modules)
    _count_words(modules)


def _module(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join([PACKAGE, *(part for part in parts if part != "__init__")])


def _lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def _count_packages(root: Path, modules: dict[str, Path]) -> None:
    python = [path for path in modules.values() if _lines(path)]
    native = sorted(path for suffix in ("*.hpp", "*.cpp", "*.h") for path in root.rglob(suffix))
    folders = {path.parent for path in (*python, *native)}
    print(f"Python files {len(python)}, C++ files {len(native)}, folders {len(folders)}")
    print(f"longest Python file {max(map(_lines, python))} lines")
    counts: dict[str, list[int]] = {}
    for column, paths in enumerate((python, native)):
        for path in paths:
            inside = path.relative_to(root)
            row = counts.setdefault(inside.parts[0] if len(inside.parts) > 1 else ".", [0, 0, 0])
            row[0] += 1
            row[column + 1] += _lines(path)
    print(f"{'package':14} {'files':>5} {'Python':>7} {'C++':>6}")
    for package, row in sorted(counts.items()):
        print(f"{package:14} {row[0]:5} {row[1]:7} {row[2]:6}")
    total = [sum(column) for column in zip(*counts.values(), strict=True)]
    print(f"{'all':14} {total[0]:5} {total[1]:7} {total[2]:6}")


def _count_imports(modules: dict[str, Path]) -> None:
    """Print the number of modules that `train` imports, those inside functions included."""
    reached: set[str] = set()
    queue = [TRAIN]
    while queue:
        name = queue.pop()
        if name in modules and name not in reached and name != COMMANDS:
            reached.add(name)
            queue += _imports(name, modules)
    nonempty = [modules[name] for name in reached if _lines(modules[name])]
    print(f"train imports {len(nonempty)} modules, {sum(map(_lines, nonempty)):,} lines")


def _imports(name: str, modules: dict[str, Path]) -> Iterator[str]:
    """Yield the modules that a module names in its imports, except those for type checkers only."""
    tree = ast.parse(modules[name].read_text(encoding="utf-8"))
    blocks = (node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
    unused = {id(node) for block in blocks for statement in block.body for node in ast.walk(statement)}
    # What the __init__ of a package imports inside functions is imported on demand only.
    nodes = tree.body if modules[name].name == "__init__.py" else list(ast.walk(tree))
    for node in nodes:
        if id(node) in unused:
            continue
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            targets = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        for target in targets:
            parts = target.split(".")
            # Importing a module imports its packages; the names of the package itself are imported on demand.
            yield from (".".join(parts[:length]) for length in range(2, len(parts) + 1))


def _count_words(modules: dict[str, Path]) -> None:
    docstrings, bindings, comments, code = [], Counter[str](), 0, 0
    for path in modules.values():
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        docstrings += list(_docstrings(tree))
        bindings.update(name for name, _ in _bindings(tree))
        comments += len(re.findall(r"^\s*#(?!!)", text, re.MULTILINE))
        code += sum(bool(line.strip()) for line in text.splitlines())
    openers = sum(bool(OPENERS.match(text)) for text in docstrings)
    discouraged = sum(bindings[name] for name in NAMES)
    print(f"docstrings {len(docstrings):,}, of which {openers} ({openers / len(docstrings):.1%}) open with a clause")
    print(f"bindings {bindings.total():,}, of which {discouraged} ({discouraged / bindings.total():.1%}) discouraged")
    print(f"comment lines {comments} ({comments / code:.1%})")


def _docstrings(tree: ast.AST) -> Iterator[str]:
    """Yield every string that stands alone: docstrings of modules, classes, functions and attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value


def _bindings(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the name and line of every variable, parameter and attribute that is bound."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr.lstrip("_"), node.lineno


def _list_names(modules: dict[str, Path]) -> None:
    for path in modules.values():
        for name, line in _bindings(ast.parse(path.read_text(encoding="utf-8"))):
            if name in NAMES:
                print(f"{path}:{line}: {name}")


if __name__ == "__main__":
    main()
