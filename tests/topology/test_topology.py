from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from topology_cases import seeded, seeds, topologies

from selfish_rnn.topology import GateLayout, Topology
from selfish_rnn.topology.topology import Span, empty_positions, sample


@given(st.integers(0, 60), st.data())
def test_sample_is_distinct_sorted_and_in_range(population: int, data: st.DataObject) -> None:
    count, seed = data.draw(st.integers(0, population)), data.draw(seeds)
    drawn = sample(population, count, seeded(seed))
    assert len(drawn) == count
    assert drawn.tolist() == sorted(set(drawn.tolist()))
    assert all(0 <= number < population for number in drawn.tolist())
    assert torch.equal(drawn, sample(population, count, seeded(seed)))


@pytest.mark.parametrize("count", [2, 4])
def test_every_sample_is_equally_likely(count: int) -> None:
    """All 15 subsets of 2 (and of 4) out of 6; the statistic exceeds 36 once in a thousand seeds."""
    generator = seeded(1)
    rounds = 6000
    seen = dict.fromkeys(itertools.combinations(range(6), count), 0)
    for _ in range(rounds):
        seen[tuple(sample(6, count, generator).tolist())] += 1
    expected = rounds / len(seen)
    assert sum((observed - expected) ** 2 / expected for observed in seen.values()) < 36


@pytest.mark.parametrize("count", [10_000, 90_000])
def test_large_samples_are_spread_evenly(count: int) -> None:
    """Ten slices of a range that is sampled many at a time; 28 is exceeded once in a thousand seeds."""
    observed = torch.histc(sample(100_000, count, seeded(2)).float(), bins=10, min=0, max=100_000)
    assert ((observed - count / 10) ** 2 / (count / 10)).sum() < 28


@given(topologies(), st.data())
def test_empty_positions_equal_a_look_at_every_place(topology: Topology, data: st.DataObject) -> None:
    _, span = data.draw(st.sampled_from(list(topology.gate_spans())))
    occupied = topology.active[topology.within(span)]
    empty = [place for place in range(span.start, span.stop) if place not in occupied.tolist()]
    assert empty_positions(occupied, span, torch.arange(len(empty))).tolist() == empty
    some = torch.arange(0, len(empty), 3)
    assert empty_positions(occupied, span, some).tolist() == empty[::3]


@given(topologies())
def test_mask_round_trip(topology: Topology) -> None:
    mask = topology.to_mask(torch.float64)
    assert mask.dtype == torch.float64
    assert mask.shape == topology.shape
    assert mask.sum() == topology.count
    again = Topology.from_mask(mask, topology.gates)
    assert torch.equal(again.active, topology.active)
    assert again.shape == topology.shape


@given(topologies())
def test_gate_counts_and_densities_are_those_of_the_mask(topology: Topology) -> None:
    blocks = topology.to_mask(torch.float64).split(topology.gates.sizes)
    assert [topology.count_in(span) for _, span in topology.gate_spans()] == [block.sum() for block in blocks]
    assert list(topology.gate_densities().values()) == pytest.approx([float(block.mean()) for block in blocks])
    assert topology.density == pytest.approx(topology.count / topology.to_mask().numel())


@given(topologies(), seeds)
def test_without_and_joined_undo_each_other(topology: Topology, seed: int) -> None:
    removed = torch.rand(topology.count, generator=seeded(seed)) < 0.5
    kept = topology.without(removed)
    assert kept.count == topology.count - int(removed.sum())
    assert torch.equal(kept.joined(topology.active[removed]).active, topology.active)


def test_more_than_two_dimensions_count_as_rows_of_many_columns() -> None:
    topology = Topology.random((4, 3, 2), GateLayout.even(("a", "b"), 4), 11, seeded(0))
    assert [span for _, span in topology.gate_spans()] == [Span(0, 12), Span(12, 24)]
    assert topology.to_mask().shape == (4, 3, 2)


def test_gates_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="gates of 4 rows do not fit"):
        Topology((5, 2), GateLayout.single(4), torch.tensor([0]))
