"""Errors with messages for the user, and helpers that write them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection

COMMAND_LINE_MODULES = ("pydantic", "rich", "typer", "yaml")
"""Modules of the extra ``cli``. The library does without them."""

INSTALL_COMMAND_LINE = "pip install 'selfish-rnn[cli]'"
"""Command that installs the extra ``cli``."""


class UserError(ValueError):
    """Error that the user can correct.

    The message names the file, field or value that is wrong and what would be right. The command line prints
    it as one line and exits with ``exit_code``; a library user sees an ordinary ``ValueError``.
    """

    exit_code = 2


def short_repr(value: object, longest: int = 80) -> str:
    """Return a value as one short line for a message.

    >>> short_repr("x" * 1000)
    "'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…"
    """
    if isinstance(value, str):
        value = value[: longest + 1]  # a huge text is not copied
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of thousands of digits, or lists in lists
        return f"a {type(value).__name__} too long to show"
    return text if len(text) <= longest else text[:longest] + "…"


class ReportedByRankZero(UserError):  # noqa: N818 - it repeats an error
    """Rank 0 already reported this error."""


class RankLostError(RuntimeError):
    """Another process of the training has ended, or did not answer in time."""


def nearest(word: str, names: Collection[str]) -> str:
    """Return `` (did you mean 'x'?)`` for the name nearest to a word, or an empty text."""
    matches = difflib.get_close_matches(word[:100], names, n=1, cutoff=0.5)
    return f" (did you mean {matches[0]!r}?)" if matches else ""


def unknown(kind: str, name: object, names: Collection[str]) -> str:
    """Return ``unknown method 'st' (did you mean 'set'?); known are ...`` for a name in no table."""
    return f"unknown {kind} {short_repr(name)}{nearest(str(name), names)}; known are {', '.join(names)}"


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
