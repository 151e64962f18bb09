"""Where a run stands, and how long it has taken."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any


@dataclass
class TrainState:
    """How far a run has come. ``row`` is where in the current epoch the next window starts.

    ``best`` describes the network of the best epoch, which need not have the weights of the last.
    """

    epoch: int = 0
    row: int = 0
    step: int = 0
    loss_sum: float = 0.0
    settled: bool = False
    best_valid_loss: float = math.inf
    best_epoch: int = 0
    best: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    finished: bool = False


@dataclass
class Clock:
    """The time a run has taken, over all the processes it was continued in, and the rate in this one."""

    seconds_before: float = 0.0
    started: float = field(default_factory=time.monotonic)
    tokens: int = 0

    @property
    def seconds(self) -> float:
        return self.seconds_before + time.monotonic() - self.started

    def rate(self) -> float:
        return self.tokens / max(time.monotonic() - self.started, 1e-9)
