"""Removal: which of the existing weights go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import torch
from torch import Tensor

from selfish_rnn.topology.allocation import Part, by_name
from selfish_rnn.topology.topology import Span, Topology, as_float


class Signal(StrEnum):
    """What a part goes by besides the weights that exist: the gradient or momentum of all positions of a matrix.

    Momentum is that of the optimizer, or the gradient where the optimizer has none.
    """

    GRADIENT = "gradient"
    MOMENTUM = "momentum"

    @property
    def kept_by_optimizer(self) -> bool:
        """Whether it is an optimizer that has it, of all the steps before, and not a backward pass."""
        return self is Signal.MOMENTUM


@dataclass(frozen=True)
class Pool(Part):
    """The set within which weights are ranked: by default a whole matrix.

    - ``spans(topology)``: each of these spans of a matrix.
    - ``layer``: all matrices of one recurrent layer. Redistribution then works within the layer, too.
    - ``together``: all matrices of the network.
    """

    spans: Callable[[Topology], Sequence[Span]] | None = None
    together: bool = False
    layer: bool = False

    def __post_init__(self) -> None:
        if (self.spans is not None) + self.together + self.layer > 1:
            raise ValueError(f"pool {self.name!r}: spans, layer and together exclude each other; choose one")

    @property
    def can_prune(self) -> bool:
        """Return whether exactly as many weights of each matrix go as the rate says."""
        return self.spans is None and not self.together and not self.layer


POOLS = by_name(
    Pool("gate", lambda topology: [span for _, span in topology.gate_spans()]),
    Pool("matrix"),
    Pool("layer", layer=True),
    Pool("network", together=True),
)


@dataclass(frozen=True)
class Removal(Part):
    """A way to choose the weights that go: ``mark(values, rate)`` marks ``round(rate * n)`` of the n weights of a pool.

    >>> Removal("largest", lambda values, rate: by_magnitude(1 / values, rate)).can_prune
    True

    The other fields say what else it needs:

    - ``pools``: the pools it works on, or their names, where it does not work on all.
    - ``random``: ``mark`` is also given a ``generator=``.
    - ``state``: what it keeps from one rewiring to the next, at the first one; a JSON value. ``mark`` is also given
      ``state=``, and ``adapt(state, rate, removed, existing)`` makes the next one of the numbers of weights.
    - ``elementwise``: it judges each weight by itself, so how many go is not exactly what the rate says.
    - ``rates(densities, scores, rate)``: a rate for every matrix, from the mean magnitude of its ``signal``.
    """

    mark: Callable[..., Tensor]
    pools: tuple[Pool | str, ...] | None = None
    random: bool = False
    state: Any = None
    adapt: Callable[[Any, float, int, int], Any] | None = None
    elementwise: bool = False
    rates: Callable[[Sequence[float], Sequence[float], float], list[float]] | None = None
    signal: Signal | str | None = None

    def __post_init__(self) -> None:
        if (self.state is None) != (self.adapt is None):
            raise ValueError(f"removal {self.name!r}: state and adapt are given together or not at all")
        if (self.rates is None) != (self.signal is None):
            raise ValueError(f"removal {self.name!r}: rates and signal are given together or not at all")

    @property
    def can_prune(self) -> bool:
        """Whether it can also take weights for good: then exactly as many must go as the rate says."""
        return self.rates is None and self.state is None and not self.elementwise


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
    count = round(rate * len(values))
    from_negative = min(round(rate * int(negative.sum())), count)
    removed[negative] = _smallest(values[negative], from_negative)
    removed[~negative] = _smallest(values[~negative], count - from_negative)
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


def below(values: Tensor, rate: float, state: float) -> Tensor:
    """Mark the weights below the threshold ``state``, for the removal of DSR (Mostafa & Wang 2019)."""
    return values.abs() < state


def halved_or_doubled(threshold: float, rate: float, removed: int, existing: int) -> float:
    """The next threshold of DSR: half if more than 1.1 times too many weights went, double if less than 0.9 times."""
    target = rate * existing
    if removed > 1.1 * target:
        return threshold / 2
    return threshold * 2 if removed < 0.9 * target else threshold


def sparing_rates(densities: Sequence[float], scores: Sequence[float], rate: float) -> list[float]:
    """The fraction each matrix loses in SNFS (Dettmers & Zettlemoyer 2019).

    ``rate``, but a matrix that is less than 20 % sparse and gets more than an even share of the regrowth loses at most
    its sparsity: it would only regrow what it lost.
    """
    even = sum(scores) / max(len(scores), 1)
    return [
        min(1 - density, rate) if density > 0.8 and score > even else rate
        for density, score in zip(densities, scores, strict=True)
    ]


def remove(removal: Removal, topology: Topology, values: Tensor, pool: Pool, rate: float, **needs: Any) -> Tensor:
    """Mark the weights of a matrix or layer that go, as bools along ``Topology.positions``; every matrix keeps one.

    ``values`` are the existing weights in the same order, ``needs`` the ``generator`` and ``state`` that the removal
    asks for.
    """
    weights = as_float(values).cpu()
    pools = [weights] if pool.spans is None else [weights[topology.within(span)] for span in pool.spans(topology)]
    removed = torch.cat([removal.mark(each, rate, **needs) for each in pools])
    for matrix in map(topology.within, topology.matrix_spans):
        _one_stays(removed[matrix], weights[matrix])
    return removed


def remove_over_network(removal: Removal, values: Sequence[Tensor], rate: float, **needs: Any) -> list[Tensor]:
    """Mark the weights of all matrices that go, chosen among all together; at least one of every matrix stays."""
    weights = [as_float(value).cpu() for value in values]
    removed = torch.split(removal.mark(torch.cat(weights), rate, **needs), [len(weight) for weight in weights])
    return [_one_stays(marks, weight) for marks, weight in zip(removed, weights, strict=True)]


def _one_stays(removed: Tensor, weights: Tensor) -> Tensor:
    """Let the largest weight of a matrix stay, in place, if all of them would go."""
    if len(removed) and bool(removed.all()):
        removed[weights.abs().argmax()] = False
    return removed


REMOVALS = by_name(
    Removal("magnitude", by_magnitude),
    Removal("signed", signed),
    Removal("threshold", below, ("network",), state=1e-3, adapt=halved_or_doubled, elementwise=True),
    Removal("magnitude-sparing-dense", by_magnitude, ("matrix",), rates=sparing_rates, signal=Signal.MOMENTUM),
)
