"""Errors whose message is written for the person at the keyboard."""

from __future__ import annotations

import difflib
from collections.abc import Collection

COMMAND_LINE_MODULES = ("pydantic", "rich", "typer", "yaml")
"""Modules of the extra ``cli``. The library does without them."""

INSTALL_COMMAND_LINE = "pip install 'selfish-rnn[cli]'"
"""Command that installs the extra ``cli``."""


class UserError(ValueError):
    """Something the user can put right.

    The message names the file, field or value that is wrong and what would be right. The command line prints
    it as one line and exits with ``exit_code``; a library user sees an ordinary ``ValueError``.
    """

    exit_code = 2


def shown(value: object, longest: int = 80) -> str:
    """A value as a message shows it: on one line, and never longer than a person reads.

    >>> shown("x" * 1000)
    "'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…"
    """
    if isinstance(value, str):
        value = value[: longest + 1]  # of a gigantic one no copy is made
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of thousands of digits, or lists in lists
        return f"a {type(value).__name__} too long to show"
    return text if len(text) <= longest else text[:longest] + "…"


class SaidByFirst(UserError):  # noqa: N818 - an echo of an error, not one of its own
    """Of processes that train together, the first has told the user what is wrong; this is another one."""


class RankLostError(RuntimeError):
    """A process that trains together with this one has ended, or has not answered for too long."""


def nearest(word: str, names: Collection[str]) -> str:
    """`` (did you mean 'x'?)`` for the name nearest to a word, or nothing if none is near."""
    matches = difflib.get_close_matches(word[:100], names, n=1, cutoff=0.5)
    return f" (did you mean {matches[0]!r}?)" if matches else ""


def unknown(kind: str, name: object, names: Collection[str]) -> str:
    """What to say of a name that is in no table: ``unknown method 'st' (did you mean 'set'?); known are ...``."""
    return f"unknown {kind} {shown(name)}{nearest(str(name), names)}; known are {', '.join(names)}"
