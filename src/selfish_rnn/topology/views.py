"""Views: a weight as the matrix of units that a method removes and grows.

A unit is a single weight or a block of weights. Removal, growth, redistribution and budgets work on the matrix of
units, which has gates of its own, and never see the weight itself. So every method works with every granularity.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from selfish_rnn.topology.gates import GateLayout
from selfish_rnn.topology.rewiring import Rewiring
from selfish_rnn.topology.sampling import Numbers
from selfish_rnn.topology.topology import ActiveWeights, Topology, as_float, matrix_positions, weight_positions

SINGLE = (1, 1)
"""Granularity of single weights."""


def parse_granularity(granularity: str | tuple[int, int]) -> tuple[int, int]:
    """Return the rows and columns of a block.

    >>> parse_granularity("8x4")
    (8, 4)
    """
    if isinstance(granularity, str):
        match = re.fullmatch(r"\s*(\d+)\s*x\s*(\d+)\s*", granularity)
        if match is None:
            raise ValueError(f'granularity is rows x columns of a block, such as "8x4"; got {granularity!r}')
        granularity = int(match[1]), int(match[2])
    rows, columns = granularity
    if rows < 1 or columns < 1:
        raise ValueError(f"a block has at least one row and one column; got {rows}x{columns}")
    return rows, columns


@dataclass(frozen=True)
class View:
    """A weight as a matrix of units: blocks of ``block`` rows and columns, ``(1, 1)`` for single weights.

    >>> view = View((96, 32), GateLayout.even(("reset", "update", "candidate"), 96), block=(8, 4))
    >>> view.units.shape, view.units.gates.sizes
    ((12, 8), (4, 4, 4))

    With ``keep_diagonal`` the diagonal of every gate always exists, in addition to the units. It is never removed and
    does not count in the budget or in the score of a block.
    """

    shape: tuple[int, ...]
    gates: GateLayout
    block: tuple[int, int] = SINGLE
    keep_diagonal: bool = False

    def __post_init__(self) -> None:
        rows, columns = self.block
        if self.keep_diagonal and any(size != self._columns for size in self.gates.sizes):
            raise ValueError(
                f"keep_diagonal needs square gates, but the gates of this {self._matrix} weight have "
                f"{', '.join(map(str, self.gates.sizes))} rows and {self._columns} columns"
            )
        for name, size in zip(self.gates.names, self.gates.sizes, strict=True):
            if size % rows:
                raise ValueError(
                    f"blocks of {rows}x{columns} do not divide gate {name!r} of {size} rows ({size} = "
                    f"{size // rows} * {rows} + {size % rows})"
                )
        if self._columns % columns:
            raise ValueError(
                f"blocks of {rows}x{columns} do not divide {self._columns} columns ({self._columns} = "
                f"{self._columns // columns} * {columns} + {self._columns % columns})"
            )

    @property
    def single(self) -> bool:
        """True if the units are the weights themselves, in the same places."""
        return self.block == SINGLE and not self.keep_diagonal and self.gates.axes == (0,)

    @property
    def unit_size(self) -> int:
        """Number of weights of a unit."""
        return self.block[0] * self.block[1]

    @functools.cached_property
    def units(self) -> Topology:
        """Matrix of units with its gates, without any unit."""
        nothing = torch.empty(0, dtype=torch.int64)
        if self.single:
            return Topology(self.shape, self.gates, nothing)
        rows, columns = self.block
        gates = GateLayout(self.gates.names, tuple(size // rows for size in self.gates.sizes))
        # Without its diagonal a row has one column less, and positions stay sorted.
        width = self._columns - 1 if self._without_diagonal else self._columns // columns
        return Topology((gates.rows, width), gates, nothing)

    @property
    def diagonal_count(self) -> int:
        """Number of weights that always exist."""
        return self.gates.rows if self.keep_diagonal else 0

    # From weights to units

    def unit_topology(self, topology: Topology) -> Topology:
        """Return the existing units; raise if a block exists only in part."""
        if self.single:
            return topology
        units = np.unique(self._units_of(topology)[1])
        existing = replace(self.units, positions=torch.from_numpy(units[units >= 0]))
        whole = self.expand(existing)
        if whole.count != topology.count or not torch.equal(whole.positions, topology.positions):
            what = f"blocks of {self.block[0]}x{self.block[1]}" if self.block != SINGLE else "single weights"
            raise ValueError(
                f"this topology of shape {self.shape} does not consist of whole {what}"
                f"{' and its diagonal' if self.keep_diagonal else ''}"
            )
        return existing

    def unit_weights(self, weights: ActiveWeights) -> ActiveWeights:
        """Return the existing units with their magnitudes: the root mean square of the weights of a block."""
        if self.single:
            return weights
        order, units = self._units_of(weights.topology)
        order, units = order[units >= 0], units[units >= 0]
        existing = np.unique(units)
        members = torch.from_numpy(np.searchsorted(existing, units))

        def reduced(values: Tensor) -> Tensor:
            chosen = as_float(values).cpu()[torch.from_numpy(order)]
            if self.block == SINGLE:
                return torch.zeros(len(existing), dtype=chosen.dtype).index_copy_(0, members, chosen)
            squares = torch.zeros(len(existing), dtype=torch.float64).index_add_(0, members, chosen.double().square())
            return (squares / self.unit_size).sqrt().to(chosen.dtype)

        return ActiveWeights(
            replace(self.units, positions=torch.from_numpy(existing)),
            reduced(weights.values),
            None if weights.gradients is None else reduced(weights.gradients),
            None if weights.score is None else lambda: self.unit_score(weights.dense_score()),
            None if weights.gradient_at is None else lambda units: self._sampled(weights.sampled_gradient, units),
        )

    def unit_score(self, score: Tensor) -> Tensor:
        """Return the dense score of all units, in the shape of the matrix of units."""
        if self.single:
            return score
        axes = self.gates.axes
        order = [*axes, *(axis for axis in range(score.ndim) if axis not in axes)]
        matrix = as_float(score).cpu().permute(order).reshape(self._matrix)
        if self._without_diagonal:
            off = torch.ones(self._matrix, dtype=torch.bool)
            off[torch.arange(self.gates.rows), self._diagonal_columns] = False
            return matrix[off].view(self.units.shape)
        if self.keep_diagonal:
            matrix = matrix.index_put((torch.arange(self.gates.rows), self._diagonal_columns), torch.zeros(()))
        if self.block == SINGLE:
            return matrix
        (rows, columns), (height, width) = self.units.shape, self.block
        return matrix.view(rows, height, columns, width).double().square().mean((1, 3)).sqrt().to(matrix.dtype)

    def _sampled(self, gradient_at: Callable[[Tensor], Tensor], units: Tensor) -> Tensor:
        """Return the gradients of some units, in their order."""
        members = self._members(units.numpy())
        weights = weight_positions(torch.from_numpy(members.reshape(-1)), self._weight)
        gradients = gradient_at(weights).view(members.shape)
        if self.block == SINGLE:
            return gradients.flatten()
        if self.keep_diagonal:
            gradients = gradients.masked_fill(torch.from_numpy(self._on_diagonal(members)), 0.0)
        return gradients.double().square().mean(1).sqrt().to(gradients.dtype)

    # From units to weights

    def expand(self, units: Topology) -> Topology:
        """Return the topology of the weight that consists of these units, and of its diagonal if that is kept."""
        if self.single:
            return replace(units, shape=self.shape, gates=self.gates)
        positions = self._members(units.positions.numpy()).reshape(-1)
        if self.keep_diagonal:
            positions = np.union1d(positions, self._diagonal)
        return replace(self._weight, positions=self._sorted(positions))

    def rewiring(self, before: Topology, change: Rewiring) -> Rewiring:
        """Return the rewiring of the weight with the topology ``before`` that a rewiring of its units stands for."""
        if self.single:
            return change
        order, units = self._units_of(before)
        existing, off = change.before.positions.numpy(), units >= 0
        removed = torch.zeros(before.count, dtype=torch.bool)
        marks = change.removed.numpy()[np.searchsorted(existing, units[off])]
        removed[torch.from_numpy(order[off])] = torch.from_numpy(marks)
        grown = self._members(change.grown.numpy()).reshape(-1)
        if self.keep_diagonal:
            grown = grown[~self._on_diagonal(grown)]
        return Rewiring(before, removed, self._sorted(grown))

    # Numbering

    @property
    def _columns(self) -> int:
        return self._matrix[1]

    @functools.cached_property
    def _matrix(self) -> tuple[int, int]:
        return self.gates.matrix_shape(self.shape)

    @property
    def _without_diagonal(self) -> bool:
        """True if the matrix of units is the matrix without its diagonal."""
        return self.keep_diagonal and self.block == SINGLE

    @property
    def _weight(self) -> Topology:
        return Topology(self.shape, self.gates, torch.empty(0, dtype=torch.int64))

    @functools.cached_property
    def _diagonal_columns(self) -> Tensor:
        """Column of the diagonal in every row; the gates are square."""
        return torch.arange(self.gates.rows) % self._columns

    @functools.cached_property
    def _diagonal(self) -> Numbers:
        """Sorted positions of the diagonals of all gates in the matrix."""
        rows = np.arange(self.gates.rows, dtype=np.int64)
        return rows * self._columns + rows % self._columns

    def _on_diagonal(self, positions: Numbers) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        """Mark the positions of the matrix that lie on the diagonal."""
        rows, columns = np.divmod(positions, self._columns)
        marks: np.ndarray[tuple[int, ...], np.dtype[np.bool_]] = rows % self._columns == columns
        return marks

    def _units_of(self, topology: Topology) -> tuple[Numbers, Numbers]:
        """Return entries of ``topology.positions`` and their units, sorted by position in the matrix; -1: diagonal."""
        positions = matrix_positions(topology.positions, topology).numpy()
        order = np.argsort(positions, kind="stable")
        positions = positions[order]
        rows, columns = np.divmod(positions, self._columns)
        diagonal = rows % self._columns
        if self._without_diagonal:
            units = rows * (self._columns - 1) + columns - (columns > diagonal)
        else:
            units = rows // self.block[0] * self.units.shape[1] + columns // self.block[1]
        if self.keep_diagonal:
            units[columns == diagonal] = -1
        return order, units

    def _members(self, units: Numbers) -> Numbers:
        """Return the positions in the matrix of the weights of every unit, one row for each unit."""
        rows, columns = np.divmod(units, self.units.shape[1])
        if self._without_diagonal:
            columns = columns + (columns >= rows % self._columns)
            return (rows * self._columns + columns)[:, None]
        height, width = self.block
        inside = np.arange(height)[:, None] * self._columns + np.arange(width)
        members: Numbers = (rows * height * self._columns + columns * width)[:, None] + inside.reshape(-1)
        return members

    def _sorted(self, positions: Numbers) -> Tensor:
        """Return positions of the matrix as sorted positions of the weight."""
        return weight_positions(torch.from_numpy(positions), self._weight).sort().values
