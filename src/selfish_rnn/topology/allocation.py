"""Allocation: how the budget is divided over the matrices at the start."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Part:
    """A part of a method, under the name that configurations know it by."""

    name: str


AnyPart = TypeVar("AnyPart", bound=Part)


def by_name(*parts: AnyPart) -> dict[str, AnyPart]:
    """A table of parts."""
    return {part.name: part for part in parts}


@dataclass(frozen=True)
class Allocation(Part):
    """A way to divide the budget: ``counts(shapes, density)`` says how many weights each matrix starts with.

    ``dense`` says that all of them exist at the start, whatever the density.
    """

    counts: Callable[[Sequence[Shape], float], list[int]]
    dense: bool = False


def budget(shapes: Sequence[Shape], density: float) -> int:
    """How many weights exist in all: ``round(density * size)``, at least one per matrix."""
    if not 0 < density <= 1:
        raise ValueError(f"density must lie in (0, 1], got {density}")
    return max(round(density * sum(map(math.prod, shapes))), len(shapes))


def uniform(shapes: Sequence[Shape], density: float) -> list[int]:
    """The same density in every matrix (Liu et al. 2021); each count is within one of ``density * size``."""
    return _allocate(shapes, density, math.prod)


def erdos_renyi(shapes: Sequence[Shape], density: float) -> list[int]:
    """Density ``eps (a + b) / (a b)`` for a matrix of a rows and b columns (Mocanu et al. 2018).

    ``eps`` is such that the total is exact; a matrix that would exceed density 1 is made dense and ``eps`` is solved
    again for the rest.
    """
    return _allocate(shapes, density, lambda shape: sum(shape[:2]) * math.prod(shape[2:]))


def erdos_renyi_kernel(shapes: Sequence[Shape], density: float) -> list[int]:
    """Erdős–Rényi with the kernel dimensions of a convolution in the sum (Evci et al. 2020).

    For matrices it is the same as :func:`erdos_renyi`.
    """
    return _allocate(shapes, density, sum)


def dense(shapes: Sequence[Shape], density: float) -> list[int]:
    """Every weight exists: the start of the methods that prune a dense network."""
    return [math.prod(shape) for shape in shapes]


def _allocate(shapes: Sequence[Shape], density: float, share: Callable[[Shape], float]) -> list[int]:
    sizes = [math.prod(shape) for shape in shapes]
    return apportion(budget(shapes, density), [share(shape) for shape in shapes], sizes, minimum=1)


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


ALLOCATIONS = by_name(
    Allocation("uniform", uniform),
    Allocation("er", erdos_renyi),
    Allocation("erk", erdos_renyi_kernel),
    Allocation("dense", dense, dense=True),
)
