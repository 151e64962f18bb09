from __future__ import annotations

import pytest

from selfish_rnn.topology import GateLayout


def test_even_gates_cover_all_rows_in_order() -> None:
    layout = GateLayout.even(("reset", "update", "candidate"), 12)
    assert list(layout.row_ranges()) == [("reset", 0, 4), ("update", 4, 8), ("candidate", 8, 12)]
    assert (layout.rows, len(layout)) == (12, 3)


def test_gates_may_differ_in_size() -> None:
    layout = GateLayout(("master", "output"), (2, 20))
    assert list(layout.row_ranges()) == [("master", 0, 2), ("output", 2, 22)]


def test_single_is_one_gate_over_everything() -> None:
    assert list(GateLayout.single(7).row_ranges()) == [("all", 0, 7)]


@pytest.mark.parametrize(
    ("names", "sizes", "message"),
    [
        (("a", "b"), (1,), "one size per name"),
        ((), (), "one size per name"),
        (("a", "a"), (1, 1), "must differ"),
        (("a", "b"), (1, 0), "at least one row"),
    ],
)
def test_impossible_layouts_are_refused(names: tuple[str, ...], sizes: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GateLayout(names, sizes)


def test_rows_that_cannot_be_divided_evenly_are_refused() -> None:
    with pytest.raises(ValueError, match="10 rows cannot be divided evenly"):
        GateLayout.even(("a", "b", "c"), 10)
