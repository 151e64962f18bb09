"""Triggers of averaging: when the validation loss stops improving, or after a number of epochs."""

from __future__ import annotations

import abc
import math
from collections.abc import Mapping
from typing import Any


class Trigger(abc.ABC):
    """Rule that fires once, when averaging starts."""

    def __init__(self) -> None:
        self.fired = False
        self.losses: list[float] = []

    def observe(self, loss: float) -> bool:
        """Take the validation loss of an epoch; return whether averaging starts after it."""
        loss = float(loss)  # a tensor would stay in the state, on its device
        if math.isnan(loss):
            raise ValueError("the validation loss is NaN; the trigger cannot compare it")
        if not self.counts(loss):
            return False
        self.losses.append(loss)
        fires = not self.fired and self.fires()
        self.fired = self.fired or fires
        return fires

    def counts(self, loss: float) -> bool:
        """Return whether an epoch with this loss counts."""
        return True

    @abc.abstractmethod
    def fires(self) -> bool:
        """Return whether the losses so far start averaging."""

    def state_dict(self) -> dict[str, Any]:
        """Return the progress of the rule."""
        return {"fired": self.fired, "losses": list(self.losses)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load what :meth:`state_dict` returned."""
        self.fired, self.losses = state["fired"], list(state["losses"])


class NonMonotoneTrigger(Trigger):
    """Fires once, when the validation loss no longer improves on its value more than ``interval`` epochs ago.

    With losses v_1, v_2, ... the trigger fires after epoch e if ``e - 1 > interval`` and
    ``v_e > min(v_1, ..., v_{e-1-interval})``.

    Epochs with a loss of at least ``below`` do not count. Without this limit a network that has learned nothing but
    the frequencies of words starts averaging, because its loss goes up and down around a constant. The experiments use
    ``below=math.log(0.9 * unigram_perplexity)``.

    >>> trigger = NonMonotoneTrigger(interval=1)
    >>> [trigger.observe(loss) for loss in (5.0, 4.0, 4.5, 6.0, 7.0)]
    [False, False, False, True, False]
    >>> trigger = NonMonotoneTrigger(interval=0, below=5.0)
    >>> [trigger.observe(loss) for loss in (5.1, 5.2, 5.1, 4.9, 4.8, 4.9)]
    [False, False, False, False, False, True]
    """

    def __init__(self, interval: int = 5, below: float | None = None) -> None:
        super().__init__()
        self.interval = interval
        self.below = below

    def counts(self, loss: float) -> bool:
        return self.below is None or loss < self.below

    def fires(self) -> bool:
        *before, loss = self.losses
        earlier = before[: max(len(before) - self.interval, 0)]
        return bool(earlier) and loss > min(earlier)


class EpochTrigger(Trigger):
    """Fires after a number of epochs, independent of the losses.

    >>> trigger = EpochTrigger(epochs=2)
    >>> [trigger.observe(loss) for loss in (5.0, 4.0, 4.5)]
    [False, True, False]
    """

    def __init__(self, epochs: int) -> None:
        super().__init__()
        self.epochs = epochs

    def fires(self) -> bool:
        return len(self.losses) >= self.epochs
