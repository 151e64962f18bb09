"""The page to play with: in a real terminal, and through a pipe."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from selfish_rnn import cli
from selfish_rnn.engine import available
from selfish_rnn.runs.export import export
from tiny_runs import tiny_run

PATIENCE = 120.0


@pytest.fixture(scope="module")
def exported(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("playground")
    run = tiny_run(texts, folder / "run", epochs=1)
    run.train()
    export(run, folder / "tiny.safetensors")
    return folder / "tiny.safetensors"


class Terminal:
    """A command in a terminal of its own, which is a person's hands and eyes."""

    def __init__(self, *words: str) -> None:
        self.seen = ""
        self.process, self._end = pty.fork()
        if not self.process:
            os.environ.update(TERM="xterm", COLUMNS="100", LINES="30")
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # tests in the background may have been told to ignore it
            os.execv(sys.executable, [sys.executable, "-m", "selfish_rnn", *words])

    def type(self, text: str) -> None:
        os.write(self._end, text.encode())

    def wait_for(self, pattern: str) -> str:
        """What is on the screen until this appears; it is taken off."""
        last = time.monotonic() + PATIENCE
        while not (match := re.search(pattern, self.seen)):
            assert time.monotonic() < last, f"{pattern!r} did not come, but {self.seen!r}"
            if select.select([self._end], [], [], 1.0)[0]:
                self.seen += os.read(self._end, 65536).decode(errors="replace")
        before, self.seen = self.seen[: match.end()], self.seen[match.end() :]
        return before

    def leave(self, key: str) -> int:
        """Press a key, and the exit code once it is over.

        A person takes a moment to press it, and presses again if nothing happens: a Ctrl-C in the instant between the
        prompt and the reading of the keys is lost in any program.
        """
        for _ in range(10):
            time.sleep(1)
            with contextlib.suppress(OSError):
                self.type(key)
            last = time.monotonic() + PATIENCE / 10
            while time.monotonic() < last:
                if select.select([self._end], [], [], 0.05)[0]:
                    with contextlib.suppress(OSError):  # the other side is closed
                        os.read(self._end, 65536)
                ended, status = os.waitpid(self.process, os.WNOHANG)
                if ended:
                    return os.waitstatus_to_exitcode(status)
        os.kill(self.process, signal.SIGKILL)
        raise AssertionError("it did not leave")


@pytest.fixture
def terminal(exported: Path) -> Iterator[Terminal]:
    opened = Terminal("generate", str(exported), "--interactive", "--tokens", "12", "--seed", "1")
    yield opened
    os.close(opened._end)


@pytest.mark.slow
def test_a_person_types_and_leaves(terminal: Terminal) -> None:
    assert "Ctrl-D" in terminal.wait_for("> ")
    terminal.type("the cat\r")
    shown = terminal.wait_for(r"tokens/s")
    assert "dense" in shown
    assert "the cat" in shown
    if available():
        terminal.wait_for(r"packed is [\d.]+ times as fast as dense")
    terminal.wait_for("> ")
    terminal.type("zebra\r")
    terminal.wait_for("error: the word 'zebra' is not in the vocabulary")
    terminal.wait_for("> ")
    assert terminal.leave(key="\x04") == 0  # Ctrl-D


@pytest.mark.slow
def test_a_person_leaves_with_control_c(terminal: Terminal) -> None:
    terminal.wait_for("> ")
    assert terminal.leave(key="\x03") == 0


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("tmux") is None, reason="needs tmux")
@pytest.mark.skipif(not available(), reason="needs the packed engine")
def test_the_screen_of_a_talk(exported: Path, tmp_path: Path) -> None:
    """What an audience sees: both texts side by side, their speeds under them; and a clean screen afterwards."""

    def tmux(*words: str) -> str:
        command = ["tmux", "-S", str(tmp_path / "socket"), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def screen(pattern: str) -> str:
        last = time.monotonic() + PATIENCE
        while not re.search(pattern, shown := tmux("capture-pane", "-p"), flags=re.DOTALL):
            assert time.monotonic() < last, f"{pattern!r} did not come, but {shown!r}"
            time.sleep(0.1)
        return shown

    words = [sys.executable, "-m", "selfish_rnn", "generate", str(exported), "-i", "--tokens", "8", "--seed", "1"]
    tmux("-f", "/dev/null", "new-session", "-d", "-x", "100", "-y", "24", "sh")
    try:
        tmux("send-keys", f"PS1=done:; {shlex.join(words)}; echo code=$?", "Enter")
        screen(r"quit leaves\.\n>\n")
        tmux("send-keys", "the cat", "Enter")
        shown = screen(r"times as fast as dense\n>\n")
        assert re.search(r"^dense {30,}packed *$", shown, flags=re.MULTILINE)
        assert re.search(r"^the cat \S.* {2,}the cat \S", shown, flags=re.MULTILINE)
        assert re.search(r"^[\d,]+ tokens/s {20,}[\d,]+ tokens/s$", shown, flags=re.MULTILINE)
        tmux("send-keys", "quit", "Enter")
        screen(r"> quit\ncode=0\ndone:")
    finally:
        tmux("kill-server")


@pytest.mark.slow
def test_a_pipe_gets_the_text_once(exported: Path) -> None:
    command = [sys.executable, "-m", "selfish_rnn", "generate", str(exported), "-i", "--tokens", "6", "--seed", "2"]
    done = subprocess.run(command, input="the dog\nquit\n", capture_output=True, text=True, check=True)
    assert done.stdout.count("the dog") == (2 if available() else 1)  # one for each engine, which say the same
    assert done.stdout.count("tokens/s") == done.stdout.count("the dog")


def test_a_prompt_of_the_command_line_is_refused(
    exported: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["selfish-rnn", "generate", str(exported), "-i", "--prompt", "the"])
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 2
    assert "leave out --prompt" in capsys.readouterr().err
