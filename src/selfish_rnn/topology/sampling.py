"""Random sets of positions, at a cost that goes with their number and not with the size of the matrix."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Numbers = npt.NDArray[np.int64]

SMALL_POPULATION = 1000
"""Up to this many numbers :func:`sample` shuffles them all."""


def sample(population: int, count: int, generator: torch.Generator) -> Tensor:
    """``count`` different numbers below ``population``, sorted, every set equally likely.

    Time and memory go with ``count``, not with ``population``, so that growing weights never costs what the dense
    matrix would. Of the sets of one size that :func:`bernoulli_positions` gives all are equally likely, and so are
    their subsets: a few too many are drawn, and the surplus is left out by a smaller sample.
    """
    if population <= SMALL_POPULATION:
        return torch.randperm(population, generator=generator)[:count].sort().values
    if count > population // 2:
        left_out = np.zeros(population, dtype=np.bool_)
        left_out[sample(population, population - count, generator).numpy()] = True
        return false_indices(torch.from_numpy(left_out))
    while True:
        drawn = bernoulli_positions(population, upper_bound(count) / population, generator)
        if len(drawn) >= count:
            return torch.from_numpy(drawn.numpy()[sample(len(drawn), count, generator).numpy()])


def bernoulli_positions(population: int, probability: float, generator: torch.Generator) -> Tensor:
    """Each number below ``population`` with the same probability, independently of the others; sorted.

    That is drawing the gaps between those taken:

        P(gap = g) = p (1 - p)^(g - 1)
    """
    if probability >= 1:
        return torch.arange(population)
    reached = -1
    runs = []
    while reached < population:
        gaps = np.empty(upper_bound((population - reached) * probability), dtype=np.int64)
        torch.from_numpy(gaps).geometric_(probability, generator=generator)
        gaps[0] += reached
        np.cumsum(gaps, out=gaps)
        reached = int(gaps[-1])
        runs.append(gaps)
    taken = runs[0] if len(runs) == 1 else np.concatenate(runs)
    return torch.from_numpy(taken[: np.searchsorted(taken, population)])


def sample_empty(occupied: Numbers, size: int, count: int, seed: int) -> Numbers:
    """``count`` of the numbers below ``size`` that are not ``occupied`` (sorted), sorted, every set equally likely.

    What is drawn are numbers, whether occupied or not, and the occupied ones are passed over: with one of them more or
    less the same seed gives the same numbers but for one or two.
    """
    empty = size - len(occupied)
    if count > empty // 2:
        everything = np.ones(size, dtype=np.bool_)
        everything[occupied] = False
        everything[sample_empty(occupied, size, empty - count, seed)] = False
        return np.flatnonzero(everything)
    if count == 0:
        return np.empty(0, dtype=np.int64)
    generator = torch.Generator().manual_seed(seed)
    # In steps, so that one place more or less does not change what is drawn.
    probability = 2 ** (math.ceil(8 * math.log2(upper_bound(count) / empty)) / 8)
    while True:
        drawn = bernoulli_positions(size, probability, generator).numpy()
        priorities = torch.rand(len(drawn), dtype=torch.float64, generator=generator).numpy()
        free = np.append(occupied, size)[np.searchsorted(occupied, drawn)] != drawn
        drawn, priorities = drawn[free], priorities[free]
        if len(drawn) >= count:
            last = torch.from_numpy(priorities).kthvalue(count).values.item()
            chosen: Numbers = drawn[priorities <= last]
            return chosen


def upper_bound(count: float) -> int:
    """So many that a random number with this mean hardly ever is larger: four standard deviations."""
    return math.ceil(count + 4 * math.sqrt(count)) + 4


def false_indices(marks: Tensor) -> Tensor:
    """Which entries of ``marks`` (bool) are false; indexing with these is much faster than with ``~marks``."""
    return torch.from_numpy(np.flatnonzero(~marks.numpy()))


def merge(first: Tensor, second: Tensor) -> Tensor:
    """Two sorted lists as one."""
    both = np.concatenate([first.numpy(), second.numpy()])
    both.sort(kind="stable")  # a timsort: it finds the two runs and merges them
    return torch.from_numpy(both)


def contains(numbers: Numbers, wanted: Numbers) -> npt.NDArray[np.bool_]:
    """Which of ``wanted`` are among ``numbers``, which increase."""
    if not len(numbers):
        return np.zeros(len(wanted), dtype=np.bool_)
    found: npt.NDArray[np.bool_] = numbers[np.minimum(np.searchsorted(numbers, wanted), len(numbers) - 1)] == wanted
    return found
