"""Allocation: the division of the budget over the matrices at the start."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from selfish_rnn.topology.gates import GateLayout
from selfish_rnn.topology.topology import Topology

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Part:
    """A part of a method, with its name in configurations."""

    name: str


AnyPart = TypeVar("AnyPart", bound=Part)


def by_name(*parts: AnyPart) -> dict[str, AnyPart]:
    """Return a table of parts, by name."""
    return {part.name: part for part in parts}


@dataclass(frozen=True)
class Allocation(Part):
    """A division of the budget: ``counts(shapes, density)`` returns the number of weights of each matrix.

    With ``dense`` all weights exist at the start, whatever the density. ``draw(shape, gates, count, generator)`` draws
    the positions of one matrix, by default uniformly.
    """

    counts: Callable[[Sequence[Shape], float], list[int]]
    dense: bool = False
    draw: Callable[[Shape, GateLayout, int, torch.Generator], Topology] = Topology.random


def budget(shapes: Sequence[Shape], density: float) -> int:
    """Return the number of weights of a network: ``round(density * size)``, at least one per matrix."""
    if not 0 < density <= 1:
        raise ValueError(f"density must lie in (0, 1], got {density}")
    return max(round(density * sum(map(math.prod, shapes))), len(shapes))


def uniform(shapes: Sequence[Shape], density: float) -> list[int]:
    """Return the same density for every matrix (Liu et al. 2021); each count is within one of ``density * size``."""
    return _allocate(shapes, density, math.prod)


def erdos_renyi(shapes: Sequence[Shape], density: float) -> list[int]:
    """Return Erdős–Rényi densities, ``eps (a + b) / (a b)`` for a rows and b columns (Mocanu et al. 2018).

    ``eps`` makes the total exact. A matrix that would exceed density 1 is dense, and ``eps`` is solved again for the
    others.
    """
    return _allocate(shapes, density, lambda shape: sum(shape[:2]) * math.prod(shape[2:]))


def erdos_renyi_kernel(shapes: Sequence[Shape], density: float) -> list[int]:
    """Return Erdős–Rényi-kernel densities, with the kernel dimensions in the sum (Evci et al. 2020).

    It differs from :func:`erdos_renyi` for tensors of more than two dimensions only, such as convolutions.
    """
    return _allocate(shapes, density, sum)


def dense(shapes: Sequence[Shape], density: float) -> list[int]:
    """Return the sizes: every weight exists, as at the start of methods that prune a dense network."""
    return [math.prod(shape) for shape in shapes]


def _allocate(shapes: Sequence[Shape], density: float, share: Callable[[Shape], float]) -> list[int]:
    sizes = [math.prod(shape) for shape in shapes]
    return apportion(budget(shapes, density), [share(shape) for shape in shapes], sizes, minimum=1)


def apportion(total: int, shares: Sequence[float], capacities: Sequence[int], minimum: int = 0) -> list[int]:
    """Divide ``total`` in proportion to ``shares``; the counts add up to exactly ``total``.

    No count exceeds its capacity or falls below ``minimum``. The excess of a full entry goes to the others in
    proportion to their shares. Once all entries with a share are full, it goes to the others by free capacity.
    Fractions are rounded by largest remainder. The first entry wins a tie, so the result is deterministic.

    >>> apportion(10, shares=[1, 1, 1], capacities=[100, 100, 100])
    [4, 3, 3]
    >>> apportion(10, shares=[1, 1, 1], capacities=[1, 100, 100])
    [1, 5, 4]
    """
    if not minimum * len(shares) <= total <= sum(capacities):
        raise ValueError(
            f"{total} weights cannot be divided over entries that hold {minimum * len(shares)} to {sum(capacities)}"
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
        # If the excess is larger than the shortage, the other parts can only rise, so the parts over capacity are
        # full (and conversely). Settling both kinds at once could fix a part at a bound that later does not bind.
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
