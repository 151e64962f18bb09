"""Boundary to the kernels, made from its only description: the text of ``kernels/abi.hpp``.

The library carries that text (comments left out), so that both sides cannot disagree.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator, Sequence
from typing import Any

_PLAIN: dict[str, type] = {"int64_t": ctypes.c_int64, "double": ctypes.c_double}
_DECLARATION = re.compile(r"(.*[\s*])(\w+)(?:\[(\d+)\])?")


def structures(description: str, sizes: Sequence[int]) -> dict[str, type[ctypes.Structure]]:
    """Return every structure by its name; ``sizes`` are those of the compiler, in the same order."""
    result: dict[str, type[ctypes.Structure]] = {}
    for name, body in re.findall(r"struct (\w+) \{(.*?)\};", description):
        fields = [field for part in body.split(";") if part.strip() for field in _fields(part, result)]
        # The fields of a structure inside are those of the outer one, too.
        inner = [field for field, kind in fields if issubclass(kind, ctypes.Structure)]
        result[name] = type(name, (ctypes.Structure,), {"_anonymous_": inner, "_fields_": fields})
    if [ctypes.sizeof(structure) for structure in result.values()] != list(sizes):
        raise RuntimeError("the kernels and their description do not agree: reinstall selfish-rnn")
    return result


def enumerators(description: str) -> dict[str, int]:
    """Return every enumerator with its number."""
    bodies: list[str] = re.findall(r"enum \w+ : int64_t \{(.*?)\};", description)
    return {name.strip(): number for body in bodies for number, name in enumerate(body.split(","))}


def signatures(description: str) -> Iterator[tuple[str, type | None, list[type]]]:
    """Yield every function: its name, result type and argument types."""
    for result, name, arguments in re.findall(r"(\w+) (selfish_\w+)\((.*?)\);", description):
        kinds = [kind for part in arguments.split(",") if part for _, kind in _fields(part, {})]
        yield name, None if result == "void" else _PLAIN[result], kinds


def _fields(declaration: str, known: dict[str, type[ctypes.Structure]]) -> Iterator[tuple[str, type]]:
    """Yield names and types of ``int64_t rows, columns`` or ``const float* x``."""
    first, *more = declaration.strip().split(",")
    match = _DECLARATION.fullmatch(first)
    assert match is not None, declaration
    text, name, length = match.groups()
    kind: Any = ctypes.c_void_p if "*" in text else {**_PLAIN, **known}[text.strip()]
    yield name, kind * int(length) if length else kind
    yield from ((extra.strip(), kind) for extra in more)
