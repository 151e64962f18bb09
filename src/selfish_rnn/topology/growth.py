"""Growth: where new weights come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from selfish_rnn.topology.redistribution import Quota
from selfish_rnn.topology.topology import Topology, at_least_single, empty_positions, sample


@dataclass(frozen=True)
class Growth:
    """A way to choose new positions: a function of what is occupied, quotas, a random generator and a score.

    ``signal`` names the score it needs, the dense ``"gradient"`` or ``"momentum"`` of the matrix; without one it never
    looks at weights that do not exist. ``elsewhere`` keeps it clear of what was removed just now.
    """

    choose: Callable[[Topology, Sequence[Quota], torch.Generator, Callable[[], Tensor]], Tensor]
    signal: Literal["gradient", "momentum"] | None = None
    elsewhere: bool = False


def at_random(topology: Topology, quotas: Sequence[Quota], generator: torch.Generator) -> Tensor:
    """New positions drawn uniformly from the empty ones of each span, as many as its quota says."""
    grown = []
    for span, count in quotas:
        occupied = topology.active[topology.within(span)]
        ranks = sample(span.size - len(occupied), count, generator)
        grown.append(empty_positions(occupied, span, ranks).numpy())
    return torch.from_numpy(np.concatenate(grown))


def by_score(topology: Topology, quotas: Sequence[Quota], score: Tensor) -> Tensor:
    """The empty positions of each span with the largest ``|score|``; of equals the first ones.

    ``score`` has the shape of the matrix: the dense gradient (RigL) or momentum (SNFS).
    """
    ranking = at_least_single(score).abs().flatten().cpu().index_fill(0, topology.active, -1.0)
    grown = []
    for span, count in quotas:
        order = ranking[span.start : span.stop].sort(descending=True, stable=True).indices
        grown.append(span.start + order[:count])
    return torch.cat(grown).sort().values


def _random(
    occupied: Topology, quotas: Sequence[Quota], generator: torch.Generator, score: Callable[[], Tensor]
) -> Tensor:
    return at_random(occupied, quotas, generator)


def _largest(
    occupied: Topology, quotas: Sequence[Quota], generator: torch.Generator, score: Callable[[], Tensor]
) -> Tensor:
    return by_score(occupied, quotas, score())


GROWTHS: dict[str, Growth] = {
    "random": Growth(_random),
    "random-elsewhere": Growth(_random, elsewhere=True),
    "gradient": Growth(_largest, signal="gradient"),
    "momentum": Growth(_largest, signal="momentum"),
}
