from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from topology_cases import golden_cases, rates, seeded, seeds, topologies, weights_for

from selfish_rnn.topology import POOLS, REMOVALS, ActiveWeights, GateLayout, Pool, Removal, Topology
from selfish_rnn.topology.removal import (
    by_magnitude,
    halved_or_doubled,
    remove,
    remove_over_network,
    signed,
    sparing_rates,
)

MAGNITUDE = REMOVALS["magnitude"]
ANY_POOL = [REMOVALS["magnitude"], REMOVALS["signed"]]

some_values = st.builds(
    lambda count, seed, ties: weights_for(
        Topology((count, 1), GateLayout.single(count), torch.arange(count)), seed, ties
    ),
    st.integers(1, 40),
    seeds,
    st.booleans(),
)


def separated(magnitudes: torch.Tensor, removed: torch.Tensor) -> bool:
    """Nothing that goes is larger than anything that stays."""
    return not removed.any() or bool(removed.all()) or bool(magnitudes[removed].max() <= magnitudes[~removed].min())


@given(some_values, rates)
def test_magnitude_marks_exactly_the_smallest(values: torch.Tensor, rate: float) -> None:
    removed = by_magnitude(values, rate)
    assert removed.sum() == round(rate * len(values))
    assert separated(values.abs(), removed)


def test_of_equal_weights_the_first_go() -> None:
    values = torch.tensor([0.5, -0.1, 0.5, -0.5, 0.5, 0.9])
    assert by_magnitude(values, 0.5).tolist() == [True, True, True, False, False, False]


@given(some_values, rates)
def test_magnitude_equals_a_stable_sort(values: torch.Tensor, rate: float) -> None:
    expected = torch.zeros(len(values), dtype=torch.bool)
    expected[values.abs().sort(stable=True).indices[: round(rate * len(values))]] = True
    assert torch.equal(by_magnitude(values, rate), expected)


@given(some_values, rates)
def test_signed_marks_the_smallest_of_each_sign(values: torch.Tensor, rate: float) -> None:
    removed = signed(values, rate)
    negative = values < 0
    assert removed.sum() == round(rate * len(values))
    for side in (negative, ~negative):
        assert separated(values[side].abs(), removed[side])
        assert abs(int(removed[side].sum()) - rate * int(side.sum())) <= 1


def test_signed_differs_from_magnitude() -> None:
    values = torch.tensor([0.1, 0.2, 0.3, 0.4, -1.0, -2.0, -3.0, -4.0])
    assert signed(values, 0.5).tolist() == [True, True, False, False, True, True, False, False]
    assert by_magnitude(values, 0.5).tolist() == [True] * 4 + [False] * 4


@pytest.mark.parametrize("case", golden_cases("prune_grow", 4))
def test_golden_magnitude(case: dict[str, np.ndarray]) -> None:
    """The released code removes ceil(rate * active) weights, we round(rate * active): here a rate with its number.

    Its ``kept_signed`` is not checked: by an accident of sign it drops the MOST negative weights, where SET (and
    ``signed`` here) drops the negative weights nearest zero.
    """
    mask = torch.from_numpy(case["mask"])
    topology = Topology.from_mask(mask, GateLayout.single(mask.shape[0]))
    values = torch.from_numpy(case["weight"]).flatten()[topology.positions]
    count = math.ceil(float(case["rate"]) * topology.count)
    removed = remove(MAGNITUDE, ActiveWeights(topology, values), POOLS["matrix"], count / topology.count)
    assert removed.sum() == count
    assert np.array_equal(topology.without(removed).to_mask().numpy(), case["kept_magnitude"].astype(bool))


def removed_from(
    removal: Removal, matrices: list[Topology], values: list[torch.Tensor], pool: Pool, rate: float
) -> list[torch.Tensor]:
    if pool.network:
        return remove_over_network(removal, values, rate)
    return [
        remove(removal, ActiveWeights(matrix, value), pool, rate)
        for matrix, value in zip(matrices, values, strict=True)
    ]


@given(st.lists(topologies(), min_size=1, max_size=3), seeds, rates, st.sampled_from(ANY_POOL))
def test_every_pool_is_the_criterion_on_its_weights(
    matrices: list[Topology], seed: int, rate: float, removal: Removal
) -> None:
    values = [weights_for(topology, seed + i) for i, topology in enumerate(matrices)]
    choose = removal.mark
    expected = {
        "network": choose(torch.cat(values), rate),
        "matrix": torch.cat([choose(value, rate) for value in values]),
        "gate": torch.cat(
            [
                choose(value[topology.within(span)], rate)
                for topology, value in zip(matrices, values, strict=True)
                for _, span in topology.gate_spans()
            ]
        ),
    }
    for pool, marks in expected.items():
        removed = removed_from(removal, matrices, values, POOLS[pool], rate)
        assert [len(gone) for gone in removed] == [topology.count for topology in matrices]
        rescued = torch.cat(removed) != marks
        assert int(rescued.sum()) == sum(bool(part.all()) for part in marks.split([len(gone) for gone in removed]))


@pytest.mark.parametrize("pool", POOLS.values(), ids=lambda part: part.name)
@pytest.mark.parametrize("removal", ANY_POOL, ids=lambda part: part.name)
def test_every_matrix_keeps_its_largest_weight(pool: Pool, removal: Removal) -> None:
    matrices = [Topology.random((4, 3), GateLayout.even(("a", "b"), 4), 6, seeded(i)) for i in range(2)]
    values = [weights_for(topology, i) for i, topology in enumerate(matrices)]
    for value, removed in zip(values, removed_from(removal, matrices, values, pool, rate=1.0), strict=True):
        assert removed.sum() == 5
        assert not removed[value.abs().argmax()]


def test_network_pool_takes_from_the_matrix_with_small_weights() -> None:
    small, large = torch.full((12,), 0.1), torch.full((12,), 1.0)
    removed = remove_over_network(MAGNITUDE, [small, large], rate=0.25)
    assert [int(gone.sum()) for gone in removed] == [6, 0]


def test_weights_in_double_precision_are_compared_in_double_precision() -> None:
    topology = Topology((2, 1), GateLayout.single(2), torch.arange(2))
    values = torch.tensor([1 + 1e-12, 1.0], dtype=torch.float64)
    removed = remove(MAGNITUDE, ActiveWeights(topology, values), POOLS["matrix"], 0.5)
    assert removed.tolist() == [False, True]


def test_half_precision_weights_work() -> None:
    topology = Topology((3, 1), GateLayout.single(3), torch.arange(3))
    values = torch.tensor([0.3, -0.1, 0.2], dtype=torch.bfloat16)
    removed = remove(MAGNITUDE, ActiveWeights(topology, values), POOLS["matrix"], 0.34)
    assert removed.tolist() == [False, True, False]
    assert torch.equal(by_magnitude(values, 0.34), removed)


def test_the_threshold_follows_the_number_of_weights_that_went() -> None:
    assert [halved_or_doubled(0.5, 0.2, removed, 100) for removed in (17, 18, 22, 23)] == [1.0, 0.5, 0.5, 0.25]


def test_a_matrix_is_spared_if_it_is_less_than_20_percent_sparse_and_gets_more_than_an_even_share() -> None:
    scores = [3.0, 1.0]
    assert sparing_rates([0.8, 0.5], scores, 0.4) == [0.4, 0.4]  # exactly 20 % sparse
    assert sparing_rates([0.81, 0.5], scores, 0.4) == pytest.approx([0.19, 0.4])
    assert sparing_rates([0.99, 0.5], scores, 0.4) == pytest.approx([0.01, 0.4])
    assert sparing_rates([0.81, 0.5], scores, 0.1) == [0.1, 0.1]  # never more than the rate
    assert sparing_rates([0.81, 0.5], [2.0, 2.0], 0.4) == [0.4, 0.4]  # exactly an even share


def test_a_nearly_dense_matrix_that_will_grow_much_is_spared() -> None:
    assert sparing_rates([0.9, 0.9, 0.5], [3.0, 1.0, 1.0], 0.4) == pytest.approx([0.1, 0.4, 0.4])


@pytest.mark.parametrize(
    "fields",
    [{"spans": POOLS["gate"].spans, "network": True}, {"layer": True, "network": True}],
    ids=["spans", "layer"],
)
def test_a_pool_is_of_one_kind(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="exclude each other; choose one"):
        Pool("own", **fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"state": 1.0}, "state and adapt need each other"),
        ({"rates": sparing_rates}, "rates and signal need each other"),
        ({"signal": "gradient"}, "rates and signal need each other"),
    ],
)
def test_a_removal_that_contradicts_itself_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Removal("own", by_magnitude, **fields)
