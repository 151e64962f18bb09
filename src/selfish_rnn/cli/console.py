"""What reaches a terminal: text, never what a file would have the terminal do."""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console
from rich.text import Text

from selfish_rnn.errors import UserError
from selfish_rnn.text import printable, say

LONGEST_ERROR = 4000
"""Characters of an error: more is not read."""


class SafeConsole(Console):
    """A console that prints words, names and paths as they are written; its own colours are not affected."""

    def __init__(self, **options: Any) -> None:
        # A folder may be called :key:, and a log has no edge at which tables would have to be folded.
        super().__init__(highlight=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **options)


def output() -> SafeConsole:
    """Where results go."""
    return SafeConsole(width=None if sys.stdout.isatty() else 200)


def show_error(message: str) -> None:
    """One line, on the error stream."""
    line = f"error: {message}"
    if len(line) > LONGEST_ERROR:
        line = line[:LONGEST_ERROR] + "…"
    say(SafeConsole(stderr=True), line)


def show_note(message: str | None) -> None:
    """One line beside the results, on the error stream; or none."""
    if message is not None:
        say(SafeConsole(stderr=True), f"note: {message}")


class StoppedError(UserError):
    """Ctrl-C where nothing is there to finish first, or a second time."""

    exit_code = 130
