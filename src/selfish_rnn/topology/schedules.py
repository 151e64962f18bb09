"""Schedules of the prune rate and, for methods that prune, of the sparsity over a run.

``progress`` goes from 0 at the start of the run to 1 at its end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from selfish_rnn.topology.allocation import Part, Shape, by_name, uniform


@dataclass(frozen=True)
class Schedule(Part):
    """The prune rate over a run: ``rate(progress, initial)``. If it ``decays``, it needs the length of the run."""

    rate: Callable[[float, float], float]
    decays: bool = True


@dataclass(frozen=True)
class Pruning(Part):
    """The sparsity over a run that prunes: ``sparsity(progress, final)``, which never falls.

    The run starts with ``sparsity(0, final)``. With ``network`` the smallest weights of all matrices are pruned, and
    matrices become unequally sparse. Otherwise every matrix is pruned to the same density.
    """

    sparsity: Callable[[float, float], float]
    network: bool = False

    def counts(self, shapes: Sequence[Shape], sparsity: float, done: int, planned: int) -> list[int]:
        """Return the number of weights of each matrix after ``done`` of the ``planned`` prunings.

        At the end it is that of a uniform allocation. With ``network`` only the sum is binding.
        """
        # The last pruning comes after the last evaluation, so the schedule ends with the pruning before it. Each
        # matrix rounds by itself on the way down, because shares of a rounded total would not always fall.
        progress = min(done / max(planned - 1, 1), 1.0)
        density = 1 - self.sparsity(progress, sparsity)
        final = uniform(shapes, 1 - sparsity)
        if self.network:
            return uniform(shapes, density)
        if density <= 1 - sparsity:
            return final
        return [max(round(density * math.prod(shape)), least) for shape, least in zip(shapes, final, strict=True)]


def cosine(progress: float, initial: float, floor: float = 0.0) -> float:
    """Return ``floor + (initial - floor) (1 + cos(pi progress)) / 2``, the paper's schedule."""
    return floor + (initial - floor) * (1 + math.cos(math.pi * progress)) / 2


def linear(progress: float, initial: float, floor: float = 0.0) -> float:
    """Return ``initial + (floor - initial) progress``."""
    return initial + (floor - initial) * progress


def constant(progress: float, initial: float) -> float:
    """Return ``initial`` throughout, as in the original SET."""
    return initial


def steps(progress: float, initial: float) -> float:
    """Return ``initial`` lowered by a quarter after every quarter of the run, to 0 at its end (MEST)."""
    return initial * (1 - math.floor(4 * progress) / 4)


def gradual_sparsity(progress: float, final: float, start: float = 0.3, end: float = 0.9) -> float:
    """Return the sparsity of gradual magnitude pruning (Zhu & Gupta 2017).

    Between ``start`` and ``end`` it is ``final (1 - (1 - (progress - start) / (end - start))^3)``. Before, it
    is 0. After, it is ``final``. The default interval gives the mean sparsity that the paper's training FLOPs imply.
    """
    position = min(max((progress - start) / (end - start), 0.0), 1.0)
    return final * (1 - (1 - position) ** 3)


SCHEDULES = by_name(
    Schedule("cosine", cosine),
    Schedule("linear", linear),
    Schedule("steps", steps),
    Schedule("constant", constant, decays=False),
)
PRUNINGS = by_name(Pruning("gradual", gradual_sparsity))
