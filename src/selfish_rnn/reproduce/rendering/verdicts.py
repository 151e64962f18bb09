"""Verdicts on claims: the rule, written before the runs, and the statistics it needs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from selfish_rnn.reproduce.paper.claims import AT_LEAST

LEAST_SEEDS = 3
"""Fewer paired seeds decide nothing, because the t distribution is too wide to mean much."""

MOST_SEEDS = 100
"""Largest number of seeds that is worth naming as what would decide a claim."""

LEVEL = 0.05
"""Level of the one-sided test; the interval shown is the two-sided one of 1 - 2 * LEVEL."""

HOLDS, FAILS, INCONCLUSIVE, NOT_RUN = "holds", "does not hold", "inconclusive", "not run"

UNDECIDED = "undecided"
"""Verdict of the first edition's rule where it decides nothing; runs that are missing count as that, too."""


@cache
def t_quantile(freedom: int, level: float = LEVEL) -> float:
    """Return the value that Student's t exceeds with probability `level`.

    >>> round(t_quantile(4), 2)
    2.13
    """
    low, high = 0.0, 1.0
    while _central_share(high, freedom) < 1 - 2 * level:
        high *= 2
    # Bisection, because the share is monotonic and 60 halvings reach the last digit of a float.
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _central_share(middle, freedom) < 1 - 2 * level else (low, middle)
    return (low + high) / 2


def _central_share(t: float, freedom: int) -> float:
    """Return the probability that |T| < t: the finite series for whole degrees of freedom (Abramowitz, Stegun 26.7)."""
    angle = math.atan(t / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term = total = cosine if odd else 1.0
    for factor in range(2 + odd, freedom - 1, 2):
        term *= cosine**2 * (factor - 1) / factor
        total += term
    if not odd:
        return sine * total
    return 2 / math.pi * (angle + (sine * total if freedom > 1 else 0.0))


RULE = (
    "A claim is a number that is above zero if the claim is true, measured once with every seed. It *holds* if the "
    f"mean is above zero by a paired one-sided t-test at {100 * LEVEL:g} % (by more than {t_quantile(4):.2f} standard "
    "errors with five seeds), and *does not hold* if the mean is below zero by the same test. It is *inconclusive* in "
    f'all other cases and with fewer than {LEAST_SEEDS} seeds, and *not run* without results. For claims of being "at '
    f"least as good\", a loss of {100 * AT_LEAST:g} % of the reference's perplexity takes the place of zero."
)


@dataclass(frozen=True)
class Evidence:
    """Paired differences that are above zero where a claim is true, one for each seed.

    The claim tolerates a mean as low as ``-margin``.

    >>> Evidence((1.0, 1.2, 0.9)).verdict
    'holds'
    >>> Evidence((0.3, -0.4, 0.2)).verdict
    'inconclusive'
    >>> Evidence((0.3, -0.4, 0.2), margin=0.8).verdict
    'holds'
    """

    values: tuple[float, ...]
    margin: float = 0.0

    @property
    def mean(self) -> float:
        """Mean over the seeds; NaN without any."""
        return statistics.fmean(self.values) if self.values else math.nan

    @property
    def standard_error(self) -> float:
        """s / √n, with s the standard deviation over the seeds; infinite for one seed."""
        count = len(self.values)
        return statistics.stdev(self.values) / math.sqrt(count) if count > 1 else math.inf

    @property
    def interval(self) -> tuple[float, float]:
        """Confidence interval of the mean, two-sided 90 %: its lower end is the bound of the one-sided test."""
        if len(self.values) < 2:
            return -math.inf, math.inf
        width = t_quantile(len(self.values) - 1) * self.standard_error
        return self.mean - width, self.mean + width

    @property
    def verdict(self) -> str:
        if not self.values:
            return NOT_RUN
        if len(self.values) < LEAST_SEEDS:
            return INCONCLUSIVE
        low, high = self.interval
        if low > -self.margin:
            return HOLDS
        return FAILS if high < -self.margin else INCONCLUSIVE

    @property
    def deciding_seeds(self) -> int | None:
        """Number of seeds that would decide the claim with this mean and spread; None beyond MOST_SEEDS."""
        if len(self.values) < 2:
            return LEAST_SEEDS
        spread, distance = statistics.stdev(self.values), abs(self.mean + self.margin)
        counts = range(LEAST_SEEDS, MOST_SEEDS + 1)
        return next((count for count in counts if distance > t_quantile(count - 1) * spread / math.sqrt(count)), None)

    @property
    def conclusion(self) -> str:
        """Verdict in words, for an inconclusive one with the number of seeds that would decide it."""
        if self.verdict != INCONCLUSIVE:
            return self.verdict
        count = self.deciding_seeds
        return f"{INCONCLUSIVE} ({f'{count} seeds' if count else f'more than {MOST_SEEDS} seeds'} to decide)"

    @property
    def first_rule(self) -> str:
        """Verdict by the first edition's rule: one side for all seeds, the mean 2 standard errors from zero."""
        same_sign = all(value > 0 for value in self.values) or all(value < 0 for value in self.values)
        if len(self.values) < LEAST_SEEDS or not same_sign or abs(self.mean) <= 2 * self.standard_error:
            return UNDECIDED
        return HOLDS if self.mean > 0 else FAILS


def overall(verdicts: Sequence[str]) -> str:
    """Return the verdict on a claim of several parts: it holds if all do, and does not hold if one does not.

    >>> overall(["holds", "not run"])
    'inconclusive'
    """
    if FAILS in verdicts:
        return FAILS
    if all(verdict == NOT_RUN for verdict in verdicts):
        return NOT_RUN
    return HOLDS if all(verdict == HOLDS for verdict in verdicts) else INCONCLUSIVE
