"""Runs without the seconds a new Python takes to start, and results made up for tests of what is read from them."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import pytest

from selfish_rnn import cli
from selfish_rnn.corpora import python_docs
from selfish_rnn.reproduce.case import Case
from selfish_rnn.reproduce.plan import PlannedRun
from selfish_rnn.reproduce.results import LARGE, Result
from selfish_rnn.reproduce.scales import SMALL
from selfish_rnn.reproduce.scheduling.scheduler import SELFISH_RNN, Process


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


def fork(command: Sequence[str], log: IO[bytes]) -> Process:
    """Run a command of ``selfish-rnn`` in a copy of this process, which has imported everything already."""
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


def made_up(case: Case, seed: int, test: float, **changes: Any) -> tuple[Result, PlannedRun]:
    """The result of a run of scale small that nobody made."""
    run = PlannedRun(SMALL, case, seed)
    fields: dict[str, Any] = {
        "run": run.name,
        "scale": SMALL.name,
        "seed": seed,
        "command": run.command,
        "settings": run.trained(100).model_dump(mode="json"),
        "summary": {
            "vocabulary": 100, "test_perplexity": test, "valid_perplexity": test + 10, "active_weights": 1000,
            "seconds": 720.0,
        },
        "series": {"epoch": [1, 2], "averaging": [False, True], LARGE: {"a": [1000, 2000], "b": [500, 700]}},
        "density": {"rnn.weight_hh_l0": {"input": 0.4, "forget": 0.2, "output": 0.36, "all": 0.32}},
        "made": {"commit": "abc"},
        **changes,
    }  # fmt: skip
    return Result(**fields), run
