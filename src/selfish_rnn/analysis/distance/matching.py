"""Matching the units of two networks by what they do on the same data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Matching = Literal["semi", "one-to-one"]
Partners = npt.NDArray[np.int64]
Correlations = npt.NDArray[np.float64]

SAMPLES_AT_ONCE = 1024
"""Rows of activations that are in double precision at one time."""

ROUNDING = 1e-6
"""A unit that varies less than this share of the largest activations of its layer does not change: it is rounding.

The last chunk of an untrained ON-LSTM is an example: its master input gate is 0 but for the last digit.
"""

PREFERENCE = 1e-9
"""Added to the correlation of units of the same number: it decides between equals and for units that never change."""


@dataclass(frozen=True)
class UnitMatch:
    """For each unit of a layer of the first network its partner in the second, and their mean correlation."""

    partners: Partners
    correlation: float


def match_units(first: Tensor, second: Tensor, matching: Matching) -> UnitMatch:
    """Match units by their activations, samples x units.

    ``"semi"`` (Li et al. 2016): each unit of the first network takes the unit of the second it correlates with most;
    several may take the same. ``"one-to-one"``: the pairing with the largest sum of correlations. A unit that never
    changes correlates with nothing, 0; equals are decided in favour of the same number.
    """
    if torch.equal(first, second):  # such as the features of the data themselves
        return UnitMatch(np.arange(first.shape[1]), 1.0)
    correlations = correlation(first, second)
    partners = partners_by(correlations, matching)
    return UnitMatch(partners, float(correlations[np.arange(len(partners)), partners].mean()))


def partners_by(scores: Correlations, matching: Matching) -> Partners:
    """For each row the column it is matched with: its largest, or that of the best one-to-one assignment."""
    preferring = scores + PREFERENCE * np.eye(*scores.shape)
    if matching == "semi":
        best: Partners = preferring.argmax(axis=1)
        return best
    if matching != "one-to-one":
        raise ValueError(f"matching must be 'semi' or 'one-to-one', got {matching!r}")
    try:
        from scipy.optimize import linear_sum_assignment
    except ImportError as error:
        raise RuntimeError("one-to-one matching needs scipy: pip install 'selfish-rnn[analysis]'") from error
    partners: Partners = linear_sum_assignment(preferring, maximize=True)[1]
    return partners


def correlation(first: Tensor, second: Tensor) -> Correlations:
    """Pearson's correlation over samples of every unit of ``first`` with every unit of ``second``.

        r_ij = Σ_s (a_si - ā_i)(b_sj - b̄_j) / (|a_i - ā_i| |b_j - b̄_j|)

    Both are samples x units. Sums are in double precision, over pieces, so that no second copy of the activations is
    made.
    """
    if first.ndim != 2 or first.shape != second.shape:
        raise ValueError(f"activations must be samples x units of one shape, got {first.shape} and {second.shape}")
    means = [_mean(each) for each in (first, second)]
    products = torch.zeros(first.shape[1], second.shape[1], dtype=torch.float64)
    squares = [torch.zeros(first.shape[1], dtype=torch.float64) for _ in means]
    for piece in zip(_pieces(first), _pieces(second), strict=True):
        centred = [part.double() - mean for part, mean in zip(piece, means, strict=True)]
        products.addmm_(centred[0].t(), centred[1])
        for total, part in zip(squares, centred, strict=True):
            total += part.square().sum(0)
    for axis, (square, mean) in enumerate(zip(squares, means, strict=True)):
        largest = (square + len(first) * mean.square()).max()
        changes = square > ROUNDING**2 * largest
        scale = torch.where(changes, square, torch.inf).rsqrt_()
        products *= scale.unsqueeze(1 - axis)
    if not torch.isfinite(products).all():
        raise ValueError("the activations are not all finite numbers")
    return products.clamp_(-1, 1).numpy()


def _mean(activations: Tensor) -> Tensor:
    total = torch.zeros(activations.shape[1], dtype=torch.float64)
    for piece in _pieces(activations):
        total += piece.double().sum(0)
    return total / len(activations)


def _pieces(activations: Tensor) -> tuple[Tensor, ...]:
    return torch.split(activations, SAMPLES_AT_ONCE)
