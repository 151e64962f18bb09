"""Guided stochastic exploration: growth by the gradient of a random subset of the empty positions.

Heddes et al.: *Always-sparse training by growing connections with guided stochastic exploration*, 2024. The subset is
as large as the set of existing weights, and uniformly distributed. So time and memory go with the weights that exist:
the packed engine computes the gradients of the subset and never a dense gradient. As the growth of RigL:
``RIGL.replace(growth="sampled-gradient")``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from selfish_rnn.topology.growth import Growth
from selfish_rnn.topology.methods import Method, register_method
from selfish_rnn.topology.redistribution import Quota
from selfish_rnn.topology.removal import Signal
from selfish_rnn.topology.sampling import sample_empty
from selfish_rnn.topology.topology import Topology


def by_sampled_gradient(
    topology: Topology,
    quotas: Sequence[Quota],
    generator: torch.Generator,
    gradient_at: Callable[[Tensor], Tensor],
    subset: float = 1.0,
) -> Tensor:
    """Return the positions with the largest gradients among a sample of the empty positions of each span.

    The sample of a span is ``subset`` times as large as the number of weights in it, and at least its quota. The first
    positions win ties.
    """
    seeds = torch.randint(2**62, (len(quotas),), generator=generator).tolist()
    grown = []
    for (span, count), seed in zip(quotas, seeds, strict=True):
        occupied = topology.positions[topology.within(span)].numpy() - span.start
        empty = span.size - len(occupied)
        size = min(max(round(subset * len(occupied)), count), empty) if count else 0
        candidates = torch.from_numpy(sample_empty(occupied, span.size, size, seed) + span.start)
        order = gradient_at(candidates).abs().sort(descending=True, stable=True).indices
        grown.append(candidates[order[:count]].numpy())
    return torch.from_numpy(np.sort(np.concatenate(grown)))


GSE = register_method(
    Method(
        name="gse",
        reference="Heddes et al.: Always-sparse training by growing connections with guided stochastic exploration, "
        "2024",
        allocation="er",  # type: ignore[arg-type]
        removal="magnitude",  # type: ignore[arg-type]
        growth=Growth("sampled-gradient", by_sampled_gradient, random=True, signal=Signal.SAMPLED_GRADIENT),
    )
)
