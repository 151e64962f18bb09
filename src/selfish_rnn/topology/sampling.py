"""Random sets of positions, at a cost that goes with their number and not with the size of the matrix."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Numbers = npt.NDArray[np.int64]

SMALL_POPULATION = 1000
"""Largest population that :func:`sample` shuffles as a whole."""


def sample(population: int, count: int, generator: torch.Generator) -> Tensor:
    """Draw ``count`` different numbers below ``population``, sorted; every set is equally likely.

    Time and memory go with ``count``, not with ``population``, so growth never costs as much as the dense matrix. All
    sets of one size that :func:`bernoulli_positions` returns are equally likely, and so are their subsets. So slightly
    too many numbers are drawn, and a smaller sample chooses ``count`` of them.
    """
    if population <= SMALL_POPULATION:
        return torch.randperm(population, generator=generator)[:count].sort().values
    if count > population // 2:
        excluded = np.zeros(population, dtype=np.bool_)
        excluded[sample(population, population - count, generator).numpy()] = True
        return false_indices(torch.from_numpy(excluded))
    while True:
        numbers = bernoulli_positions(population, upper_bound(count) / population, generator)
        if len(numbers) >= count:
            return torch.from_numpy(numbers.numpy()[sample(len(numbers), count, generator).numpy()])


def bernoulli_positions(population: int, probability: float, generator: torch.Generator) -> Tensor:
    """Take each number below ``population`` with the same probability, independently; return them sorted.

    The gaps between them are drawn:

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
    numbers = runs[0] if len(runs) == 1 else np.concatenate(runs)
    return torch.from_numpy(numbers[: np.searchsorted(numbers, population)])


def sample_empty(occupied: Numbers, size: int, count: int, seed: int) -> Numbers:
    """Draw ``count`` numbers below ``size`` outside ``occupied`` (sorted); sorted, every set equally likely.

    All numbers are drawn from, and occupied ones are skipped. So with one occupied number more or less, the same seed
    gives the same numbers except for one or two.
    """
    empty = size - len(occupied)
    if count > empty // 2:
        chosen = np.ones(size, dtype=np.bool_)
        chosen[occupied] = False
        chosen[sample_empty(occupied, size, empty - count, seed)] = False
        return np.flatnonzero(chosen)
    if count == 0:
        return np.empty(0, dtype=np.int64)
    generator = torch.Generator().manual_seed(seed)
    # The probability changes in steps, so that one position more or less does not change what is drawn.
    probability = 2 ** (math.ceil(8 * math.log2(upper_bound(count) / empty)) / 8)
    while True:
        numbers = bernoulli_positions(size, probability, generator).numpy()
        priorities = torch.rand(len(numbers), dtype=torch.float64, generator=generator).numpy()
        empty_marks = np.append(occupied, size)[np.searchsorted(occupied, numbers)] != numbers
        numbers, priorities = numbers[empty_marks], priorities[empty_marks]
        if len(numbers) >= count:
            last = torch.from_numpy(priorities).kthvalue(count).values.item()
            result: Numbers = numbers[priorities <= last]
            return result


def upper_bound(count: float) -> int:
    """Return a bound that a random count with mean ``count`` rarely exceeds: four standard deviations above."""
    return math.ceil(count + 4 * math.sqrt(count)) + 4


def false_indices(marks: Tensor) -> Tensor:
    """Return the indices at which ``marks`` (bool) is false; indexing with them is much faster than with ``~marks``."""
    return torch.from_numpy(np.flatnonzero(~marks.numpy()))


def merge(first: Tensor, second: Tensor) -> Tensor:
    """Merge two sorted lists."""
    both = np.concatenate([first.numpy(), second.numpy()])
    both.sort(kind="stable")  # a timsort: it detects the two runs and merges them
    return torch.from_numpy(both)


def contains(numbers: Numbers, candidates: Numbers) -> npt.NDArray[np.bool_]:
    """Mark the ``candidates`` that are among ``numbers``, which must be sorted."""
    if not len(numbers):
        return np.zeros(len(candidates), dtype=np.bool_)
    indices = np.minimum(np.searchsorted(numbers, candidates), len(numbers) - 1)
    marks: npt.NDArray[np.bool_] = numbers[indices] == candidates
    return marks
