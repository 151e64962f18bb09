"""Recurrent layers at every batch size: a step's columns lie in pieces of 16 and a rest of 4 or 8."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from packed_cases import needs_kernels, seeds
from packed_recurrent_cases import assert_same_run, kinds, pair, seeded, states

from selfish_rnn.engine import library

pytestmark = needs_kernels

BATCHES = (2, 4, 5, 16, 17, 20, 21, 25, 36, 40, 52, 65)
"""One batch size for each combination of pieces, and one of two panels."""


@pytest.mark.slow
@given(kind=kinds, batch=st.integers(1, 65), hidden=st.integers(1, 45), density=st.floats(0, 1), seed=seeds)
def test_any_batch_and_width_agree_with_dense(kind: str, batch: int, hidden: int, density: float, seed: int) -> None:
    packed, dense = pair(kind, 3, hidden, density=density, seed=seed)
    x = torch.randn(4, batch, 3, generator=seeded(seed))
    assert_same_run(packed, dense, x, states(kind, (1, batch, hidden), seed + 1), seed + 2)


@pytest.mark.parametrize("target", library.targets() if library.available() else ())
@pytest.mark.parametrize("batch", BATCHES)
def test_nan_stays_in_its_sequence_and_its_units(batch: int, target: str) -> None:
    packed, _ = pair("relu", 3, 41, density=0.2, seed=batch)
    x, h = torch.randn(1, batch, 3), torch.randn(1, batch, 41)
    exists = packed.weight_hh_l0.to_dense() != 0
    sequence, unit = batch - 1, int(exists.sum(0).argmax())
    before = library.target()
    try:
        library.use_target(target)
        expected = packed(x, h)[0]
        h[0, sequence, unit] = float("nan")
        y = packed(x, h)[0]
    finally:
        library.use_target(before)
    reached = exists[:, unit]
    assert 0 < int(reached.sum()) < 41
    # A rectifier makes zero of NaN: the units that the weight reaches differ, all others are equal to the last bit.
    others = torch.ones(batch, 41, dtype=torch.bool)
    others[sequence, reached] = False
    assert torch.equal(y[0][others], expected[0][others])
    assert bool((y[0][sequence, reached].isnan() | (y[0][sequence, reached] == 0)).all())


@pytest.mark.parametrize("batch", BATCHES)
def test_a_sequence_does_not_depend_on_the_others(batch: int) -> None:
    packed, _ = pair("lstm", 5, 30, density=0.3)
    x = torch.randn(6, batch, 5, generator=seeded(1))
    expected = packed(x)[0]
    x[:, 0] = float("inf")
    assert torch.equal(packed(x)[0][:, 1:], expected[:, 1:])
