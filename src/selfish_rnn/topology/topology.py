"""A topology: which positions of one weight matrix exist."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from selfish_rnn.topology.gates import WHOLE, GateLayout
from selfish_rnn.topology.sampling import false_indices, merge, sample

SAVED_TYPES = (torch.uint8, torch.int32, torch.int64)
"""Types of :meth:`Topology.to_saved`: bits of a mask, or positions."""


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
    def plain(cls, shape: Sequence[int], positions: Tensor) -> Topology:
        """Of a matrix without gates."""
        return cls(tuple(shape), GateLayout.single(shape[0]), positions)

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
        mask = torch.zeros(self.size, dtype=dtype)
        mask[self.positions] = 1
        return mask.view(self.shape).to(device)

    @classmethod
    def from_bits(cls, bits: Tensor, shape: tuple[int, ...], gates: GateLayout | None = None) -> Topology:
        """The topology that :meth:`to_bits` saved; without ``gates``, of a matrix that has none."""
        size = math.prod(shape)
        if bits.numel() != (size + 7) // 8:
            raise ValueError(f"a mask of {bits.numel()} bytes does not fit a matrix of shape {shape}")
        pieces = _pieces(bits.to(torch.uint8).cpu().numpy())
        found = np.concatenate([np.flatnonzero(np.unpackbits(piece)) + 8 * first for first, piece in pieces])
        positions = torch.from_numpy(found[: np.searchsorted(found, size)])
        return cls.plain(shape, positions) if gates is None else cls(shape, gates, positions)

    def to_bits(self) -> Tensor:
        """The mask as a flat uint8 tensor of one bit per position, for saving."""
        bits = np.zeros((self.size + 7) // 8, dtype=np.uint8)
        positions = self.positions.numpy()
        for first, piece in _pieces(bits):
            start, stop = np.searchsorted(positions, [8 * first, 8 * (first + len(piece))])
            mask = np.zeros(8 * len(piece), dtype=np.bool_)
            mask[positions[start:stop] - 8 * first] = True
            piece[:] = np.packbits(mask)
        return torch.from_numpy(bits)

    @classmethod
    def from_saved(cls, saved: Tensor, shape: tuple[int, ...], gates: GateLayout | None = None) -> Topology:
        """The topology that :meth:`to_saved` gave; without ``gates``, of a matrix that has none."""
        if saved.dtype not in SAVED_TYPES or saved.ndim != 1:
            raise ValueError(f"a saved topology is a flat tensor of bits or positions, not {saved.dtype}")
        if saved.dtype == torch.uint8:
            return cls.from_bits(saved, shape, gates)
        positions, size = saved.to("cpu", torch.int64), math.prod(shape)
        if len(positions) and (positions[0] < 0 or positions[-1] >= size or (positions.diff() <= 0).any()):
            raise ValueError(f"these positions are none of a matrix of shape {shape}, in their order")
        return cls.plain(shape, positions) if gates is None else cls(shape, gates, positions)

    def to_saved(self) -> Tensor:
        """What exists as a flat tensor, the smaller of two: :meth:`to_bits`, or the positions.

        Positions are int32 where that is enough. They take less than bits below a density of 1/32, or 1/64.
        """
        kind, width = (torch.int32, 4) if self.size <= 2**31 else (torch.int64, 8)
        return self.positions.to(kind) if width * self.count < (self.size + 7) // 8 else self.to_bits()

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

    @property
    def matrix_spans(self) -> list[Span]:
        """The positions of each matrix: one span, unless several matrices make up a layer."""
        return [self.whole]

    @property
    def gate_rows(self) -> tuple[int, ...]:
        """The number of rows of each gate."""
        return self.gates.sizes

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

    def densities(self) -> dict[str, float]:
        """The density of each gate, and under ``"all"`` that of the whole matrix."""
        return {**self.gate_densities(), WHOLE: self.density}

    def without(self, removed: Tensor) -> Topology:
        """The topology without the entries of ``positions`` that ``removed`` (bool) marks."""
        staying = self.positions.numpy()[false_indices(removed).numpy()]
        return replace(self, positions=torch.from_numpy(staying))

    def divided(self, rows: Sequence[int]) -> Iterator[Topology]:
        """The topologies of so many rows each, from the top; without gates."""
        first, columns = 0, self.size // self.shape[0]
        for count in rows:
            start, stop = first * columns, (first + count) * columns
            inside = self.positions[self.within(Span(start, stop))] - start
            yield Topology.plain((count, *self.shape[1:]), inside)
            first += count

    def joined(self, grown: Tensor) -> Topology:
        """The topology with more positions, sorted, none of which exists yet."""
        return replace(self, positions=merge(self.positions, grown))


@dataclass(frozen=True, eq=False)
class LayerTopology(Topology):
    """The topologies of the matrices of one recurrent layer, as one range of positions.

    Positions count through the matrices one after the other, so ``shape`` has one dimension, and the sizes in ``gates``
    are numbers of positions. The gates of all matrices are gates of the layer. The matrices may differ in columns.
    """

    empty: tuple[Topology, ...]
    """The shape and gates of every matrix, without positions."""

    @classmethod
    def of(cls, matrices: Sequence[Topology]) -> LayerTopology:
        """Join the topologies of matrices, in their order."""
        starts = itertools.accumulate((matrix.size for matrix in matrices), initial=0)
        gates = [
            (f"{number}.{name}", span.size)
            for number, matrix in enumerate(matrices)
            for name, span in matrix.gate_spans()
        ]
        names, sizes = zip(*gates, strict=True)
        positions = torch.cat([matrix.positions + start for matrix, start in zip(matrices, starts, strict=False)])
        none = torch.empty(0, dtype=torch.int64)
        empty = tuple(replace(matrix, positions=none) for matrix in matrices)
        return cls((sum(sizes),), GateLayout(names, sizes), positions, empty)

    @property
    def matrix_spans(self) -> list[Span]:
        ends = list(itertools.accumulate(matrix.size for matrix in self.empty))
        return [Span(end - matrix.size, end) for matrix, end in zip(self.empty, ends, strict=True)]

    @property
    def gate_rows(self) -> tuple[int, ...]:
        return tuple(rows for matrix in self.empty for rows in matrix.gate_rows)

    def matrices(self) -> Iterator[Topology]:
        """The topology of each matrix."""
        for matrix, span in zip(self.empty, self.matrix_spans, strict=True):
            yield replace(matrix, positions=self.positions[self.within(span)] - span.start)


def _pieces(bits: npt.NDArray[np.uint8], length: int = 2**20) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
    """A mask piece by piece, so that it is never there with a byte for each position; where each begins."""
    return ((first, bits[first : first + length]) for first in range(0, len(bits), length))


@dataclass(frozen=True)
class ActiveWeights:
    """The existing weights of one matrix, or of one layer: topology, and values in the order of its positions.

    ``gradients`` are theirs. ``score`` gives, for methods with a signal, the dense gradient or momentum of the whole
    matrix, or of the matrices of the layer, flattened one after the other; it is called for one matrix or layer at a
    time.
    """

    topology: Topology
    values: Tensor
    gradients: Tensor | None = None
    score: Callable[[], Tensor] | None = None

    def dense_score(self) -> Tensor:
        if self.score is None:
            raise ValueError("a method with a signal needs the dense gradient or momentum of the matrix")
        return self.score()

    def mean_score(self) -> float:
        """The mean magnitude of the score over the existing weights."""
        return mean_magnitude(self.dense_score().flatten().cpu()[self.topology.positions])


Network = Sequence[Callable[[], ActiveWeights]]
"""Each matrix of a network when it is asked for: gathering one takes memory, and a rewiring holds one at a time.

A method whose pool is the layer takes each layer, as a :class:`LayerTopology`, in place of its matrices.
"""


def mean_magnitude(values: Tensor) -> float:
    """``mean(|values|)``, 0 of none."""
    return float(values.abs().mean()) if len(values) else 0.0


def as_float(values: Tensor) -> Tensor:
    """Values to compare in magnitude, in single precision or, where they have it, in double."""
    return values.detach().to(torch.promote_types(values.dtype, torch.float32))
