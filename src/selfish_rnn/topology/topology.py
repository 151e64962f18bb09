"""Topologies: the existing positions of a weight matrix or of a recurrent layer."""

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
"""Types that :meth:`Topology.to_saved` returns: bits of a mask, or positions."""


@dataclass(frozen=True)
class Span:
    """Positions from ``start`` up to, not including, ``stop``: a run of whole rows of a matrix."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, eq=False)
class Topology:
    """The existing positions of a matrix: sorted, row-major and of type int64.

    Memory goes with the existing weights, so both engines can use it: the masked engine through :meth:`to_mask`, the
    packed engine directly. A tensor of more than two dimensions is the matrix that its gate layout describes.
    """

    shape: tuple[int, ...]
    gates: GateLayout
    positions: Tensor

    def __post_init__(self) -> None:
        self.gates.matrix_shape(self.shape)

    @classmethod
    def plain(cls, shape: Sequence[int], positions: Tensor) -> Topology:
        """Return the topology of a matrix without gates."""
        return cls(tuple(shape), GateLayout.single(shape[0]), positions)

    @classmethod
    def random(cls, shape: tuple[int, ...], gates: GateLayout, count: int, generator: torch.Generator) -> Topology:
        """Draw ``count`` positions uniformly from the whole matrix."""
        return cls(shape, gates, sample(math.prod(shape), count, generator))

    @classmethod
    def from_mask(cls, mask: Tensor, gates: GateLayout) -> Topology:
        """Return the positions at which ``mask`` is not zero."""
        return cls(tuple(mask.shape), gates, mask.flatten().nonzero().flatten().cpu())

    def to_mask(self, dtype: torch.dtype = torch.bool, device: torch.device | str = "cpu") -> Tensor:
        """Return a tensor of the matrix's shape that is 1 where a weight exists."""
        mask = torch.zeros(self.size, dtype=dtype)
        mask[self.positions] = 1
        return mask.view(self.shape).to(device)

    @classmethod
    def from_bits(cls, bits: Tensor, shape: tuple[int, ...], gates: GateLayout | None = None) -> Topology:
        """Return the topology that :meth:`to_bits` saved, without gates unless they are passed."""
        size = math.prod(shape)
        if bits.numel() != (size + 7) // 8:
            raise ValueError(f"a mask of {bits.numel()} bytes does not fit a matrix of shape {shape}")
        pieces = _pieces(bits.to(torch.uint8).cpu().numpy())
        numbers = np.concatenate([np.flatnonzero(np.unpackbits(piece)) + 8 * first for first, piece in pieces])
        positions = torch.from_numpy(numbers[: np.searchsorted(numbers, size)])
        return cls.plain(shape, positions) if gates is None else cls(shape, gates, positions)

    def to_bits(self) -> Tensor:
        """Return the mask as a flat uint8 tensor of one bit per position, for saving."""
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
        """Return the topology that :meth:`to_saved` saved, without gates unless they are passed."""
        if saved.dtype not in SAVED_TYPES or saved.ndim != 1:
            raise ValueError(f"a saved topology is a flat tensor of bits or positions, not {saved.dtype}")
        if saved.dtype == torch.uint8:
            return cls.from_bits(saved, shape, gates)
        positions, size = saved.to("cpu", torch.int64), math.prod(shape)
        if len(positions) and (positions[0] < 0 or positions[-1] >= size or (positions.diff() <= 0).any()):
            raise ValueError(f"positions must be sorted, unique and inside a matrix of shape {shape}")
        return cls.plain(shape, positions) if gates is None else cls(shape, gates, positions)

    def to_saved(self) -> Tensor:
        """Return the smaller of two flat tensors: :meth:`to_bits`, or the positions.

        Positions are int32 where that is enough. They take less than bits below a density of 1/32, or 1/64.
        """
        kind, width = (torch.int32, 4) if self.size < 2**31 else (torch.int64, 8)
        return self.positions.to(kind) if width * self.count < (self.size + 7) // 8 else self.to_bits()

    @property
    def count(self) -> int:
        """Number of existing weights."""
        return len(self.positions)

    @property
    def size(self) -> int:
        """Number of positions of the matrix."""
        return math.prod(self.shape)

    @property
    def density(self) -> float:
        """Fraction of positions that exist."""
        return self.count / self.size

    @property
    def whole(self) -> Span:
        """Span of all positions."""
        return Span(0, self.size)

    @property
    def matrix_spans(self) -> list[Span]:
        """Span of each matrix: one, unless several matrices make up a layer."""
        return [self.whole]

    @property
    def gate_rows(self) -> tuple[int, ...]:
        """Number of rows of each gate."""
        return self.gates.sizes

    def gate_spans(self) -> Iterator[tuple[str, Span]]:
        """Yield each gate with the span of its positions."""
        if self.gates.axes != (0,):
            raise ValueError("the gates of this weight are no spans of its positions: use those of as_matrix()")
        columns = self.size // self.shape[0]
        for name, first, stop in self.gates.row_ranges():
            yield name, Span(first * columns, stop * columns)

    def as_matrix(self) -> Topology:
        """Return the same topology as that of a matrix whose rows are divided into the gates."""
        if self.gates.axes == (0,):
            return self
        gates = replace(self.gates, axes=(0,))
        return Topology(
            self.gates.matrix_shape(self.shape), gates, matrix_positions(self.positions, self).sort().values
        )

    def within(self, span: Span) -> slice:
        """Return the entries of ``positions`` inside a span."""
        start, stop = np.searchsorted(self.positions.numpy(), [span.start, span.stop]).tolist()
        return slice(start, stop)

    def count_in(self, span: Span) -> int:
        """Return the number of existing weights inside a span."""
        entries = self.within(span)
        return int(entries.stop - entries.start)

    def gate_densities(self) -> dict[str, float]:
        """Return the density of each gate, by name."""
        matrix = self.as_matrix()
        return {name: matrix.count_in(span) / span.size for name, span in matrix.gate_spans()}

    def densities(self) -> dict[str, float]:
        """Return the density of each gate, and under ``"all"`` that of the whole matrix."""
        return {**self.gate_densities(), WHOLE: self.density}

    def without(self, removed: Tensor) -> Topology:
        """Return the topology without the entries of ``positions`` that ``removed`` (bool) marks."""
        survivors = self.positions.numpy()[false_indices(removed).numpy()]
        return replace(self, positions=torch.from_numpy(survivors))

    def divided(self, rows: Sequence[int]) -> Iterator[Topology]:
        """Split the matrix from the top into matrices of ``rows`` rows each, without gates."""
        first, columns = 0, self.size // self.shape[0]
        for count in rows:
            start, stop = first * columns, (first + count) * columns
            inside = self.positions[self.within(Span(start, stop))] - start
            yield Topology.plain((count, *self.shape[1:]), inside)
            first += count

    def matrices(self) -> Iterator[Topology]:
        """Yield the topology of each matrix: this one, unless several matrices make up a layer."""
        yield self

    def joined(self, grown: Tensor) -> Topology:
        """Add the sorted positions ``grown``, which must be empty."""
        return replace(self, positions=merge(self.positions, grown))


@dataclass(frozen=True, eq=False)
class LayerTopology(Topology):
    """The topologies of the matrices of one recurrent layer, as one range of positions.

    Positions count through the matrices one after the other. So ``shape`` has one dimension, and the sizes in ``gates``
    are numbers of positions. The gates of all matrices are gates of the layer. The matrices may differ in columns.
    """

    empty: tuple[Topology, ...]
    """Shape and gates of every matrix, without positions."""

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
        no_positions = torch.empty(0, dtype=torch.int64)
        empty = tuple(replace(matrix, positions=no_positions) for matrix in matrices)
        return cls((sum(sizes),), GateLayout(names, sizes), positions, empty)

    @property
    def matrix_spans(self) -> list[Span]:
        ends = list(itertools.accumulate(matrix.size for matrix in self.empty))
        return [Span(end - matrix.size, end) for matrix, end in zip(self.empty, ends, strict=True)]

    @property
    def gate_rows(self) -> tuple[int, ...]:
        return tuple(rows for matrix in self.empty for rows in matrix.gate_rows)

    def matrices(self) -> Iterator[Topology]:
        """Yield the topology of each matrix."""
        for matrix, span in zip(self.empty, self.matrix_spans, strict=True):
            yield replace(matrix, positions=self.positions[self.within(span)] - span.start)


def _pieces(bits: npt.NDArray[np.uint8], length: int = 2**20) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
    """Split a mask into pieces, each with its first byte: one byte per position never exists for the whole mask."""
    return ((first, bits[first : first + length]) for first in range(0, len(bits), length))


@dataclass(frozen=True)
class ActiveWeights:
    """The existing weights of one matrix or layer: topology, and values in the order of its positions.

    ``gradients`` are those of the existing weights. ``score`` returns the dense gradient or momentum, for methods with
    a dense signal: that of the whole matrix, or those of the matrices of a layer, flattened and concatenated. It is
    called for one matrix or layer at a time. ``gradient_at`` returns the gradients of some positions, in any order, for
    methods that sample them.
    """

    topology: Topology
    values: Tensor
    gradients: Tensor | None = None
    score: Callable[[], Tensor] | None = None
    gradient_at: Callable[[Tensor], Tensor] | None = None

    def dense_score(self) -> Tensor:
        """Return the dense gradient or momentum; raise if there is none."""
        if self.score is None:
            raise ValueError("a method with a signal needs the dense gradient or momentum of the matrix")
        return self.score()

    def sampled_gradient(self, positions: Tensor) -> Tensor:
        """Return the gradients of some positions; raise if there are none."""
        if self.gradient_at is None:
            raise ValueError("a method that samples gradients needs those of the positions that it samples")
        return as_float(self.gradient_at(positions)).cpu()

    def without(self, removed: Tensor) -> ActiveWeights:
        """Return the weights that ``removed`` does not mark."""
        survivors = false_indices(removed)
        gradients = None if self.gradients is None else self.gradients[survivors]
        topology = self.topology.without(removed)
        return replace(self, topology=topology, values=self.values[survivors], gradients=gradients)

    def mean_score(self) -> float:
        """Return the mean magnitude of the score over the existing weights."""
        return mean_magnitude(self.dense_score().flatten().cpu()[self.topology.positions])


def matrix_positions(positions: Tensor, weight: Topology) -> Tensor:
    """Return positions of a weight as positions of the matrix that its gate layout describes, in the same order."""
    order = _axis_order(weight)
    return _renumbered(positions, weight.shape, order)


def weight_positions(positions: Tensor, weight: Topology) -> Tensor:
    """Return positions of the matrix of :func:`matrix_positions` as positions of the weight, in the same order."""
    order = _axis_order(weight)
    back = [order.index(axis) for axis in range(len(order))]
    return _renumbered(positions, [weight.shape[axis] for axis in order], back)


def rows_as(values: Tensor, weight: Topology) -> Tensor:
    """Return one value for each row of the matrix in a shape that broadcasts over the weight."""
    axes = weight.gates.axes
    spread = values.view([weight.shape[axis] for axis in axes])
    order = sorted(range(len(axes)), key=lambda place: axes[place])
    return spread.permute(order).reshape(
        [weight.shape[axis] if axis in axes else 1 for axis in range(len(weight.shape))]
    )


def _axis_order(weight: Topology) -> list[int]:
    axes = weight.gates.axes
    return [*axes, *(axis for axis in range(len(weight.shape)) if axis not in axes)]


def _renumbered(positions: Tensor, shape: Sequence[int], order: Sequence[int]) -> Tensor:
    """Number positions in the order of the permuted axes."""
    if list(order) == list(range(len(shape))):
        return positions
    indices = np.unravel_index(positions.numpy(), tuple(shape))
    numbers = np.ravel_multi_index([indices[axis] for axis in order], [shape[axis] for axis in order])
    return torch.from_numpy(np.asarray(numbers, dtype=np.int64))


Network = Sequence[Callable[[], ActiveWeights]]
"""Functions that return the matrices of a network, one each: a rewiring has only one matrix in memory at a time.

A method whose pool is the layer takes each layer, as a :class:`LayerTopology`, in place of its matrices.
"""


def mean_magnitude(values: Tensor) -> float:
    """Return ``mean(|values|)``, or 0 without values."""
    return float(values.abs().mean()) if len(values) else 0.0


def as_float(values: Tensor) -> Tensor:
    """Return values in single precision, or in double where they have it, to compare magnitudes."""
    return values.detach().to(torch.promote_types(values.dtype, torch.float32))
