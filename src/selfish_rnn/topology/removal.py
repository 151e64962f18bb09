"""Removal: which of the existing weights go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from selfish_rnn.topology.topology import Topology, at_least_single

Pool = Literal["gate", "matrix", "network"]
"""Among which weights the smallest are looked for: each gate apart, a whole matrix, or all layers together."""


def by_magnitude(values: Tensor, rate: float) -> Tensor:
    """Mark the ``round(rate * n)`` weights nearest zero; of equals the first ones.

    >>> by_magnitude(torch.tensor([0.3, -0.1, 0.2, -0.4]), rate=0.5)
    tensor([False,  True,  True, False])
    """
    return _smallest(values.abs(), round(rate * len(values)))


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
    removed[negative] = _smallest(-values[negative], from_negative)
    removed[~negative] = _smallest(values[~negative], from_positive)
    return removed


def _smallest(magnitudes: Tensor, count: int) -> Tensor:
    if count <= 0:
        return torch.zeros(len(magnitudes), dtype=torch.bool)
    threshold = magnitudes.kthvalue(count).values
    removed = magnitudes < threshold
    ties = (magnitudes == threshold).nonzero().flatten()
    removed[ties[: count - int(removed.sum())]] = True
    return removed


REMOVALS: dict[str, Callable[[Tensor, float], Tensor]] = {"magnitude": by_magnitude, "signed": signed}


def remove(
    topologies: Sequence[Topology], values: Sequence[Tensor], criterion: str, pool: Pool, rate: float
) -> list[Tensor]:
    """Mark the weights that go, per matrix as bools along ``Topology.active``.

    ``values`` are the existing weights in the same order. Every matrix keeps at least one weight.
    """
    choose = REMOVALS[criterion]
    weights = [at_least_single(value).cpu() for value in values]
    if pool == "network":
        removed = list(torch.split(choose(torch.cat(weights), rate), [len(weight) for weight in weights]))
    elif pool == "matrix":
        removed = [choose(weight, rate) for weight in weights]
    else:
        removed = [
            torch.cat([choose(weight[topology.within(span)], rate) for _, span in topology.gate_spans()])
            for topology, weight in zip(topologies, weights, strict=True)
        ]
    for marks, weight in zip(removed, weights, strict=True):
        if len(marks) and bool(marks.all()):
            marks[weight.abs().argmax()] = False
    return removed
