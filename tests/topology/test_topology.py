from __future__ import annotations

import pytest
import torch
from hypothesis import given
from topology_cases import seeded, seeds, topologies

from selfish_rnn.topology import GateLayout, Topology
from selfish_rnn.topology.topology import Span


@given(topologies())
def test_bits_round_trip(topology: Topology) -> None:
    bits = topology.to_bits()
    assert bits.dtype == torch.uint8
    assert bits.shape == ((topology.size + 7) // 8,)
    again = Topology.from_bits(bits, topology.shape, topology.gates)
    assert (again.shape, again.gates) == (topology.shape, topology.gates)
    assert torch.equal(again.positions, topology.positions)
    assert torch.equal(Topology.from_bits(bits, topology.shape).to_mask(), topology.to_mask())


def test_bits_of_another_size_are_refused() -> None:
    bits = Topology((4, 4), GateLayout.single(4), torch.arange(16)).to_bits()
    with pytest.raises(ValueError, match=r"2 bytes does not fit a matrix of shape \(5, 5\)"):
        Topology.from_bits(bits, (5, 5))


@given(topologies())
def test_mask_round_trip(topology: Topology) -> None:
    mask = topology.to_mask(torch.float64)
    assert mask.dtype == torch.float64
    assert mask.shape == topology.shape
    assert mask.sum() == topology.count
    again = Topology.from_mask(mask, topology.gates)
    assert torch.equal(again.positions, topology.positions)
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
    assert torch.equal(kept.joined(topology.positions[removed]).positions, topology.positions)


def test_more_than_two_dimensions_count_as_rows_of_many_columns() -> None:
    topology = Topology.random((4, 3, 2), GateLayout.even(("a", "b"), 4), 11, seeded(0))
    assert [span for _, span in topology.gate_spans()] == [Span(0, 12), Span(12, 24)]
    assert topology.to_mask().shape == (4, 3, 2)


def test_gates_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="gates of 4 rows do not fit"):
        Topology((5, 2), GateLayout.single(4), torch.tensor([0]))
