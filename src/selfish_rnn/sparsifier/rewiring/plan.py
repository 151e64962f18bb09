"""When a sparsifier rewires, and how much."""

from __future__ import annotations

from dataclasses import dataclass

from selfish_rnn.topology import Method, Schedule


@dataclass(frozen=True)
class Plan:
    """The rewirings of a run: ``rewirings`` in all, by themselves after every ``rewire_every`` steps if that is given.

    The first one has the ``prune_rate``, the others what the schedule makes of it.
    """

    method: Method
    schedule: Schedule
    prune_rate: float
    rewirings: int | None
    rewire_every: int | None

    def __post_init__(self) -> None:
        method, rewirings = self.method, self.rewirings
        if not 0 <= self.prune_rate <= 1:
            raise ValueError(f"prune_rate is the fraction of weights rewired, from 0 to 1; got {self.prune_rate}")
        if rewirings is not None and (not isinstance(rewirings, int) or rewirings < 1):
            raise ValueError(f"rewirings is the number of rewirings in the run, at least 1; got {rewirings}")
        if self.rewire_every is not None and self.rewire_every < 1:
            raise ValueError(f"rewire_every is a number of optimizer steps, at least 1; got {self.rewire_every}")
        if rewirings is None and (method.prunes or (method.rewires and self.schedule.decays)):
            raise ValueError(
                f"method {method.name!r} with a {self.schedule.name} schedule needs rewirings=, the number of "
                "rewirings in the run (the number of epochs if you call rewire() after each)"
            )

    def rate(self, rewiring: int) -> float:
        """The fraction of weights that a rewiring, from 1 on, removes and grows."""
        if not self.method.rewires:
            return 0.0
        progress = 0.0 if self.rewirings is None else min(rewiring / self.rewirings, 1.0)
        return self.schedule.rate(progress, self.prune_rate)

    def due(self, step: int) -> bool:
        """Whether a rewiring follows a step by itself."""
        return self.rewire_every is not None and step % self.rewire_every == 0
