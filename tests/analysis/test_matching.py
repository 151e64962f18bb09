"""Matching units: golden numbers, and what must hold of any two networks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from selfish_rnn.analysis.distance import (
    SAMPLES_AT_ONCE,
    correlation,
    match_units,
    matrix_distance,
    partners_by,
    unit_distances,
)
from selfish_rnn.topology import GateLayout, Topology

GOLDEN = Path(__file__).parents[1] / "golden" / "topology_distance.npz"


@pytest.fixture(scope="module")
def golden() -> dict[str, np.ndarray]:
    with np.load(GOLDEN) as arrays:
        return dict(arrays)


def golden_topologies(golden: dict[str, np.ndarray]) -> tuple[Topology, Topology]:
    """The file has inputs x units."""
    masks = [torch.from_numpy(golden[name].T.copy()) for name in ("mask_a", "mask_b")]
    first, second = (Topology.from_mask(mask, GateLayout.single(len(mask))) for mask in masks)
    return first, second


def close(got: np.ndarray | float, want: np.ndarray) -> bool:
    return float(np.abs(got - want).max() / (1 + np.abs(want).max())) <= 1e-9


def test_the_golden_correlation_and_semi_matching(golden: dict[str, np.ndarray]) -> None:
    first, second = (torch.from_numpy(golden[name].T.copy()) for name in ("act_a", "act_b"))
    assert close(correlation(first, second), golden["corr"])
    match = match_units(first, second, "semi")
    assert match.partners.tolist() == golden["semi_match"].tolist()
    assert close(match.correlation, golden["corr"].max(axis=1).mean())


def test_the_golden_distances(golden: dict[str, np.ndarray]) -> None:
    first, second = golden_topologies(golden)
    units = len(golden["semi_match"])
    pairs = np.stack([unit_distances(first, second, np.full(units, partner)) for partner in range(units)], axis=1)
    assert close(pairs, golden["pair_distance"])
    assert close(matrix_distance(first, second), golden["unaligned_distance"])
    assert close(matrix_distance(first, second, golden["semi_match"]), golden["semi_distance"])


def test_the_golden_one_to_one_assignment(golden: dict[str, np.ndarray]) -> None:
    partners = partners_by(-golden["pair_distance"], "one-to-one")
    assert partners.tolist() == golden["hungarian_assignment"].tolist()
    assert close(matrix_distance(*golden_topologies(golden), partners), golden["hungarian_distance"])


@given(st.integers(2, 40), st.integers(1, 6), st.integers(0, 1000))
def test_correlation_is_that_of_numpy(samples: int, units: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    first, second = (torch.randn(samples, units, generator=generator) + 3 for _ in range(2))
    expected = np.corrcoef(first.double().T, second.double().T)[:units, units:]
    assert np.abs(correlation(first, second) - expected).max() < 1e-9


def test_correlation_over_several_pieces_and_far_from_zero() -> None:
    samples = 2 * SAMPLES_AT_ONCE + 5
    first, second = torch.randn(samples, 3) + 1000, torch.randn(samples, 3) - 1000
    expected = np.corrcoef(first.double().T, second.double().T)[:3, 3:]
    assert np.abs(correlation(first, second) - expected).max() < 1e-9


@given(st.permutations(range(7)), st.sampled_from(["semi", "one-to-one"]))
def test_units_in_another_order_find_themselves(order: list[int], matching: str) -> None:
    activations = torch.randn(50, 7, generator=torch.Generator().manual_seed(3))
    match = match_units(activations, activations[:, order], matching)  # type: ignore[arg-type]
    assert np.array(order)[match.partners].tolist() == list(range(7))
    assert match.correlation == pytest.approx(1)


@pytest.mark.parametrize("matching", ["semi", "one-to-one"])
def test_units_that_never_change_and_equal_units_keep_their_number(matching: str) -> None:
    first = torch.randn(40, 6, generator=torch.Generator().manual_seed(1))
    first[:, 2] = 0.1
    first[:, 4] = first[:, 1]
    second = first * 2 + 0.5  # correlates like the same
    assert match_units(first, second, matching).partners.tolist() == list(range(6))  # type: ignore[arg-type]


def test_rounding_is_no_change() -> None:
    first = torch.randn(40, 3, generator=torch.Generator().manual_seed(1))
    second = first.clone()
    first[:, 2], second[:, 2] = 1e-8 * first[:, 0], 1e-8 * first[:, 1]
    correlations = correlation(first, second)
    assert (correlations[2] == 0).all()
    assert (correlations[:, 2] == 0).all()


def test_a_sign_is_kept() -> None:
    first = torch.randn(40, 2, generator=torch.Generator().manual_seed(1))
    second = torch.stack([-first[:, 0], first[:, 0] + 3 * first[:, 1]], dim=1)
    assert match_units(first, second, "semi").partners.tolist() == [1, 1]


def test_what_cannot_be_matched_is_refused() -> None:
    with pytest.raises(ValueError, match="samples x units of one shape"):
        correlation(torch.zeros(4, 3), torch.zeros(5, 3))
    with pytest.raises(ValueError, match="not all finite"):
        correlation(torch.full((4, 3), torch.nan), torch.randn(4, 3))
    with pytest.raises(ValueError, match="'semi' or 'one-to-one', got 'best'"):
        partners_by(np.eye(2), "best")  # type: ignore[arg-type]
