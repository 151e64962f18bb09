"""Schedules of the prune rate over a run; ``progress`` goes from 0 at its start to 1 at its end."""

from __future__ import annotations

import math
from collections.abc import Callable


def cosine(progress: float, initial: float, floor: float = 0.0) -> float:
    """``floor + (initial - floor) (1 + cos(pi progress)) / 2``, the paper's schedule."""
    return floor + (initial - floor) * (1 + math.cos(math.pi * progress)) / 2


def linear(progress: float, initial: float, floor: float = 0.0) -> float:
    """``initial + (floor - initial) progress``."""
    return initial + (floor - initial) * progress


def constant(progress: float, initial: float) -> float:
    """``initial`` throughout, as in the original SET."""
    return initial


SCHEDULES: dict[str, Callable[[float, float], float]] = {
    "cosine": cosine,
    "linear": linear,
    "constant": constant,
}


def gradual_sparsity(progress: float, final: float, start: float = 0.3, end: float = 0.9) -> float:
    """The sparsity of gradual magnitude pruning (Zhu & Gupta 2017).

    ``final (1 - (1 - (progress - start) / (end - start))^3)`` between ``start`` and ``end`` of the run, 0 before and
    ``final`` after. The default interval gives the mean sparsity that the paper's training FLOPs imply.
    """
    position = min(max((progress - start) / (end - start), 0.0), 1.0)
    return final * (1 - (1 - position) ** 3)
