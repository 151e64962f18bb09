"""Removal: the choice of the existing weights to remove."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import torch
from torch import Tensor

from selfish_rnn.topology.allocation import Part, by_name
from selfish_rnn.topology.sampling import false_indices
from selfish_rnn.topology.topology import ActiveWeights, Span, Topology, as_float


class Signal(StrEnum):
    """Quantity that a part needs of positions without a weight.

    - ``gradient``: the gradient of all positions of a matrix.
    - ``momentum``: the optimizer's momentum of all positions. For an optimizer without momentum it is the gradient.
    - ``sampled-gradient``: the gradient of the positions that the part asks for. It never takes the memory of the
      dense matrix in the packed engine.
    """

    GRADIENT = "gradient"
    MOMENTUM = "momentum"
    SAMPLED_GRADIENT = "sampled-gradient"

    @property
    def kept_by_optimizer(self) -> bool:
        """True if the optimizer stores it, rather than a backward pass computing it."""
        return self is Signal.MOMENTUM

    @property
    def dense(self) -> bool:
        """True if it covers all positions of a matrix."""
        return self is not Signal.SAMPLED_GRADIENT


@dataclass(frozen=True)
class Pool(Part):
    """The set within which weights are ranked: gate, matrix, layer or network. The default is a matrix.

    - ``spans(topology)``: each of these spans of a matrix.
    - ``layer``: all matrices of one recurrent layer. Redistribution then works within the layer, too.
    - ``network``: all matrices of the network.
    """

    spans: Callable[[Topology], Sequence[Span]] | None = None
    network: bool = False
    layer: bool = False

    def __post_init__(self) -> None:
        if (self.spans is not None) + self.network + self.layer > 1:
            raise ValueError(f"pool {self.name!r}: spans, layer and network exclude each other; choose one")

    @property
    def can_prune(self) -> bool:
        """True if the rate fixes the number of removed weights of each matrix, as pruning needs."""
        return self.spans is None and not self.network and not self.layer


POOLS = by_name(
    Pool("gate", lambda topology: [span for _, span in topology.gate_spans()]),
    Pool("matrix"),
    Pool("layer", layer=True),
    Pool("network", network=True),
)


@dataclass(frozen=True)
class Removal(Part):
    """A choice of weights to remove: ``mark(values, rate)`` marks ``round(rate * n)`` of the n weights of a pool.

    >>> Removal("largest", lambda values, rate: by_magnitude(1 / values, rate)).can_prune
    True

    The other fields request further arguments:

    - ``pools``: supported pools or their names, if not all are.
    - ``random``: ``mark`` also takes a ``generator=``.
    - ``state``: first value of a state that lasts from one rewiring to the next; a JSON value. ``mark`` also takes
      ``state=``, and ``adapt(state, rate, removed, existing)`` returns the next state from the numbers of weights.
    - ``elementwise``: the number of removed weights may differ from the rate, as where each weight is judged alone.
    - ``gradients``: ``mark`` also takes ``gradients=``, those of the n weights in the last backward pass.
    - ``progress``: ``mark`` also takes ``progress=``, from 0 at the start of the run to 1 at its end.
    - ``rates(densities, scores, rate)``: a rate for every matrix, from the mean magnitude of its ``signal``.
    - ``whole``: ``mark`` also takes ``topology=`` and judges one matrix as a whole. With a ``signal`` it also takes
      ``score=``, the dense gradient or momentum.
    """

    mark: Callable[..., Tensor]
    pools: tuple[Pool | str, ...] | None = None
    random: bool = False
    state: Any = None
    adapt: Callable[[Any, float, int, int], Any] | None = None
    elementwise: bool = False
    gradients: bool = False
    progress: bool = False
    rates: Callable[[Sequence[float], Sequence[float], float], list[float]] | None = None
    whole: bool = False
    signal: Signal | str | None = None

    def __post_init__(self) -> None:
        if (self.state is None) != (self.adapt is None):
            raise ValueError(f"removal {self.name!r}: state and adapt need each other: pass both or leave both out")
        if (self.rates is not None or self.whole) < (self.signal is not None) or (
            self.rates is not None and self.signal is None
        ):
            raise ValueError(
                f"removal {self.name!r}: rates and signal need each other: pass both or leave both out; without rates "
                "a signal needs whole=True"
            )

    @property
    def can_prune(self) -> bool:
        """True if the rate fixes the number of removed weights, as pruning needs."""
        return self.rates is None and self.state is None and not self.elementwise


def by_magnitude(values: Tensor, rate: float) -> Tensor:
    """Mark the ``round(rate * n)`` weights nearest zero. The first weights win ties.

    >>> by_magnitude(torch.tensor([0.3, -0.1, 0.2, -0.4]), rate=0.5)
    tensor([False,  True,  True, False])
    """
    return _smallest(values, round(rate * len(values)))


def signed(values: Tensor, rate: float) -> Tensor:
    """Mark the ``rate`` fraction of the positive weights nearest zero and the same of the negative ones.

    It is the removal of SET (Mocanu et al. 2018). A weight of exactly zero counts as positive. The two numbers add up
    to ``round(rate * n)``.
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
    # np.partition would be many times slower where most weights are equal, as grown weights are until trained.
    threshold = torch.from_numpy(magnitudes).kthvalue(count).values.item()
    removed = magnitudes < threshold
    ties = np.flatnonzero(magnitudes == threshold)
    removed[ties[: count - np.count_nonzero(removed)]] = True
    return torch.from_numpy(removed)


def below(values: Tensor, rate: float, state: float) -> Tensor:
    """Mark the weights below the threshold ``state``, for the removal of DSR (Mostafa & Wang 2019)."""
    return values.abs() < state


def halved_or_doubled(threshold: float, rate: float, removed: int, existing: int) -> float:
    """Return the next threshold of DSR: half above 1.1 times the target number of weights, double below 0.9 times."""
    target = rate * existing
    if removed > 1.1 * target:
        return threshold / 2
    return threshold * 2 if removed < 0.9 * target else threshold


def sparing_rates(densities: Sequence[float], scores: Sequence[float], rate: float) -> list[float]:
    """Return the fraction that each matrix loses in SNFS (Dettmers & Zettlemoyer 2019).

    It is ``rate``, except for a matrix that is less than 20 % sparse and gets more than an even share of the regrowth.
    Such a matrix loses at most its sparsity, because it would regrow the same positions.
    """
    even = sum(scores) / max(len(scores), 1)
    return [
        min(1 - density, rate) if density > 0.8 and score > even else rate
        for density, score in zip(densities, scores, strict=True)
    ]


def remove(removal: Removal, matrix: ActiveWeights, pool: Pool, rate: float, **needs: Any) -> Tensor:
    """Mark the weights of a matrix or layer to remove, as bools along ``Topology.positions``.

    ``needs`` are the ``generator``, ``state`` and ``progress`` that the removal requests. Every matrix keeps at least
    one weight.
    """
    topology, weights = matrix.topology, as_float(matrix.values).cpu()
    if removal.whole:
        needs["topology"] = topology
        if removal.signal is not None and removal.rates is None:
            needs["score"] = matrix.dense_score()
    gradients = gradients_for(removal, matrix)
    spans = [slice(None)] if pool.spans is None else [topology.within(span) for span in pool.spans(topology)]
    marks = []
    for span in spans:
        if gradients is not None:
            needs["gradients"] = gradients[span]
        marks.append(removal.mark(weights[span], rate, **needs))
    removed = torch.cat(marks)
    for entries in map(topology.within, topology.matrix_spans):
        _keep_largest(removed[entries], weights[entries])
    return removed


def remove_over_network(removal: Removal, values: Sequence[Tensor], rate: float, **needs: Any) -> list[Tensor]:
    """Mark the weights to remove, ranked over all matrices; every matrix keeps at least one."""
    weights = [as_float(value).cpu() for value in values]
    removed = torch.split(removal.mark(torch.cat(weights), rate, **needs), [len(weight) for weight in weights])
    return [_keep_largest(marks, weight) for marks, weight in zip(removed, weights, strict=True)]


def prune_over_network(removal: Removal, values: Sequence[Tensor], count: int, **needs: Any) -> list[Tensor]:
    """Mark exactly ``count`` weights, ranked over all matrices but for the largest weight of each."""
    weights = torch.cat([as_float(value).cpu() for value in values])
    sizes = [len(value) for value in values]
    spared = torch.zeros(len(weights), dtype=torch.bool)
    for size, start in zip(sizes, itertools.accumulate(sizes, initial=0), strict=False):
        if size:
            spared[start + weights[start : start + size].abs().argmax()] = True
    ranked = false_indices(spared)
    if removal.gradients:
        needs["gradients"] = needs["gradients"][ranked]
    removed = torch.zeros(len(weights), dtype=torch.bool)
    removed[ranked] = removal.mark(weights[ranked], count / max(len(ranked), 1), **needs)
    return list(torch.split(removed, sizes))


def gradients_for(part: Any, matrix: ActiveWeights) -> Tensor | None:
    """Return the gradients of the existing weights for a part that requests them, else None."""
    if not part.gradients:
        return None
    if matrix.gradients is None:
        raise ValueError(
            f"{type(part).__name__.lower()} {part.name!r} needs the gradients of the last backward pass: rewire before "
            "they are set to None (optimizer.zero_grad)"
        )
    return as_float(matrix.gradients).cpu()


def _keep_largest(removed: Tensor, weights: Tensor) -> Tensor:
    """Unmark the largest weight of a matrix, in place, if all weights are marked."""
    if len(removed) and bool(removed.all()):
        removed[weights.abs().argmax()] = False
    return removed


REMOVALS = by_name(
    Removal("magnitude", by_magnitude),
    Removal("signed", signed),
    Removal("threshold", below, ("network",), state=1e-3, adapt=halved_or_doubled, elementwise=True),
    Removal("magnitude-sparing-dense", by_magnitude, ("matrix",), rates=sparing_rates, signal=Signal.MOMENTUM),
)
