"""Growth: the choice of positions for new weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from selfish_rnn.topology.allocation import Part, by_name
from selfish_rnn.topology.redistribution import Quota
from selfish_rnn.topology.removal import Signal
from selfish_rnn.topology.sampling import sample_empty
from selfish_rnn.topology.topology import Topology, as_float


@dataclass(frozen=True)
class Growth(Part):
    """A choice of new positions: ``choose(occupied, quotas)`` returns unoccupied positions for every quota, sorted.

    - ``random``: ``choose`` also takes a ``generator=``.
    - ``signal``: ``choose`` also takes a ``score=`` of the shape of the matrix, its gradient or momentum. Without a
      signal nothing is computed for weights that do not exist.
    - ``avoid_removed``: positions that were just removed count as occupied, if there is enough capacity without them.
    """

    choose: Callable[..., Tensor]
    random: bool = False
    signal: Signal | str | None = None
    avoid_removed: bool = False


def at_random(topology: Topology, quotas: Sequence[Quota], generator: torch.Generator) -> Tensor:
    """Draw new positions uniformly from the empty positions of each span, as many as its quota.

    With one weight more or less in the topology or in a quota, the same generator grows the same weights except for
    one or two. So runs that differ in the last digit of a weight stay close together.
    """
    seeds = torch.randint(2**62, (len(quotas),), generator=generator).tolist()
    grown = []
    for (span, count), seed in zip(quotas, seeds, strict=True):
        occupied = topology.positions[topology.within(span)].numpy() - span.start
        grown.append(sample_empty(occupied, span.size, count, seed) + span.start)
    return torch.from_numpy(np.concatenate(grown))


def by_score(topology: Topology, quotas: Sequence[Quota], score: Tensor) -> Tensor:
    """Return the empty positions of each span with the largest ``|score|``. The first positions win ties.

    ``score`` has the shape of the matrix: the dense gradient (RigL) or momentum (SNFS).
    """
    ranking = as_float(score).abs().flatten().cpu().index_fill(0, topology.positions, -1.0)
    grown = []
    for span, count in quotas:
        order = ranking[span.start : span.stop].sort(descending=True, stable=True).indices
        grown.append(span.start + order[:count])
    return torch.cat(grown).sort().values


GROWTHS = by_name(
    Growth("random", at_random, random=True),
    Growth("random-elsewhere", at_random, random=True, avoid_removed=True),
    Growth("gradient", by_score, signal=Signal.GRADIENT),
    Growth("momentum", by_score, signal=Signal.MOMENTUM),
)
