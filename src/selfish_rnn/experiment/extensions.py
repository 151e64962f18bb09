"""Methods of your own: from files that the command line imports, and from installed packages."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from selfish_rnn.errors import UserError

# The command line reads its options before it imports torch, so the functions that need methods import them.
if TYPE_CHECKING:
    from selfish_rnn.topology import Method

IMPORTS = "SELFISH_RNN_IMPORT"
"""Environment variable with the files to import. Processes that a command starts inherit it."""

ENTRY_POINTS = "selfish_rnn.methods"
"""Entry point group of packages. Each entry point names a :class:`~selfish_rnn.Method`, or a module that registers."""


def request_imports(files: Sequence[str]) -> None:
    """Let this process and those that it starts import Python files before they read settings."""
    paths = requested_imports()
    for file in files:
        path = Path(file).resolve()
        if not path.is_file():
            raise UserError(f"--import {file}: there is no such file")
        if path not in paths:
            paths.append(path)
    if paths:
        os.environ[IMPORTS] = os.pathsep.join(map(str, paths))
    if "selfish_rnn.experiment.methods" in sys.modules:  # otherwise that module imports them
        load_extensions()


def requested_imports() -> list[Path]:
    """Return the files that this process imports."""
    return [Path(path) for path in os.environ.get(IMPORTS, "").split(os.pathsep) if path]


def load_extensions() -> None:
    """Import the requested files and the entry points of installed packages; register their methods and parts."""
    from selfish_rnn.topology import Method

    for entry in importlib.metadata.entry_points(group=ENTRY_POINTS):
        try:
            loaded = entry.load()
        except Exception as error:
            raise UserError(
                f"entry point {entry.name!r} of {ENTRY_POINTS} cannot be loaded: {_brief(error)}"
            ) from error
        if isinstance(loaded, Method):
            _register_new(loaded)
    for path in requested_imports():
        import_file(path)


def import_file(path: Path) -> None:
    """Import a Python file once, and register every method at its top level that has a name of its own."""
    from selfish_rnn.topology import Method

    module = sys.modules.get(_module_name(path)) or _execute(path)
    for value in vars(module).values():
        if isinstance(value, Method):
            _register_new(value)


def _module_name(path: Path) -> str:
    return f"selfish_rnn_import:{path}"


def _execute(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(_module_name(path), path)
    if spec is None or spec.loader is None:
        raise UserError(f"{path} is not a Python file: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[spec.name]
        raise UserError(f"{path} cannot be imported: {_brief(error, path)}") from error
    return module


def _register_new(method: Method) -> None:
    from selfish_rnn.topology import METHODS, register_method

    if method.name not in METHODS:
        register_method(method)


def _brief(error: Exception, path: Path | None = None) -> str:
    """Return an error in one line, with the last line of the file that caused it."""
    line, trace = None, error.__traceback__
    while trace is not None:
        if path is not None and trace.tb_frame.f_code.co_filename == str(path):
            line = trace.tb_lineno
        trace = trace.tb_next
    if isinstance(error, SyntaxError):
        line = error.lineno
    return f"{type(error).__name__}: {error}" + (f" (line {line})" if line else "")
