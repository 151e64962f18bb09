"""The distance between two topologies: a graph edit distance from 0, the same, to 1, nothing in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from selfish_rnn.analysis.distance.alignment import Alignment, MatrixAlignment
from selfish_rnn.analysis.distance.matching import Partners, UnitMatch
from selfish_rnn.text import aligned
from selfish_rnn.topology import GateLayout, Topology
from selfish_rnn.topology.sampling import contains


@dataclass(frozen=True)
class MatrixDistance:
    """The distance between two topologies of one matrix, and by which units its rows and columns were matched."""

    name: str
    distance: float
    counts: tuple[int, int]
    rows_by: str = ""
    columns_by: str = ""


@dataclass(frozen=True)
class TopologyDistance:
    """The distances between the matrices of two networks, and over all of them.

    ``distance["rnn.weight_hh_l0"]`` is that of one matrix; printed, it is a table. ``matches`` are the partners of the
    units of each layer with their mean correlation, which tells how much there was to match.
    """

    matrices: tuple[MatrixDistance, ...]
    matching: str = "none"
    matches: Mapping[str, UnitMatch] = field(default_factory=dict, repr=False)

    @property
    def overall(self) -> float:
        """The mean of the matrices, each by how many weights it has in the two networks together."""
        weights = [sum(matrix.counts) for matrix in self.matrices]
        total = sum(weight * matrix.distance for weight, matrix in zip(weights, self.matrices, strict=True))
        return total / max(sum(weights), 1)

    def __getitem__(self, name: str) -> float:
        found = {matrix.name: matrix.distance for matrix in self.matrices}
        if name not in found:
            raise KeyError(f"no distance of {name!r}; there are {', '.join(found)}")
        return found[name]

    def __str__(self) -> str:
        rows = [("matrix", "distance", "weights", "rows matched by", "columns matched by")]
        for matrix in self.matrices:
            weights = " and ".join(f"{count}" for count in dict.fromkeys(matrix.counts))
            rows.append(
                (matrix.name, f"{matrix.distance:.4f}", weights, matrix.rows_by or "-", matrix.columns_by or "-")
            )
        rows.append(("all", f"{self.overall:.4f}", "", "", ""))
        return aligned(rows)


def compare_topologies(
    first: Mapping[str, Topology], second: Mapping[str, Topology], alignment: Alignment | None = None
) -> TopologyDistance:
    """The distances between topologies of the same matrices; matrices that are dense in both are left out.

    Without an ``alignment`` units correspond by number, as in one run at two times or in two runs from one start.
    """
    if first.keys() != second.keys():
        raise ValueError(f"the networks have other matrices: they differ in {sorted(first.keys() ^ second.keys())}")
    return compare_pairs(((name, first[name], second[name]) for name in first), alignment or Alignment())


def compare_pairs(pairs: Iterable[tuple[str, Topology, Topology]], alignment: Alignment) -> TopologyDistance:
    """The same for matrices that come one after the other, so that not all topologies are in memory together."""
    distances = []
    for name, one, other in pairs:
        if one.count == one.size and other.count == other.size:
            continue
        how = alignment.matrices.get(name, MatrixAlignment())
        distance = matrix_distance(one, other, how.rows, how.columns)
        distances.append(MatrixDistance(name, distance, (one.count, other.count), how.rows_by, how.columns_by))
    return TopologyDistance(tuple(distances), alignment.matching, alignment.matches)


def matrix_distance(
    first: Topology, second: Topology, rows: Partners | None = None, columns: Partners | None = None
) -> float:
    """The mean of :func:`unit_distances` over the units of a matrix."""
    return float(unit_distances(first, second, rows, columns).mean())


def unit_distances(
    first: Topology, second: Topology, rows: Partners | None = None, columns: Partners | None = None
) -> npt.NDArray[np.float64]:
    """For each unit how many edits turn its connections into those of its partner, as a share of those of either.

        d(u) = |A_u xor B_u| / |A_u or B_u|,   0 if both are empty

    A_u are the connections of unit u in ``first``, in all its gates; B_u those between the same places in ``second``:
    (row, column) is there if (``rows[row]``, ``columns[column]``) exists. Time and memory go with the weights that
    exist.
    """
    if first.shape != second.shape or first.gates != second.gates:
        raise ValueError(f"topologies of {first.shape} and {second.shape} are not of the same shape and gates")
    height, width = first.shape[0], first.size // first.shape[0]
    rows = np.arange(height) if rows is None else rows
    columns = np.arange(width) if columns is None else columns
    unit_of_row, units = units_of_rows(first.gates)
    own_rows, own_columns = np.divmod(first.positions.numpy(), width)
    there = contains(second.positions.numpy(), rows[own_rows] * width + columns[own_columns])
    own = np.bincount(unit_of_row[own_rows], minlength=units)
    shared = np.bincount(unit_of_row[own_rows[there]], minlength=units)
    # A column of the second network counts as often as columns of the first are matched with it.
    times = np.bincount(columns, minlength=width)
    their_rows, their_columns = np.divmod(second.positions.numpy(), width)
    in_row = np.bincount(their_rows, weights=times[their_columns], minlength=height)
    theirs = np.bincount(unit_of_row, weights=in_row[rows], minlength=units)
    union = own + theirs - shared
    return np.where(union > 0, (union - shared) / np.maximum(union, 1), 0.0)


def units_of_rows(gates: GateLayout) -> tuple[Partners, int]:
    """For each row the unit it belongs to, and how many there are.

    Rows at the same place of gates of the same size are of one unit: of an LSTM the four rows of its gates, of ON-LSTM
    the four rows of a neuron and the two rows of the master gates of a chunk.
    """
    starts: dict[int, int] = {}
    units = 0
    for size in gates.sizes:
        if size not in starts:
            starts[size], units = units, units + size
    return np.concatenate([starts[size] + np.arange(size) for size in gates.sizes]), units
