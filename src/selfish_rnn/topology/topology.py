"""A topology: which positions of one weight matrix exist."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from selfish_rnn.topology.gates import GateLayout


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
    active: Tensor

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
        mask[self.active] = 1
        return mask.view(self.shape).to(device)

    @property
    def count(self) -> int:
        return len(self.active)

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
        """Which entries of ``active`` lie in a span."""
        start, stop = torch.searchsorted(self.active, torch.tensor([span.start, span.stop])).tolist()
        return slice(start, stop)

    def count_in(self, span: Span) -> int:
        found = self.within(span)
        return int(found.stop - found.start)

    def gate_densities(self) -> dict[str, float]:
        """The density of each gate."""
        return {name: self.count_in(span) / span.size for name, span in self.gate_spans()}

    def without(self, removed: Tensor) -> Topology:
        """The topology without the entries of ``active`` that ``removed`` (bool) marks."""
        return Topology(self.shape, self.gates, self.active[~removed])

    def joined(self, grown: Tensor) -> Topology:
        """The topology with more positions, none of which exists yet."""
        return Topology(self.shape, self.gates, torch.cat([self.active, grown]).sort().values)


def sample(population: int, count: int, generator: torch.Generator) -> Tensor:
    """``count`` different numbers below ``population``, sorted, every set equally likely.

    Time and memory go with ``count``, not with ``population``, so that growing weights never costs what the dense
    matrix would.
    """
    if count > population // 2:
        kept = torch.ones(population, dtype=torch.bool)
        kept[sample(population, population - count, generator)] = False
        return kept.nonzero().flatten()
    drawn = torch.empty(0, dtype=torch.int64)
    while len(drawn) < count:
        more = torch.randint(population, (count - len(drawn) + 8,), generator=generator)
        drawn = torch.cat([drawn, more]).unique()  # type: ignore[no-untyped-call]
    # Which of the surplus go must not depend on their order, which unique() sorted.
    keep = torch.randperm(len(drawn), generator=generator)[:count]
    return drawn[keep].sort().values


def empty_positions(occupied: Tensor, span: Span, ranks: Tensor) -> Tensor:
    """The positions of the ``ranks``-th empty places of a span, ``occupied`` being its sorted occupied positions.

    Before the r-th empty place stand as many occupied ones as have at most r empty places before them.
    """
    empties_before = occupied - span.start - torch.arange(len(occupied))
    return span.start + ranks + torch.searchsorted(empties_before, ranks, right=True)


def at_least_single(values: Tensor) -> Tensor:
    """Values to compare in magnitude, in single precision or, where they have it, in double."""
    return values.detach().to(torch.promote_types(values.dtype, torch.float32))
