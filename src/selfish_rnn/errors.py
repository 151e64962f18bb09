"""Errors whose message is written for the person at the keyboard."""

from __future__ import annotations

import difflib
import re
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


_REASONS = (
    (r"a valid integer.*", "an integer"),
    (r"a valid (number|decimal).*", "a number"),
    (r"a valid boolean.*", "true or false"),
    (r"a valid string.*", "text"),
    (r"a valid (tuple|list|array).*", "a list"),
    (r"a valid (dictionary|mapping|object).*", "a section of keys and values"),
    (r"a valid (\w+).*", r"a \1"),
    (r"greater than or equal to (.*)", r"at least \1"),
    (r"less than or equal to (.*)", r"at most \1"),
    (r"a finite number", "finite"),
)
"""Patterns of a validator's wording after "Input should be", with ours."""


def plain_reason(message: str) -> str:
    """Return a validator's message about a value in plain words.

    >>> plain_reason("Input should be a valid integer, unable to parse string as an integer")
    'must be an integer'
    >>> plain_reason("Input should be 'masked' or 'packed'")
    'must be masked or packed'
    """
    message = message.removeprefix("Value error, ")
    if message == "Field required":
        return "is missing"
    if message == "Extra inputs are not permitted":
        return "is not known"
    if not message.startswith("Input should be "):
        return message
    requirement = message.removeprefix("Input should be ")
    for pattern, words in _REASONS:
        if match := re.fullmatch(pattern, requirement):
            return f"must be {match.expand(words)}"
    return "must be " + re.sub(r"'([^']*)'", r"\1", requirement)
