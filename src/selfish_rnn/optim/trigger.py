"""When to start averaging."""

from __future__ import annotations

import math


class NonMonotoneTrigger:
    """Fires once, when the validation loss no longer improves on what it was more than ``interval`` epochs ago.

    With losses v_1, v_2, ... the trigger fires after epoch e if ``e - 1 > interval`` and
    ``v_e > min(v_1, ..., v_{e-1-interval})``.

    >>> trigger = NonMonotoneTrigger(interval=1)
    >>> [trigger.observe(loss) for loss in (5.0, 4.0, 4.5, 6.0, 7.0)]
    [False, False, False, True, False]
    """

    def __init__(self, interval: int = 5) -> None:
        self.interval = interval
        self.fired = False
        self.losses: list[float] = []

    def observe(self, loss: float) -> bool:
        """Take the validation loss of an epoch; true if this is the one after which averaging starts."""
        if math.isnan(loss):
            raise ValueError("the validation loss is NaN; the trigger cannot compare it")
        earlier = self.losses[: max(len(self.losses) - self.interval, 0)]
        fires = not self.fired and bool(earlier) and loss > min(earlier)
        self.fired = self.fired or fires
        self.losses.append(loss)
        return fires
