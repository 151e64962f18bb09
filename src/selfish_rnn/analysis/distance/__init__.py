"""How far apart the topologies of two networks are (appendix of the paper).

Units are matched by their activations on the same data (:mod:`.activations`, :mod:`.matching`), which tells where the
rows and columns of one network's matrices are in the other's (:mod:`.alignment`); then connections are compared
(:mod:`.measure`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from torch import nn

from selfish_rnn.analysis.distance.activations import Data
from selfish_rnn.analysis.distance.measure import (
    Alignment,
    Matching,
    MatrixDistance,
    TopologyDistance,
    align,
    compare_pairs,
    compare_topologies,
    matrix_distance,
    unit_distances,
)
from selfish_rnn.analysis.networks import weight_matrices
from selfish_rnn.topology import Topology

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
    """How far apart the sparse topologies of two networks are, from 0 to 1, for each matrix and over all.

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
