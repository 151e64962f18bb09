"""Docstrings as Markdown: reST's roles and literal blocks, and doctests, which the reference would show as they are."""

from __future__ import annotations

import re
from typing import Any

from griffe import Docstring, Extension, Object

ROLE = re.compile(r":[a-z]+:`~?(?P<name>[^`]+)`")


def as_markdown(text: str) -> str:
    """The text with roles as code, and examples as fenced blocks.

    >>> as_markdown("See :class:`~selfish_rnn.Sparsifier`.")
    'See `Sparsifier`.'
    """
    return _doctests(_literal_blocks(ROLE.sub(_short, text)))


def _short(match: re.Match[str]) -> str:
    name = match["name"]
    return f"`{name.rpartition('.')[2]}`" if match[0].find("`~") >= 0 else f"`{name.lstrip('.')}`"


def _literal_blocks(text: str) -> str:
    """A block that ``::`` announces is Python."""
    return re.sub(r"^::\n\n((?:[ ]{4}.*\n|\n)+)", _fence_literal, text + "\n", flags=re.MULTILINE).rstrip("\n")


def _fence_literal(match: re.Match[str]) -> str:
    lines = match[1].rstrip("\n").splitlines()
    return "```python\n" + "\n".join(line[4:] for line in lines) + "\n```\n\n"


def _doctests(text: str) -> str:
    """A paragraph that begins with ``>>>`` is a session."""
    paragraphs = re.split(r"\n{2,}", text)
    return "\n\n".join(
        f"```pycon\n{part.strip()}\n```" if part.lstrip().startswith(">>>") else part for part in paragraphs
    )


class DocstringsAsMarkdown(Extension):
    """Changes every docstring as it is read."""

    def on_instance(self, *, obj: Object, **kwargs: Any) -> None:
        docstring: Docstring | None = obj.docstring
        if docstring is not None:
            docstring.value = as_markdown(docstring.value)
