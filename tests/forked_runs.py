"""Runs without the seconds a new Python takes to start."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from selfish_rnn import cli
from selfish_rnn.corpora import python_docs
from selfish_rnn.scheduling.scheduler import SELFISH_RNN, Job, Process


@contextlib.contextmanager
def warm(folder: Path) -> Iterator[None]:
    """Train once here, so that copies of this process find everything imported and read, and nothing to collect."""
    texts = python_docs.python_docs_texts()
    words = ["train", "model.hidden=2", "model.embedding=2", "epochs=1", "train_tokens=500", "--run", str(folder)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(python_docs, "python_docs_texts", lambda: texts)
        patch.setattr(sys, "argv", ["selfish-rnn", *words])
        with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
            cli.main()
        gc.collect()
        gc.freeze()
        yield
        gc.unfreeze()


class Forked:
    """A copy of this process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def send_signal(self, number: int, /) -> None:
        os.kill(self.pid, number)


def fork(job: Job, log: IO[bytes]) -> Process:
    """Run a command of ``selfish-rnn`` in a copy of this process, which has imported everything already."""
    command = job.command()
    assert tuple(command[: len(SELFISH_RNN)]) == SELFISH_RNN
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return Forked(pid)
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        sys.stdout = sys.stderr = os.fdopen(log.fileno(), "w", buffering=1, closefd=False)
        sys.argv = ["selfish-rnn", *command[len(SELFISH_RNN) :]]
        cli.main()
    except SystemExit as left:
        code = int(left.code or 0)
    finally:
        os._exit(code)
