"""Where training stands, how long it has taken, and what random numbers come next."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any

import torch

from selfish_rnn.errors import shown


@dataclass
class TrainState:
    """How far training has come. ``row`` is where in the current epoch the next window starts.

    ``best`` describes the network of the best epoch, which need not have the weights of the last; ``settled`` says
    whether an epoch was evaluated at the sparsity asked for.
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

    @classmethod
    def of(cls, saved: dict[str, Any]) -> TrainState:
        """What was saved; a value of another kind is a ``TypeError``."""
        fresh = cls()
        for key, value in saved.items():
            kind = type(getattr(fresh, key))
            if not isinstance(value, (float, int) if kind is float else kind) or (kind is int and value < 0):
                raise TypeError(f"{key} is {shown(value)}")
        return cls(**saved)


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


def random_state(device: str) -> dict[str, Any]:
    """Where torch's generators stand, which dropout draws from: the CPU's and, on a GPU, its own."""
    on_gpu = device != "cpu"
    return {"cpu": torch.get_rng_state(), "gpu": torch.cuda.get_rng_state(device) if on_gpu else None}


def fresh_random_state(seed: int, device: str) -> dict[str, Any]:
    """Where the generators would stand if they were seeded now."""
    own = {"cpu": "cpu", "gpu": None if device == "cpu" else device}
    return {
        kind: None if place is None else torch.Generator(place).manual_seed(seed).get_state()
        for kind, place in own.items()
    }


def restore_random_state(state: dict[str, Any], device: str) -> None:
    """Set them back; a run that moved from one kind of device to another goes on with other random numbers."""
    torch.set_rng_state(state["cpu"])
    if state["gpu"] is not None and device != "cpu":
        torch.cuda.set_rng_state(state["gpu"], device)
