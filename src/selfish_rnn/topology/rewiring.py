"""Rewiring: one removal and growth over all sparse matrices of a network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from selfish_rnn.topology.growth import at_random
from selfish_rnn.topology.methods import Method
from selfish_rnn.topology.redistribution import REDISTRIBUTIONS, Freed
from selfish_rnn.topology.removal import remove
from selfish_rnn.topology.topology import Topology


@dataclass(frozen=True)
class Existing:
    """The existing weights of one matrix: topology, and values (and gradients) in the order of its positions."""

    topology: Topology
    values: Tensor
    gradients: Tensor | None = None


@dataclass(frozen=True)
class Rewiring:
    """What a rewiring does to one matrix.

    ``removed`` marks entries of the old topology, ``grown`` are positions in the matrix (sorted; a position removed
    just now may be among them, and starts anew all the same), ``topology`` is the result.
    """

    removed: Tensor
    grown: Tensor
    topology: Topology


def rewire(method: Method, matrices: Sequence[Existing], rate: float, generator: torch.Generator) -> list[Rewiring]:
    """Remove the fraction ``rate`` of the weights and grow as many, as the method says.

    The number of weights in the network is the same before and after.
    """
    if method.removal is None:
        raise ValueError(f"method {method.name!r} keeps its topology; there is nothing to rewire")
    topologies = [matrix.topology for matrix in matrices]
    removed = remove(topologies, [matrix.values for matrix in matrices], method.removal, method.pool, rate)
    redistribute = REDISTRIBUTIONS[method.redistribution]
    rewirings = []
    for matrix, gone in zip(matrices, removed, strict=True):
        before = matrix.topology
        kept = before.without(gone)
        gradients = None if matrix.gradients is None else matrix.gradients[~gone]
        freed = Freed(kept, before, matrix.values[~gone], gradients)
        grown = at_random(kept, redistribute(freed), generator)
        rewirings.append(Rewiring(gone, grown, kept.joined(grown)))
    return rewirings
