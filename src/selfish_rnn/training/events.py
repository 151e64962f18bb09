"""What training tells whoever watches it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class StepReport:
    """Where training stands after an update."""

    epoch: int
    epochs: int
    row: int
    rows: int
    loss: float
    tokens_per_second: float
    seconds_left: float
    active_weights: int


@dataclass(frozen=True)
class EpochReport:
    """What an epoch came to."""

    epoch: int
    epochs: int
    train_loss: float
    valid_loss: float
    best: bool
    averaging: bool
    learning_rate: float
    rewired: float
    pruned: float
    active_weights: int
    seconds: float
    seconds_left: float


class Listener(Protocol):
    """Anything that wants to know how training goes."""

    def on_step(self, report: StepReport) -> None:
        """An update is done."""

    def on_epoch(self, report: EpochReport) -> None:
        """An epoch is done."""

    def on_note(self, message: str) -> None:
        """Something happened that a person may want to know."""


class NullListener:
    """A listener that does not care."""

    def on_step(self, report: StepReport) -> None:
        pass

    def on_epoch(self, report: EpochReport) -> None:
        pass

    def on_note(self, message: str) -> None:
        pass
