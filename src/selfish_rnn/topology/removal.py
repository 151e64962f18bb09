"""Removal: which of the existing weights go."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from selfish_rnn.topology.topology import Topology, as_float

Pool = Literal["gate", "matrix", "network"]
"""Among which weights the smallest are looked for: each gate apart, a whole matrix, or all layers together."""


def by_magnitude(values: Tensor, rate: float) -> Tensor:
    """Mark the ``round(rate * n)`` weights nearest zero; of equals the first ones.

    >>> by_magnitude(torch.tensor([0.3, -0.1, 0.2, -0.4]), rate=0.5)
    tensor([False,  True,  True, False])
    """
    return _smallest(values, round(rate * len(values)))


def signed(values: Tensor, rate: float) -> Tensor:
    """Mark the ``rate`` fraction of the positive weights nearest zero and the same of the negative ones.

    The removal of SET (Mocanu et al. 2018). A weight of exactly zero counts as positive; the two numbers add up to
    ``round(rate * n)``.
    """
    removed = torch.zeros(len(values), dtype=torch.bool)
    negative = values < 0
    negatives = int(negative.sum())
    count = round(rate * len(values))
    from_negative = min(round(rate * negatives), count)
    from_positive = count - from_negative
    removed[negative] = _smallest(values[negative], from_negative)
    removed[~negative] = _smallest(values[~negative], from_positive)
    return removed


def _smallest(values: Tensor, count: int) -> Tensor:
    if count <= 0:
        return torch.zeros(len(values), dtype=torch.bool)
    magnitudes = np.abs(as_float(values).cpu().numpy())
    # Not np.partition: it is many times slower where most weights are equal, as grown ones are until they are trained.
    threshold = torch.from_numpy(magnitudes).kthvalue(count).values.item()
    removed = magnitudes < threshold
    ties = np.flatnonzero(magnitudes == threshold)
    removed[ties[: count - np.count_nonzero(removed)]] = True
    return torch.from_numpy(removed)


REMOVALS: dict[str, Callable[[Tensor, float], Tensor]] = {"magnitude": by_magnitude, "signed": signed}
"""Criteria that take the fraction that goes of any pool of weights."""

NETWORK_REMOVALS = ("threshold", "magnitude-sparing-dense")
"""Removals that look at all matrices together: :class:`AdaptiveThreshold` and :func:`sparing_rates`."""


def remove(
    topologies: Sequence[Topology], values: Sequence[Tensor], criterion: str, pool: Pool, rate: float
) -> list[Tensor]:
    """Mark the weights that go, per matrix as bools along ``Topology.positions``.

    ``values`` are the existing weights in the same order. Every matrix keeps at least one weight.
    """
    choose = REMOVALS[criterion]
    weights = [as_float(value).cpu() for value in values]
    if pool == "network":
        removed = list(torch.split(choose(torch.cat(weights), rate), [len(weight) for weight in weights]))
    elif pool == "matrix":
        removed = [choose(weight, rate) for weight in weights]
    else:
        removed = [
            torch.cat([choose(weight[topology.within(span)], rate) for _, span in topology.gate_spans()])
            for topology, weight in zip(topologies, weights, strict=True)
        ]
    return _one_stays(removed, weights)


def _one_stays(removed: list[Tensor], weights: Sequence[Tensor]) -> list[Tensor]:
    for marks, weight in zip(removed, weights, strict=True):
        if len(marks) and bool(marks.all()):
            marks[weight.abs().argmax()] = False
    return removed


@dataclass
class AdaptiveThreshold:
    """The removal of DSR (Mostafa & Wang 2019): weights below one threshold for the whole network.

    The threshold follows the number of weights that are to go: more than 1.1 times too many and it is halved, less
    than 0.9 times and it is doubled, for the next time.
    """

    value: float = 1e-3

    def remove(self, values: Iterable[Tensor], rate: float) -> list[Tensor]:
        """Mark the weights below the threshold, per matrix; every matrix keeps at least one."""
        removed: list[Tensor] = []
        for value in values:
            weight = as_float(value).cpu()
            removed += _one_stays([weight.abs() < self.value], [weight])
        target = rate * sum(map(len, removed))
        count = sum(int(marks.sum()) for marks in removed)
        if count > 1.1 * target:
            self.value /= 2
        elif count < 0.9 * target:
            self.value *= 2
        return removed


def sparing_rates(topologies: Sequence[Topology], shares: Sequence[float], rate: float) -> list[float]:
    """The fraction each matrix loses in SNFS (Dettmers & Zettlemoyer 2019).

    ``rate``, but a matrix that is less than 20 % sparse and gets more than an even share of the regrowth loses at most
    its sparsity: it would only regrow what it lost.
    """
    even = sum(shares) / max(len(shares), 1)
    return [
        min(1 - topology.density, rate) if topology.density > 0.8 and share > even else rate
        for topology, share in zip(topologies, shares, strict=True)
    ]
