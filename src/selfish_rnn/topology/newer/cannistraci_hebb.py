"""Cannistraci-Hebb training: soft removal, and growth by the topology alone.

Zhang et al.: *Brain network science modelling of sparse neural networks enables Transformers and LLMs to perform as
fully connected*, 2025 (CHTs and CHTss). A matrix is a bipartite network of its columns and its rows. A link grows in
proportion to its score CH2-L3n, which counts paths of length three between its two ends. No gradient is used.

The publication has no recurrent networks, and this file decides: every row is a node, so the gates of a unit are
different nodes. The start is uniformly random, which is its receptive-field model at full randomness. Removal is by
weight magnitude (its alpha is 1), and nodes without links stay. The scores are two products of dense matrices, so a
rewiring takes the memory of a dense matrix.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from selfish_rnn.topology.growth import Growth
from selfish_rnn.topology.methods import Method, register_method
from selfish_rnn.topology.redistribution import Quota
from selfish_rnn.topology.removal import Removal, by_magnitude
from selfish_rnn.topology.schedules import Pruning
from selfish_rnn.topology.topology import Topology


def by_soft_magnitude(values: Tensor, rate: float, generator: torch.Generator, progress: float) -> Tensor:
    """Mark ``round(rate * n)`` weights; the others are drawn in proportion to ``|weight| ** (s / (1 - s))``.

    The softness ``s`` rises from 0.5 at the start of the run to 0.75 at its end.
    """
    softness = 0.5 + 0.25 * progress
    noise = torch.empty(len(values), dtype=torch.float64).exponential_(generator=generator)
    return by_magnitude(values.abs().double() ** (softness / (1 - softness)) / noise, rate)


def ch2_l3n(mask: Tensor) -> Tensor:
    """Return the score CH2-L3n of every position of a matrix, from its mask of zeros and ones.

    For a row v and a column u the local community are the rows z linked to u, and the columns z linked to v, that lie
    on a path of length three between v and u. With the numbers i(z) of links of z inside the community and e(z)
    outside of it, the link to u or v apart:

        score(v, u) = sum over z of (1 + i(z)) / (1 + e(z))
    """
    return _of_community(mask) + _of_community(mask.t()).t()


def _of_community(mask: Tensor) -> Tensor:
    """Return the share of the community in the rows: ``sum over z linked to u of (1 + i(z)) / (1 + e(z))``."""
    inside = mask @ mask.t()  # links of row z to columns that are linked to row v
    outside = (mask.sum(1, keepdim=True) - inside - 1).clamp_(min=0)
    ratio = torch.where(inside > 0, (1 + inside) / (1 + outside), torch.zeros(()))
    return ratio.t() @ mask


def by_cannistraci_hebb(topology: Topology, quotas: Sequence[Quota], generator: torch.Generator) -> Tensor:
    """Draw empty positions of each span in proportion to their CH2-L3n scores.

    Positions without a path of length three are drawn only if there are too few others.
    """
    scores = torch.cat([ch2_l3n(matrix.to_mask(torch.float32)).flatten() for matrix in topology.matrices()])
    # The largest of log(score) with Gumbel noise are a sample without replacement.
    noise = torch.empty(len(scores), dtype=torch.float64).exponential_(generator=generator).log_()
    ranking = scores.double().clamp_(min=1e-30).log_() - noise
    ranking[topology.positions] = -math.inf
    grown = [span.start + ranking[span.start : span.stop].topk(count).indices for span, count in quotas if count]
    return torch.cat(grown).sort().values if grown else torch.empty(0, dtype=torch.int64)


def sigmoid_from_half(progress: float, final: float, steepness: float = 6.0) -> float:
    """Return the sparsity of CHTss: from one half, or ``final`` if less, by a sigmoid to ``final``."""

    def sigmoid(x: float) -> float:
        return 1 / (1 + math.exp(-steepness * (x - 0.5)))

    first = min(0.5, final)
    return first + (final - first) * (sigmoid(progress) - sigmoid(0)) / (sigmoid(1) - sigmoid(0))


CHTS = register_method(
    Method(
        name="chts",
        reference="Zhang et al.: Brain network science modelling of sparse neural networks enables Transformers and "
        "LLMs to perform as fully connected, 2025",
        removal=Removal("soft-magnitude", by_soft_magnitude, random=True, progress=True),
        growth=Growth("cannistraci-hebb", by_cannistraci_hebb, random=True),
    )
)
CHTSS = register_method(CHTS.replace(name="chtss", pruning=Pruning("sigmoid-from-half", sigmoid_from_half)))
