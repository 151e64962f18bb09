"""Stopping a run between two updates."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

from selfish_rnn.errors import RankLostError


class Interrupted(Exception):  # noqa: N818 - not an error: the run can be continued
    """Training was asked to stop; a checkpoint holds everything up to the last update."""


class StopRequest:
    """While entered, Ctrl-C and SIGTERM only set ``requested``; a second one interrupts at once."""

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():  # others may not set handlers
            self._before = {number: signal.signal(number, self._ask) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and issubclass(kind, RankLostError):
            return  # torchrun sends SIGTERM to whom is left: not before the last words
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
