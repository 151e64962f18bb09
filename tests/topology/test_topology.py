from __future__ import annotations

import pytest
import torch
from hypothesis import given
from topology_cases import seeded, seeds, topologies

from selfish_rnn.topology import GateLayout, Topology
from selfish_rnn.topology.topology import Span


@given(topologies())
def test_a_saved_topology_is_the_same_and_as_small_as_bits_or_positions(topology: Topology) -> None:
    saved = topology.to_saved()
    assert saved.nbytes == min((topology.size + 7) // 8, 4 * topology.count)
    again = Topology.from_saved(saved, topology.shape, topology.gates)
    assert (again.shape, again.gates) == (topology.shape, topology.gates)
    assert torch.equal(again.positions, topology.positions)
    assert torch.equal(Topology.from_saved(saved, topology.shape).to_mask(), topology.to_mask())


def test_topologies_of_large_matrices_are_saved_at_the_cost_of_their_weights() -> None:
    for shape, kind in (((100_000, 400_000), torch.int64), ((30_000, 50_000), torch.int32)):
        positions = torch.tensor([0, 7, shape[0] * shape[1] - 1])
        topology = Topology(shape, GateLayout.single(shape[0]), positions)
        assert topology.to_saved().dtype == kind
        assert torch.equal(Topology.from_saved(topology.to_saved(), shape).positions, positions)


def test_bits_of_several_pieces_round_trip() -> None:
    positions = torch.arange(0, 9_000_003, 3)
    topology = Topology((3, 3_000_001), GateLayout.single(3), positions)
    assert topology.to_saved().dtype == torch.uint8
    assert torch.equal(Topology.from_saved(topology.to_saved(), topology.shape).positions, positions)


@pytest.mark.parametrize("positions", [[3, 2], [2, 2], [-1, 2], [2, 20]])
def test_saved_positions_that_cannot_be_are_refused(positions: list[int]) -> None:
    with pytest.raises(ValueError, match=r"must be sorted, unique and inside a matrix of shape \(5, 4\)"):
        Topology.from_saved(torch.tensor(positions), (5, 4))


def test_bits_of_another_size_are_refused() -> None:
    bits = Topology((4, 4), GateLayout.single(4), torch.arange(16)).to_saved()
    with pytest.raises(ValueError, match=r"2 bytes does not fit a matrix of shape \(5, 5\)"):
        Topology.from_saved(bits, (5, 5))


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
