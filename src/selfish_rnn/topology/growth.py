"""Growth: where new weights come."""

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
    """A way to choose new positions: ``choose(occupied, quotas)`` gives those of every quota, none occupied, sorted.

    - ``random``: ``choose`` is also given a ``generator=``.
    - ``signal``: ``choose`` is also given a ``score=`` of the shape of the matrix, its gradient or momentum. Without a
      signal nothing is ever computed for weights that do not exist.
    - ``elsewhere``: what was removed just now counts as occupied, where there is room enough without it.
    """

    choose: Callable[..., Tensor]
    random: bool = False
    signal: Signal | str | None = None
    elsewhere: bool = False


def at_random(topology: Topology, quotas: Sequence[Quota], generator: torch.Generator) -> Tensor:
    """New positions drawn uniformly from the empty ones of each span, as many as its quota says.

    With one weight more or less in the topology, or in a quota, the same generator grows the same weights but for one
    or two. So runs that differ in the last digit of a weight that is about to go stay together.
    """
    seeds = torch.randint(2**62, (len(quotas),), generator=generator).tolist()
    grown = []
    for (span, count), seed in zip(quotas, seeds, strict=True):
        occupied = topology.positions[topology.within(span)].numpy() - span.start
        grown.append(sample_empty(occupied, span.size, count, seed) + span.start)
    return torch.from_numpy(np.concatenate(grown))


def by_score(topology: Topology, quotas: Sequence[Quota], score: Tensor) -> Tensor:
    """The empty positions of each span with the largest ``|score|``; of equals the first ones.

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
    Growth("random-elsewhere", at_random, random=True, elsewhere=True),
    Growth("gradient", by_score, signal=Signal.GRADIENT),
    Growth("momentum", by_score, signal=Signal.MOMENTUM),
)
