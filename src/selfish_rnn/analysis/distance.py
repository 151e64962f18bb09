"""Topological distance between two networks (appendix of the paper): alignment of units, matching and measurement."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from selfish_rnn.analysis.activations import LINEAR, Activations, Data, Layer, Observer
from selfish_rnn.analysis.networks import WeightMatrix, weight_matrices
from selfish_rnn.engine import PackedEmbedding
from selfish_rnn.text import aligned
from selfish_rnn.topology import GateLayout, Topology
from selfish_rnn.topology.sampling import contains

__all__ = [
    "Alignment",
    "MatrixDistance",
    "TopologyDistance",
    "align",
    "compare_topologies",
    "matrix_distance",
    "topology_distance",
    "unit_distances",
]


def topology_distance(
    first: nn.Module,
    second: nn.Module,
    data: Data,
    *,
    matching: Matching = "semi",
    samples: int = 10_000,
    topologies: tuple[Mapping[str, Topology], Mapping[str, Topology]] | None = None,
    readouts: Collection[str] | None = None,
) -> TopologyDistance:
    """Return the distance between the sparse topologies of two networks, from 0 to 1, by matrix and over all.

    Both networks run on the same data. Each unit of the first is matched with the unit of the second whose activations
    correlate with its own most, and then for each unit the connections are compared:

        d(u) = |A_u xor B_u| / |A_u or B_u|

    averaged over the units of a matrix. The columns of a matrix are aligned by the units that enter it, its rows by
    those that leave it; a recurrent matrix by its own units on both sides; the rows of all gates of a unit move
    together. Two random topologies of density d that have nothing to do with each other are at about
    1 - d / (2 - d), for d = 0.33 at 0.80.

    >>> from selfish_rnn import Sparsifier
    >>> lstms = [nn.LSTM(8, 16), nn.LSTM(8, 16)]
    >>> sparsifiers = [Sparsifier(lstm, sparsity=0.8, rewirings=1, seed=seed) for seed, lstm in enumerate(lstms)]
    >>> distance = topology_distance(*lstms, torch.randn(100, 4, 8))
    >>> distance["weight_hh_l0"] > 0.7, distance.overall > 0.7
    (True, True)
    >>> topology_distance(lstms[0], lstms[0], torch.randn(100, 4, 8)).overall
    0.0

    Args:
        first, second: networks of the same shape; dense with zeros, under a sparsifier, or packed.
        data: what the models are called with: a tensor, or an iterable of batches, each a tensor or a tuple of
            arguments. Language models of this package take tokens, time x batch, and carry their state from batch to
            batch.
        matching: ``"semi"``, as the paper: several units may have the same partner, so the distance from the second
            network to the first is another one. ``"one-to-one"``: the best pairing of all units, the same both ways
            (needs scipy).
        samples: at most so many activations of each unit are used (time steps times batch).
        topologies: to compare instead of those the networks have now, such as those of earlier epochs.
        readouts: names of linear layers whose rows are outputs that mean the same in both networks; by default the
            linear layer that is called last. Rows of other linear layers are units.

    Rows that are words (embedding, output layer) stay as they are, and so do rows and columns that belong to no unit
    that can be seen; the table says which are matched by what. Matrices that are dense in both networks are left out.
    """
    ours, theirs = weight_matrices(first), weight_matrices(second)
    if ours.keys() != theirs.keys():
        raise ValueError(f"the networks have other matrices: they differ in {sorted(ours.keys() ^ theirs.keys())}")
    alignment = align(first, second, data, matching=matching, samples=samples, readouts=readouts)
    if topologies is not None:
        return compare_topologies(*topologies, alignment)
    return compare_pairs(((name, ours[name].topology, theirs[name].topology) for name in ours), alignment)


FIXED = ""
"""Stand-in for a group of units: rows or columns with the same meaning in both networks, such as words."""

_RECURRENT = re.compile("hh|recurrent|hidden")
_OF_LAYER = re.compile(r"_l\d+(_reverse)?$")


@dataclass(frozen=True)
class MatrixAlignment:
    """Partner of every row and column of a matrix of the first network in the second.

    ``None`` leaves them as they are. ``rows_by`` and ``columns_by`` say by which units they were matched.
    """

    rows: Partners | None = None
    columns: Partners | None = None
    rows_by: str = FIXED
    columns_by: str = FIXED


@dataclass(frozen=True)
class Alignment:
    """Correspondence of two networks: an alignment for each matrix, and the matches of units behind it."""

    matrices: Mapping[str, MatrixAlignment] = field(default_factory=dict)
    matches: Mapping[str, UnitMatch] = field(default_factory=dict)
    matching: str = "none"


def align(
    first: nn.Module,
    second: nn.Module,
    data: Data,
    *,
    matching: Matching = "semi",
    samples: int = 10_000,
    readouts: Collection[str] | None = None,
) -> Alignment:
    """Match the units of two networks of the same shape by their activations on the same data.

    For ``data``, ``samples`` and ``readouts`` see :func:`~selfish_rnn.analysis.distance.topology_distance`.
    """
    if matching not in ("semi", "one-to-one"):
        raise ValueError(f"matching must be 'semi' or 'one-to-one', got {matching!r}")
    unknown = sorted(set(readouts or ()) - dict(first.named_modules()).keys())
    if unknown:
        raise ValueError(f"readouts names no module of the model: {', '.join(unknown)}")
    seen, fixed = observe_both(first, second, data, samples, readouts)
    matrices = weight_matrices(first)
    sides = {name: _sides(matrix, seen[0], fixed) for name, matrix in matrices.items()}
    used = {group for rows, columns in sides.values() for group in (*rows, *columns) if group != FIXED}
    matches = {
        group: match_units(seen[0].units.pop(group), seen[1].units.pop(group), matching) for group in sorted(used)
    }
    return Alignment(
        {
            name: MatrixAlignment(
                _partners(rows, matrices[name].gates.sizes, matches),
                _partners(columns, [len(matches[group].partners) for group in columns if group], matches),
                _named(rows),
                _named(columns),
            )
            for name, (rows, columns) in sides.items()
        },
        matches,
        matching,
    )


def observe_both(
    first: nn.Module, second: nn.Module, data: Data, samples: int, readouts: Collection[str] | None
) -> tuple[tuple[Activations, Activations], Collection[str]]:
    """Return the activations of two networks on the same data, with a limited number of samples, and the read-outs."""
    batches = [data] if isinstance(data, (torch.Tensor, PackedSequence)) else data
    with Observer(first, samples, readouts) as first_observer, Observer(second, samples, readouts) as second_observer:
        for batch in batches:
            first_observer.run(batch)
            second_observer.run(batch)
            if first_observer.enough:
                break
    seen = first_observer.activations(), second_observer.activations()
    shapes = [{name: tuple(units.shape) for name, units in activations.units.items()} for activations in seen]
    if not shapes[0]:
        raise ValueError("there is no data: the batches are empty")
    if shapes[0] != shapes[1]:
        raise ValueError(f"the networks are not of the same shape: their layers have units {shapes[0]} and {shapes[1]}")
    return seen, first_observer.readouts


def _sides(
    matrix: WeightMatrix, seen: Activations, readouts: Collection[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the groups of units that match the rows (by gate) and the columns of a matrix."""
    suffix = _OF_LAYER.search(matrix.local)
    layer = seen.layers.get((matrix.owner, suffix.group() if suffix else ""), Layer((), FIXED))
    width = matrix.size // matrix.shape[0]
    leaving = layer.leaving if layer.leaving in seen.units else FIXED
    if isinstance(matrix.module, (nn.Embedding, PackedEmbedding)):
        return (FIXED,) * len(matrix.gates), (leaving,)
    readout = isinstance(matrix.module, LINEAR) and bool(set(matrix.owners) & set(readouts))
    units = seen.units[leaving].shape[1] if leaving else 0
    # A gate of another size has no row per unit: ON-LSTM's master gates have one for each chunk of units in order.
    rows = tuple(leaving if size == units and not readout else FIXED for size in matrix.gates.sizes)
    return rows, _columns(matrix, layer.entering, leaving, units, width, seen)


def _columns(
    matrix: WeightMatrix, entering: tuple[str, ...], leaving: str, units: int, width: int, seen: Activations
) -> tuple[str, ...]:
    entered = sum(seen.units[group].shape[1] for group in entering)
    recurrent = _RECURRENT.search(matrix.local) is not None and not isinstance(matrix.module, LINEAR)
    if recurrent and width == units:
        return (leaving,)
    if width == entered:
        return entering
    if width == units and not isinstance(matrix.module, LINEAR):
        return (leaving,)
    return (*entering, leaving) if leaving and width == entered + units else (FIXED,)


def _partners(groups: tuple[str, ...], sizes: Iterable[int], matches: Mapping[str, UnitMatch]) -> Partners | None:
    """Return rows or columns of the second network: in each block the partners of its units."""
    if not any(groups):
        return None
    blocks, start = list[Partners](), 0
    for group, size in zip(groups, sizes, strict=True):
        blocks.append(start + (matches[group].partners if group else np.arange(size)))
        start += size
    return np.concatenate(blocks)


def _named(groups: tuple[str, ...]) -> str:
    return " + ".join(dict.fromkeys(group for group in groups if group))


Matching = Literal["semi", "one-to-one"]
Partners = npt.NDArray[np.int64]
Correlations = npt.NDArray[np.float64]

SAMPLES_AT_ONCE = 1024
"""Number of rows of activations that are in double precision at a time."""

ROUNDING = 1e-6
"""Share of the largest activations of a layer below which the variation of a unit is rounding.

The last chunk of an untrained ON-LSTM is an example: its master input gate is 0 but for the last digit.
"""

PREFERENCE = 1e-9
"""Bonus for units with the same number, which decides ties and matches constant units."""


@dataclass(frozen=True)
class UnitMatch:
    """Partner in the second network of each unit of a layer of the first, and their mean correlation."""

    partners: Partners
    correlation: float


def match_units(first: Tensor, second: Tensor, matching: Matching) -> UnitMatch:
    """Match units by their activations, samples x units.

    ``"semi"`` (Li et al. 2016): each unit of the first network takes the unit of the second it correlates with most;
    several may take the same. ``"one-to-one"``: the pairing with the largest sum of correlations. A unit that never
    changes correlates with nothing, 0; equals are decided in favour of the same number.
    """
    if torch.equal(first, second):  # such as the features of the data themselves
        return UnitMatch(np.arange(first.shape[1]), 1.0)
    correlations = correlation(first, second)
    partners = partners_by(correlations, matching)
    return UnitMatch(partners, float(correlations[np.arange(len(partners)), partners].mean()))


def partners_by(scores: Correlations, matching: Matching) -> Partners:
    """Return the column matched with each row: the largest entry, or that of the best one-to-one assignment."""
    preferring = scores + PREFERENCE * np.eye(*scores.shape)
    if matching == "semi":
        best: Partners = preferring.argmax(axis=1)
        return best
    if matching != "one-to-one":
        raise ValueError(f"matching must be 'semi' or 'one-to-one', got {matching!r}")
    try:
        from scipy.optimize import linear_sum_assignment
    except ImportError as error:
        raise RuntimeError("one-to-one matching needs scipy: pip install 'selfish-rnn[analysis]'") from error
    partners: Partners = linear_sum_assignment(preferring, maximize=True)[1]
    return partners


def correlation(first: Tensor, second: Tensor) -> Correlations:
    """Return Pearson's correlation over samples of every unit of ``first`` with every unit of ``second``.

        r_ij = Σ_s (a_si - ā_i)(b_sj - b̄_j) / (|a_i - ā_i| |b_j - b̄_j|)

    Both are samples x units. Sums are in double precision, over pieces, so that no second copy of the activations is
    made.
    """
    if first.ndim != 2 or first.shape != second.shape:
        raise ValueError(f"activations must be samples x units of one shape, got {first.shape} and {second.shape}")
    means = [_mean(activations) for activations in (first, second)]
    products = torch.zeros(first.shape[1], second.shape[1], dtype=torch.float64)
    squares = [torch.zeros(first.shape[1], dtype=torch.float64) for _ in means]
    for piece in zip(_pieces(first), _pieces(second), strict=True):
        centred = [part.double() - mean for part, mean in zip(piece, means, strict=True)]
        products.addmm_(centred[0].t(), centred[1])
        for total, part in zip(squares, centred, strict=True):
            total += part.square().sum(0)
    for axis, (square, mean) in enumerate(zip(squares, means, strict=True)):
        largest = (square + len(first) * mean.square()).max()
        changes = square > ROUNDING**2 * largest
        scale = torch.where(changes, square, torch.inf).rsqrt_()
        products *= scale.unsqueeze(1 - axis)
    if not torch.isfinite(products).all():
        raise ValueError("the activations are not all finite numbers")
    return products.clamp_(-1, 1).numpy()


def _mean(activations: Tensor) -> Tensor:
    total = torch.zeros(activations.shape[1], dtype=torch.float64)
    for piece in _pieces(activations):
        total += piece.double().sum(0)
    return total / len(activations)


def _pieces(activations: Tensor) -> tuple[Tensor, ...]:
    return torch.split(activations, SAMPLES_AT_ONCE)


@dataclass(frozen=True)
class MatrixDistance:
    """Distance between two topologies of a matrix, and the units that matched its rows and columns."""

    name: str
    distance: float
    counts: tuple[int, int]
    rows_by: str = ""
    columns_by: str = ""


@dataclass(frozen=True)
class TopologyDistance:
    """Distances between the matrices of two networks.

    ``distance["rnn.weight_hh_l0"]`` is that of one matrix; printed, it is a table. ``matches`` are the partners of the
    units of each layer with their mean correlation, which tells how much there was to match.
    """

    matrices: tuple[MatrixDistance, ...]
    matching: str = "none"
    matches: Mapping[str, UnitMatch] = field(default_factory=dict, repr=False)

    @property
    def overall(self) -> float:
        """Mean over the matrices, weighted by their number of weights in both networks."""
        weights = [sum(matrix.counts) for matrix in self.matrices]
        total = sum(weight * matrix.distance for weight, matrix in zip(weights, self.matrices, strict=True))
        return total / max(sum(weights), 1)

    def __getitem__(self, name: str) -> float:
        distances = {matrix.name: matrix.distance for matrix in self.matrices}
        if name not in distances:
            raise KeyError(f"no distance of {name!r}; there are {', '.join(distances)}")
        return distances[name]

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
    """Return the distances between topologies of the same matrices, without matrices that are dense in both.

    Without an ``alignment`` units correspond by number, as in one run at two times or in two runs from one start.
    """
    if first.keys() != second.keys():
        raise ValueError(f"the networks have other matrices: they differ in {sorted(first.keys() ^ second.keys())}")
    return compare_pairs(((name, first[name], second[name]) for name in first), alignment or Alignment())


def compare_pairs(pairs: Iterable[tuple[str, Topology, Topology]], alignment: Alignment) -> TopologyDistance:
    """Compare topologies that come one after the other, so that not all of them are in memory."""
    distances = []
    for name, before, after in pairs:
        if before.count == before.size and after.count == after.size:
            continue
        match = alignment.matrices.get(name, MatrixAlignment())
        distance = matrix_distance(before, after, match.rows, match.columns)
        distances.append(MatrixDistance(name, distance, (before.count, after.count), match.rows_by, match.columns_by))
    return TopologyDistance(tuple(distances), alignment.matching, alignment.matches)


def matrix_distance(
    first: Topology, second: Topology, rows: Partners | None = None, columns: Partners | None = None
) -> float:
    """Return the mean of :func:`unit_distances` over the units of a matrix."""
    return float(unit_distances(first, second, rows, columns).mean())


def unit_distances(
    first: Topology, second: Topology, rows: Partners | None = None, columns: Partners | None = None
) -> npt.NDArray[np.float64]:
    """Return the edits that turn the connections of each unit into those of its partner, as a share of both.

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
    our_rows, our_columns = np.divmod(first.positions.numpy(), width)
    there = contains(second.positions.numpy(), rows[our_rows] * width + columns[our_columns])
    ours = np.bincount(unit_of_row[our_rows], minlength=units)
    shared = np.bincount(unit_of_row[our_rows[there]], minlength=units)
    # A column of the second network counts as often as columns of the first are matched with it.
    times = np.bincount(columns, minlength=width)
    their_rows, their_columns = np.divmod(second.positions.numpy(), width)
    in_row = np.bincount(their_rows, weights=times[their_columns], minlength=height)
    theirs = np.bincount(unit_of_row, weights=in_row[rows], minlength=units)
    union = ours + theirs - shared
    return np.where(union > 0, (union - shared) / np.maximum(union, 1), 0.0)


def units_of_rows(gates: GateLayout) -> tuple[Partners, int]:
    """Return the unit of each row, and the number of units.

    Rows at the same place of gates of the same size are of one unit: of an LSTM the four rows of its gates, of ON-LSTM
    the four rows of a neuron and the two rows of the master gates of a chunk.
    """
    starts: dict[int, int] = {}
    units = 0
    for size in gates.sizes:
        if size not in starts:
            starts[size], units = units, units + size
    return np.concatenate([starts[size] + np.arange(size) for size in gates.sizes]), units
