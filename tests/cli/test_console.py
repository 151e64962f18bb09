"""Text of files reaches a terminal as text only."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table

from selfish_rnn.cli import console as consoles
from selfish_rnn.cli import main
from selfish_rnn.cli.console import SafeConsole, show_error
from selfish_rnn.text import printable

HOSTILE = [
    "\x1b]52;c;aGVsbG8=\x07",  # puts text into the clipboard
    "\x1b]0;title\x07",
    "\x1b[2J",
    "\x9b31m",
    "a\rb",
    "a\bb",
    "\u202egpj.exe",
]


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("terminal", [True, False])
def test_escape_sequences_are_written_out(text: str, terminal: bool) -> None:
    stream = io.StringIO()
    console = SafeConsole(file=stream, force_terminal=terminal, width=100)
    table = Table(box=None, show_header=False)
    table.add_row(text)
    console.print(text, markup=False, soft_wrap=True)
    console.print(f"[bold]{text}[/]")
    console.print(table)
    written = stream.getvalue().replace("\x1b[1m", "").replace("\x1b[0m", "")
    assert not any(character in written for character in "\x1b\x9b\x07\r\b\u202e")
    assert printable(text)[:4] in written


@given(st.text())
def test_nothing_but_line_feeds_and_tabs_controls_a_terminal(text: str) -> None:
    assert not any(
        character < " " or "\x7f" <= character < "\xa0" for character in printable(text) if character not in "\n\t"
    )


def test_text_that_controls_nothing_stays_as_it_is() -> None:
    assert printable("naïve 東京 [bold] :key:\n\t…") == "naïve 東京 [bold] :key:\n\t…"


def test_errors_are_of_bounded_length(capsys: pytest.CaptureFixture[str]) -> None:
    show_error("x" * 10**6)
    assert len(capsys.readouterr().err) < consoles.MAX_ERROR + 10


def test_ctrl_c_outside_of_training_ends_with_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> list[str]:
        raise KeyboardInterrupt

    monkeypatch.setattr("selfish_rnn.experiment.presets.preset_names", interrupted)
    monkeypatch.setattr("sys.argv", ["selfish-rnn", "presets"])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 130
    assert capsys.readouterr().err == "error: interrupted\n"
