"""Allocation: how the budget is divided over the matrices at the start."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from selfish_rnn.topology.apportionment import apportion

Shape = tuple[int, ...]


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


ALLOCATIONS: dict[str, Callable[[Sequence[Shape], float], list[int]]] = {
    "uniform": uniform,
    "er": erdos_renyi,
    "erk": erdos_renyi_kernel,
    "dense": dense,
}
