from __future__ import annotations

import pytest
import torch
from hypothesis import given
from topology_cases import rates, seeded, seeds, topologies, weights_for

from selfish_rnn.topology import REDISTRIBUTIONS, GateLayout, Redistribution, Topology
from selfish_rnn.topology.redistribution import AfterRemoval, equal_gates, layers_by_survivors

INSIDE = [part for part in REDISTRIBUTIONS.values() if part.quotas is not None]
FOUR_GATES = GateLayout.even(("input", "forget", "candidate", "output"), 8)


def freed_from(before: Topology, rate: float, seed: int) -> AfterRemoval:
    """A matrix that lost a random fraction of its weights."""
    removed = torch.rand(before.count, generator=seeded(seed)) < rate
    kept = before.without(removed)
    return AfterRemoval(kept, before, weights_for(kept, seed + 1), weights_for(kept, seed + 2))


def freed_with(kept_per_gate: list[int], count: int) -> AfterRemoval:
    """Four gates of 2 x 10 that keep so many weights each, all 1 in gate 0, 2 in gate 1, ...; ``count`` to grow."""
    mask = torch.zeros(8, 10)
    value = torch.zeros(8, 10)
    for gate, kept in enumerate(kept_per_gate):
        mask[2 * gate : 2 * gate + 2].view(-1)[:kept] = 1
        value[2 * gate : 2 * gate + 2] = gate + 1
    topology = Topology.from_mask(mask, FOUR_GATES)
    empty = (mask.flatten() == 0).nonzero().flatten()
    values = value.flatten()[topology.positions]
    return AfterRemoval(topology, topology.joined(empty[:count]), values)


def counts(name: str, freed: AfterRemoval) -> list[int]:
    return [count for _, count in REDISTRIBUTIONS[name].quotas(freed)]


@pytest.mark.slow
@pytest.mark.parametrize("part", INSIDE, ids=lambda part: part.name)
@given(before=topologies(), rate=rates, seed=seeds)
def test_exactly_what_was_freed_and_never_more_than_there_is_room(
    part: Redistribution, before: Topology, rate: float, seed: int
) -> None:
    freed = freed_from(before, rate, seed)
    quotas = part.quotas(freed)
    assert sum(count for _, count in quotas) == freed.count
    assert all(0 <= count <= freed.capacity(span) for span, count in quotas)


@given(before=topologies(), rate=rates, seed=seeds)
def test_same_gate_returns_to_each_gate_what_it_lost(before: Topology, rate: float, seed: int) -> None:
    freed = freed_from(before, rate, seed)
    for span, count in REDISTRIBUTIONS["gate"].quotas(freed):
        assert freed.topology.count_in(span) + count == before.count_in(span)


def test_equal_gates_grow_the_same_whatever_they_keep() -> None:
    assert counts("gates-equal", freed_with([1, 5, 9, 0], count=20)) == [5, 5, 5, 5]


def test_what_a_full_gate_cannot_take_goes_to_the_others() -> None:
    assert counts("gates-equal", freed_with([20, 18, 3, 0], count=20)) == [0, 2, 9, 9]


def test_equal_gates_of_different_sizes_grow_the_same_per_row() -> None:
    gates = GateLayout(("master", "output", "candidate"), (1, 4, 4))
    kept = Topology((9, 10), gates, torch.tensor([0]))
    freed = AfterRemoval(kept, kept.joined(torch.arange(1, 19)), torch.ones(1))
    assert counts("gates-equal", freed) == [2, 8, 8]


def test_gates_grow_in_proportion_to_mean_magnitude() -> None:
    """Mean magnitudes 1, 2, 3 and 4, however many weights each gate keeps."""
    assert counts("gates-by-magnitude", freed_with([2, 1, 4, 3], count=20)) == [2, 4, 6, 8]


def test_gates_grow_in_proportion_to_mean_gradient() -> None:
    freed = freed_with([2, 2, 2, 2], count=20)
    gradients = torch.tensor([-4.0, 4.0, 3.0, 3.0, -2.0, 2.0, 1.0, 1.0])
    freed = AfterRemoval(freed.topology, freed.before, freed.values, gradients)
    assert counts("gates-by-gradient", freed) == [8, 6, 4, 2]


def test_a_gate_that_keeps_nothing_has_no_magnitude() -> None:
    assert counts("gates-by-magnitude", freed_with([2, 0, 2, 0], count=20)) == [5, 0, 15, 0]


def test_by_gradient_without_gradients_says_what_to_do() -> None:
    freed = freed_with([2, 2, 2, 2], count=4)
    with pytest.raises(ValueError, match="needs the gradients of the last backward pass"):
        counts("gates-by-gradient", AfterRemoval(freed.topology, freed.before, freed.values))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "needs either quotas .within a matrix. or counts .over matrices."),
        (
            {"quotas": equal_gates, "counts": layers_by_survivors},
            "needs either quotas .within a matrix. or counts .over matrices.",
        ),
        ({"quotas": equal_gates, "signal": "momentum"}, "only counts .over matrices. can use a signal"),
    ],
)
def test_a_redistribution_that_contradicts_itself_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Redistribution("own", **fields)
