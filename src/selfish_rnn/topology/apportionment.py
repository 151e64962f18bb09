"""Dividing a whole number of weights exactly, in proportion to shares, within bounds."""

from __future__ import annotations

import math
from collections.abc import Sequence


def apportion(total: int, shares: Sequence[float], capacities: Sequence[int], minimum: int = 0) -> list[int]:
    """Divide ``total`` over places in proportion to ``shares``; the parts add up to exactly ``total``.

    No part exceeds its capacity or falls below ``minimum``; what a full place cannot take goes to the others in
    proportion to their shares, and once every place with a share is full, to the rest by free capacity. Fractions
    are settled by largest remainder, the first place winning a tie, so the answer is deterministic.

    >>> apportion(10, shares=[1, 1, 1], capacities=[100, 100, 100])
    [4, 3, 3]
    >>> apportion(10, shares=[1, 1, 1], capacities=[1, 100, 100])
    [1, 5, 4]
    """
    if not minimum * len(shares) <= total <= sum(capacities):
        raise ValueError(
            f"{total} weights cannot be divided over places that hold {minimum * len(shares)} to {sum(capacities)}"
        )
    parts = [0.0] * len(shares)
    free = list(range(len(shares)))
    remaining = float(total)
    while free:
        weights = [shares[i] for i in free]
        if sum(weights) <= 0:
            weights = [float(capacities[i]) for i in free]
        for i, weight in zip(free, weights, strict=True):
            parts[i] = remaining * weight / sum(weights) if weight else 0.0
        over = {i: parts[i] - capacities[i] for i in free if parts[i] > capacities[i]}
        under = {i: minimum - parts[i] for i in free if parts[i] < minimum}
        # If the excess is the larger, the parts of the rest will only rise, so those over are rightly full (and the
        # other way round); settling both kinds at once could settle someone at a bound that later does not bind.
        settled = over if sum(over.values()) >= sum(under.values()) else under
        for i in settled:
            parts[i] = float(capacities[i] if settled is over else minimum)
            remaining -= parts[i]
        if not settled:
            break
        free = [i for i in free if i not in settled]

    counts = [min(math.floor(part), capacity) for part, capacity in zip(parts, capacities, strict=True)]
    by_remainder = sorted(range(len(parts)), key=lambda i: counts[i] - parts[i])
    missing = total - sum(counts)
    while missing:
        for i in by_remainder:
            if missing and counts[i] < capacities[i]:
                counts[i] += 1
                missing -= 1
    return counts
