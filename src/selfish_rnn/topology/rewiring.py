"""Rewiring: one removal and growth over all sparse matrices of a network."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from selfish_rnn.topology.growth import GROWTHS
from selfish_rnn.topology.methods import Method
from selfish_rnn.topology.redistribution import (
    LAYER_REDISTRIBUTIONS,
    REDISTRIBUTIONS,
    Freed,
    Quota,
)
from selfish_rnn.topology.removal import AdaptiveThreshold, by_magnitude, remove, sparing_rates
from selfish_rnn.topology.topology import Topology, unmarked


@dataclass(frozen=True)
class Existing:
    """The existing weights of one matrix: topology, and values in the order of its positions.

    ``gradients`` are theirs. ``score`` gives, for methods that grow by it, the dense gradient or momentum of the
    whole matrix; it is called for one matrix at a time.
    """

    topology: Topology
    values: Tensor
    gradients: Tensor | None = None
    score: Callable[[], Tensor] | None = None

    def dense_score(self) -> Tensor:
        if self.score is None:
            raise ValueError("growth by score needs the dense gradient or momentum of the matrix")
        return self.score()

    def mean_score(self) -> float:
        """The mean magnitude of the score over the existing weights."""
        along = self.dense_score().flatten().cpu()[self.topology.active]
        return float(along.abs().mean()) if len(along) else 0.0


@dataclass(frozen=True)
class Rewiring:
    """What a rewiring does to one matrix.

    ``removed`` marks entries of the old topology, ``grown`` are positions in the matrix (sorted; a position removed
    just now may be among them, and starts anew all the same), ``topology`` is the result.
    """

    removed: Tensor
    grown: Tensor
    topology: Topology


def rewire(
    method: Method,
    matrices: Sequence[Existing],
    rate: float,
    generator: torch.Generator,
    threshold: AdaptiveThreshold | None = None,
) -> list[Rewiring]:
    """Remove the fraction ``rate`` of the weights and grow as many, as the method says.

    The number of weights in the network is the same before and after. ``threshold`` is what removal by threshold
    remembers from one rewiring to the next.
    """
    if not method.rewires:
        raise ValueError(f"method {method.name!r} grows nothing; there is nothing to rewire")
    means = [matrix.mean_score() if method.signal == "momentum" else None for matrix in matrices]
    removed = _removed(method, matrices, rate, means, threshold or AdaptiveThreshold())
    network = []
    for matrix, mean, gone in zip(matrices, means, removed, strict=True):
        staying = unmarked(gone)
        gradients = None if matrix.gradients is None else matrix.gradients[staying]
        kept = matrix.topology.without(gone)
        network.append(Freed(kept, matrix.topology, matrix.values[staying], gradients, mean))
    assert method.growth is not None
    growth = GROWTHS[method.growth]
    if growth.elsewhere:
        network = _keeping_clear_of_removed(method, network)
    rewirings = []
    for matrix, freed, quotas, gone in zip(matrices, network, _quotas(method, network), removed, strict=True):
        grown = growth.choose(freed.occupied or freed.topology, quotas, generator, matrix.dense_score)
        rewirings.append(Rewiring(gone, grown, freed.topology.joined(grown)))
    return rewirings


def prune(matrices: Sequence[Existing], counts: Sequence[int]) -> list[Rewiring]:
    """Remove the smallest weights of every matrix until as many as ``counts`` says are left; none grows."""
    nothing = torch.empty(0, dtype=torch.int64)
    prunings = []
    for matrix, count in zip(matrices, counts, strict=True):
        surplus = max(matrix.topology.count - count, 0)
        removed = by_magnitude(matrix.values, surplus / max(matrix.topology.count, 1))
        prunings.append(Rewiring(removed, nothing, matrix.topology.without(removed)))
    return prunings


def _removed(
    method: Method,
    matrices: Sequence[Existing],
    rate: float,
    means: Sequence[float | None],
    threshold: AdaptiveThreshold,
) -> list[Tensor]:
    topologies = [matrix.topology for matrix in matrices]
    values = [matrix.values for matrix in matrices]
    if method.removal == "threshold":
        return threshold.remove(values, rate)
    if method.removal == "magnitude-sparing-dense":
        rates = sparing_rates(topologies, [mean or 0.0 for mean in means], rate)
        return [
            remove([topology], [value], "magnitude", method.pool, own_rate)[0]
            for topology, value, own_rate in zip(topologies, values, rates, strict=True)
        ]
    assert method.removal is not None
    return remove(topologies, values, method.removal, method.pool, rate)


def _quotas(method: Method, network: Sequence[Freed]) -> list[list[Quota]]:
    if method.redistribution in LAYER_REDISTRIBUTIONS:
        counts = LAYER_REDISTRIBUTIONS[method.redistribution](network)
        return [[(freed.topology.whole, count)] for freed, count in zip(network, counts, strict=True)]
    return [REDISTRIBUTIONS[method.redistribution](freed) for freed in network]


def _keeping_clear_of_removed(method: Method, network: Sequence[Freed]) -> list[Freed]:
    """Growth may not choose what was removed just now, unless there might be nowhere else to go."""
    elsewhere = [dataclasses.replace(freed, occupied=freed.before) for freed in network]
    if method.redistribution in LAYER_REDISTRIBUTIONS:
        room = sum(freed.room(freed.topology.whole) for freed in elsewhere)
        return elsewhere if room >= sum(freed.count for freed in network) else list(network)
    return [
        clear if min(clear.room(span) for _, span in clear.topology.gate_spans()) >= clear.count else freed
        for clear, freed in zip(elsewhere, network, strict=True)
    ]
