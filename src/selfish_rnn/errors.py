"""Errors whose message is written for the person at the keyboard."""

from __future__ import annotations


class UserError(Exception):
    """Something the user can put right.

    The message names the file, field or value that is wrong and what would be right. The command line prints
    it as one line and exits with code 2; a library user sees an ordinary exception.
    """
