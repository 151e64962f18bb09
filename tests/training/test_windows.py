"""Token streams as batches of windows: the shapes of the paper, and no token lost."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from selfish_rnn.errors import UserError
from selfish_rnn.training.windows import batched, draw_length, window_at, windows

PENN_TREEBANK_TOKENS = 929_589


def test_penn_treebank_has_the_papers_number_of_rows_and_windows():
    rows = batched(torch.zeros(PENN_TREEBANK_TOKENS, dtype=torch.int64), 20)
    assert rows.shape == (46_479, 20)
    shapes = [tuple(inputs.shape) for inputs, _ in windows(rows, 35)]
    assert len(shapes) == 1_328
    assert set(shapes[:-1]) == {(35, 20)}
    assert shapes[-1] == (46_478 - 1_327 * 35, 20)


def test_columns_are_contiguous_pieces_and_the_tail_is_cut():
    rows = batched(torch.arange(11), 3)
    assert rows.t().tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


@pytest.mark.parametrize(("start", "length", "expected"), [(0, 3, 3), (8, 3, 1), (6, 100, 3)])
def test_a_window_ends_where_the_text_does(start: int, length: int, expected: int):
    inputs, targets = window_at(batched(torch.arange(20), 2), start, length)
    assert len(inputs) == len(targets) == expected
    assert torch.equal(targets, inputs + 1)


@settings(deadline=None, max_examples=60)
@given(tokens=st.integers(2, 400), batch_size=st.integers(1, 9), window=st.integers(1, 50))
def test_windows_cover_every_row_once_with_targets_one_later(tokens: int, batch_size: int, window: int):
    if tokens < 2 * batch_size:
        return
    rows = batched(torch.arange(tokens), batch_size)
    pieces = list(windows(rows, window))
    assert len(pieces) == math.ceil((len(rows) - 1) / window)
    assert torch.equal(torch.cat([inputs for inputs, _ in pieces]), rows[:-1])
    assert torch.equal(torch.cat([targets for _, targets in pieces]), rows[1:])


@pytest.mark.parametrize(("tokens", "batch_size"), [(39, 20), (1, 1), (0, 1)])
def test_a_text_too_short_for_two_rows_is_the_users_error(tokens: int, batch_size: int):
    with pytest.raises(UserError, match=rf"{tokens} tokens is too short .*at least {2 * batch_size} tokens"):
        batched(torch.zeros(tokens, dtype=torch.int64), batch_size)
    assert len(batched(torch.zeros(2 * batch_size, dtype=torch.int64), batch_size)) == 2


def lengths(window: int, count: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return [draw_length(window, generator) for _ in range(count)]


def test_drawn_lengths_have_the_mean_of_awd_lstm():
    # 0.95 * 70 + 0.05 * 35 = 68.25; truncation takes away half a step.
    drawn = lengths(70, 20_000)
    assert sum(drawn) / len(drawn) == pytest.approx(67.72, abs=0.2)
    halved = sum(length < 53 for length in drawn) / len(drawn)
    assert halved == pytest.approx(0.05, abs=0.006)


@pytest.mark.parametrize("window", [1, 5, 12, 70])
def test_drawn_lengths_stay_in_their_bounds(window: int):
    drawn = lengths(window, 3_000)
    assert min(drawn) >= 5
    assert max(drawn) <= max(window + 20, 5)


def test_drawn_lengths_come_from_the_generator_alone():
    torch.manual_seed(1)
    first = lengths(70, 50, seed=3)
    torch.manual_seed(2)
    assert lengths(70, 50, seed=3) == first
    assert lengths(70, 50, seed=4) != first
