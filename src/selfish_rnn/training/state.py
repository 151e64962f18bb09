"""Progress of training, elapsed time, and states of random generators."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any

import torch

from selfish_rnn.errors import short_repr


@dataclass
class TrainState:
    """Progress of training.

    Attributes:
        epoch: number of finished epochs.
        row: row of the current epoch at which the next window starts.
        step: number of updates.
        loss_sum: sum of the losses of the current epoch.
        settled: whether an epoch was validated at the target sparsity.
        best_valid_loss: lowest validation loss.
        best_epoch: epoch of the lowest validation loss.
        best: description of the network of that epoch.
        seconds: training time.
        finished: whether training has ended.
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
        """Return a saved state; a value of another type is a ``TypeError``."""
        fresh = cls()
        for key, value in saved.items():
            kind = type(getattr(fresh, key))
            if not isinstance(value, (float, int) if kind is float else kind) or (kind is int and value < 0):
                raise TypeError(f"{key} is {short_repr(value)}")
        return cls(**saved)


@dataclass
class Clock:
    """Training time of a run over all its processes, and token rate of this process."""

    seconds_before: float = 0.0
    started: float = field(default_factory=time.monotonic)
    tokens: int = 0

    @property
    def seconds(self) -> float:
        return self.seconds_before + time.monotonic() - self.started

    def rate(self) -> float:
        return self.tokens / max(time.monotonic() - self.started, 1e-9)


def random_state(device: str) -> dict[str, Any]:
    """Return the states of torch's generators, from which dropout is drawn: that of the CPU, and of a GPU in use."""
    on_gpu = device != "cpu"
    return {"cpu": torch.get_rng_state(), "gpu": torch.cuda.get_rng_state(device) if on_gpu else None}


def fresh_random_state(seed: int, device: str) -> dict[str, Any]:
    """Return the states of generators that are seeded with ``seed``."""
    devices = {"cpu": "cpu", "gpu": None if device == "cpu" else device}
    return {
        kind: None if place is None else torch.Generator(place).manual_seed(seed).get_state()
        for kind, place in devices.items()
    }


def restore_random_state(state: dict[str, Any], device: str) -> None:
    """Restore states of generators; a run that moves to another kind of device continues with other random numbers."""
    torch.set_rng_state(state["cpu"])
    if state["gpu"] is not None and device != "cpu":
        torch.cuda.set_rng_state(state["gpu"], device)
