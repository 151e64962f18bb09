"""The command line as tests call it."""

from __future__ import annotations

import contextlib
import io
import sys
from typing import NamedTuple

import pytest

from selfish_rnn import cli


class Said(NamedTuple):
    """What a command came to."""

    code: int
    out: str
    err: str


def selfish_rnn(*words: object) -> Said:
    """Run ``selfish-rnn`` with these words in this process."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.setattr(sys, "argv", ["selfish-rnn", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            cli.main()
    return Said(int(left.value.code or 0), out.getvalue(), err.getvalue())


def refused(*words: object) -> str:
    """The one line with which the command refuses these words."""
    said = selfish_rnn(*words)
    assert said.code == 2, said
    lines = said.err.splitlines()
    assert len(lines) == 1, said.err
    assert lines[0].startswith("error: ")
    assert "Traceback" not in said.out
    return lines[0]
