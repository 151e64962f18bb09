"""A topology: which positions of one weight matrix exist."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from selfish_rnn.topology.gates import GateLayout

SMALL_POPULATION = 1000
"""Up to this many numbers :func:`sample` shuffles them all."""


@dataclass(frozen=True)
class Span:
    """A run of whole rows of a matrix as positions ``start`` up to, not including, ``stop``."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, eq=False)
class Topology:
    """The existing positions of a matrix, as sorted row-major positions (int64).

    Only existing weights take memory, so both engines can use it: the masked one through :meth:`to_mask`, the
    packed one directly. A tensor of more than two dimensions counts as a matrix of ``shape[0]`` rows.
    """

    shape: tuple[int, ...]
    gates: GateLayout
    positions: Tensor

    def __post_init__(self) -> None:
        if self.gates.rows != self.shape[0]:
            raise ValueError(f"gates of {self.gates.rows} rows do not fit a matrix of shape {self.shape}")

    @classmethod
    def random(cls, shape: tuple[int, ...], gates: GateLayout, count: int, generator: torch.Generator) -> Topology:
        """``count`` positions drawn uniformly from the whole matrix."""
        return cls(shape, gates, sample(math.prod(shape), count, generator))

    @classmethod
    def from_mask(cls, mask: Tensor, gates: GateLayout) -> Topology:
        """The positions at which ``mask`` is not zero."""
        return cls(tuple(mask.shape), gates, mask.flatten().nonzero().flatten().cpu())

    def to_mask(self, dtype: torch.dtype = torch.bool, device: torch.device | str = "cpu") -> Tensor:
        """A tensor of the matrix's shape that is 1 where a weight exists."""
        mask = torch.zeros(math.prod(self.shape), dtype=dtype)
        mask[self.positions] = 1
        return mask.view(self.shape).to(device)

    @property
    def count(self) -> int:
        return len(self.positions)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def density(self) -> float:
        return self.count / self.size

    @property
    def whole(self) -> Span:
        return Span(0, self.size)

    def gate_spans(self) -> Iterator[tuple[str, Span]]:
        """Each gate with the positions it covers."""
        columns = self.size // self.shape[0]
        for name, first, stop in self.gates.row_ranges():
            yield name, Span(first * columns, stop * columns)

    def within(self, span: Span) -> slice:
        """Which entries of ``positions`` lie in a span."""
        start, stop = np.searchsorted(self.positions.numpy(), [span.start, span.stop]).tolist()
        return slice(start, stop)

    def count_in(self, span: Span) -> int:
        found = self.within(span)
        return int(found.stop - found.start)

    def gate_densities(self) -> dict[str, float]:
        """The density of each gate."""
        return {name: self.count_in(span) / span.size for name, span in self.gate_spans()}

    def without(self, removed: Tensor) -> Topology:
        """The topology without the entries of ``positions`` that ``removed`` (bool) marks."""
        return Topology(
            self.shape, self.gates, torch.from_numpy(self.positions.numpy()[false_indices(removed).numpy()])
        )

    def joined(self, grown: Tensor) -> Topology:
        """The topology with more positions, sorted, none of which exists yet."""
        return Topology(self.shape, self.gates, merge(self.positions, grown))


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


def as_float(values: Tensor) -> Tensor:
    """Values to compare in magnitude, in single precision or, where they have it, in double."""
    return values.detach().to(torch.promote_types(values.dtype, torch.float32))
