"""Growth: where new weights come."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from selfish_rnn.topology.redistribution import Quota
from selfish_rnn.topology.topology import Topology, as_float, bernoulli_positions, upper_bound

Positions = npt.NDArray[np.int64]


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
    """New positions drawn uniformly from the empty ones of each span, as many as its quota says.

    What is drawn are positions, whatever is there, and those taken are passed over: with one weight more or less in
    the topology, or in a quota, the same generator grows the same weights but for one or two. So runs that differ in
    the last digit of a weight that is about to go stay together.
    """
    seeds = torch.randint(2**62, (len(quotas),), generator=generator).tolist()
    grown = [
        _draw(topology.positions[topology.within(span)].numpy() - span.start, span.size, count, seed) + span.start
        for (span, count), seed in zip(quotas, seeds, strict=True)
    ]
    return torch.from_numpy(np.concatenate(grown))


def _draw(occupied: Positions, size: int, count: int, seed: int) -> Positions:
    """``count`` of the empty ones of ``size`` places, sorted."""
    empty = size - len(occupied)
    if count > empty // 2:
        everything = np.ones(size, dtype=np.bool_)
        everything[occupied] = False
        everything[_draw(occupied, size, empty - count, seed)] = False
        return np.flatnonzero(everything)
    if count == 0:
        return np.empty(0, dtype=np.int64)
    generator = torch.Generator().manual_seed(seed)
    # In steps, so that one place more or less does not change what is drawn.
    probability = 2 ** (math.ceil(8 * math.log2(upper_bound(count) / empty)) / 8)
    while True:
        drawn = bernoulli_positions(size, probability, generator).numpy()
        priorities = torch.rand(len(drawn), dtype=torch.float64, generator=generator).numpy()
        free = np.append(occupied, size)[np.searchsorted(occupied, drawn)] != drawn
        drawn, priorities = drawn[free], priorities[free]
        if len(drawn) >= count:
            last = torch.from_numpy(priorities).kthvalue(count).values.item()
            chosen: Positions = drawn[priorities <= last]
            return chosen


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
