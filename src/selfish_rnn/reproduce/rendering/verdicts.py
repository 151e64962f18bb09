"""The rule by which a claim is said to hold, written down before the runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

LEAST_SEEDS = 3
STANDARD_ERRORS = 2.0

HOLDS, FAILS, UNDECIDED = "holds", "does not hold", "undecided"

RULE = (
    "A claim is put as a number that is above zero if the claim is true, measured once with every seed. It *holds* if "
    f"there are at least {LEAST_SEEDS} seeds, the number is above zero with each of them, and its mean is more than "
    f"{STANDARD_ERRORS:g} standard errors above zero; it *does not hold* if the same is so below zero; in all other "
    "cases it is *undecided*."
)


@dataclass(frozen=True)
class Evidence:
    """A number that is above zero where a claim is true, with every seed.

    >>> Evidence((1.0, 1.2, 0.9)).verdict
    'holds'
    >>> Evidence((1.0, 1.2)).verdict
    'undecided'
    """

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def standard_error(self) -> float:
        """s / √n, with s the standard deviation over the seeds; infinite for one seed."""
        count = len(self.values)
        return statistics.stdev(self.values) / math.sqrt(count) if count > 1 else math.inf

    @property
    def verdict(self) -> str:
        same_sign = all(value > 0 for value in self.values) or all(value < 0 for value in self.values)
        if len(self.values) < LEAST_SEEDS or not same_sign:
            return UNDECIDED
        if abs(self.mean) <= STANDARD_ERRORS * self.standard_error:
            return UNDECIDED
        return HOLDS if self.mean > 0 else FAILS


def overall(verdicts: Sequence[str]) -> str:
    """The verdict on a claim of several parts: it holds if all do, and not if one does not.

    >>> overall(["holds", "undecided"])
    'undecided'
    """
    if FAILS in verdicts:
        return FAILS
    return HOLDS if verdicts and all(verdict == HOLDS for verdict in verdicts) else UNDECIDED
