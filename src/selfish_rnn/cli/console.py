"""Consoles of the command line, which print control characters of names and texts in escaped form."""

from __future__ import annotations

import re
import sys
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from selfish_rnn.errors import UserError, plain_reason
from selfish_rnn.text import printable, say

MAX_ERROR = 4000
"""Characters after which an error message is cut off."""

UsageError: type[Exception] = typer.BadParameter.__mro__[2]
"""Base class of errors in options and arguments (``ClickException``, which typer does not export)."""


class SafeConsole(Console):
    """Console that prints words, names and paths literally. Its own styles still apply."""

    def __init__(self, **options: Any) -> None:
        # A folder may be called :key:, and a log has no edge at which tables would have to be folded.
        super().__init__(highlight=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **options)


def output() -> SafeConsole:
    """Return the console of results."""
    return SafeConsole(width=None if sys.stdout.isatty() else 200)


def show_error(message: str) -> None:
    """Print an error as one line to stderr."""
    line = f"error: {message}"
    if len(line) > MAX_ERROR:
        line = line[:MAX_ERROR] + "…"
    say(SafeConsole(stderr=True), line)


def show_note(message: str | None) -> None:
    """Print a note as one line to stderr; nothing for None."""
    if message is not None:
        say(SafeConsole(stderr=True), f"note: {message}")


def usage_message(error: Any) -> str:
    """Return a usage error as one line, with the command that explains the options."""
    text = " ".join(str(error.format_message()).split()).rstrip(".")
    if invalid := re.fullmatch(r"Invalid value for '?(.+?)'?: (.*)", text):
        reason = plain_reason(invalid[2])
        if choice := re.fullmatch(r"('.*') is not one of (.*)", reason):
            reason = f"must be one of {choice[2].replace(chr(39), '')}, got {choice[1]}"
        text = f"{invalid[1]}{' ' if reason.startswith(('must ', 'is ')) else ': '}{reason}"
    if suggestion := re.fullmatch(r"(.*)\. Did you mean (.*)\?", text):
        text = f"{suggestion[1]} (did you mean {suggestion[2]}?)"
    text = re.sub(r" \(Possible options: (.*)\)$", r" (did you mean \1?)", text)
    path = error.ctx.command_path if getattr(error, "ctx", None) is not None else "selfish-rnn"
    return f"{text[:1].lower()}{text[1:]}; see {path} --help"


class StoppedError(UserError):
    """Ctrl-C without a run to finish first, or a second Ctrl-C."""

    exit_code = 130
