"""Changes of a run's topology: exploration, and distances from its start and from another run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from selfish_rnn.analysis.distance import Alignment, MatrixAlignment, compare_topologies
from selfish_rnn.analysis.topologies import distance_between, distance_from, exploration
from selfish_rnn.runs.topologies import Moment, TopologyHistory
from selfish_rnn.topology import SELFISH, ActiveWeights, GateLayout, Rewiring, Topology, rewire


def rewired_history(path: Path, seed: int, epochs: int = 4, rate: float = 0.3) -> TopologyHistory:
    """Two matrices under Selfish-RNN with random weights; both runs start from the same topologies."""
    start, later = (torch.Generator().manual_seed(entry) for entry in (0, seed))
    names = ("rnn.weight_hh_l0", "decoder.weight")
    layouts = (GateLayout.even(("input", "forget", "candidate", "output"), 40), GateLayout.single(40))
    topologies = {
        name: Topology.random((40, 10), gates, 120, start) for name, gates in zip(names, layouts, strict=True)
    }
    history = TopologyHistory(path)
    history.start(topologies)
    for epoch in range(1, epochs + 1):
        weights = [ActiveWeights(entry, torch.randn(entry.count, generator=later)) for entry in topologies.values()]
        network = [lambda weight=weight: weight for weight in weights]
        done = dict(zip(names, rewire(SELFISH, network, rate, later), strict=True))
        history.append(10 * epoch, epoch, done)
        topologies = {name: rewiring.topology for name, rewiring in done.items()}
    return history


def test_what_has_been_tried_only_grows_from_the_density(tmp_path: Path) -> None:
    history = rewired_history(tmp_path / "a", 1)
    result = list(exploration(history))
    assert [entry.moment for entry in result] == history.moments()
    assert result[0].overall == 0.3
    assert result[0].matrices == {"rnn.weight_hh_l0": 0.3, "decoder.weight": 0.3}
    ever = np.zeros(400, dtype=bool)
    for entry, record in zip(result, history, strict=True):
        ever[record.topologies["decoder.weight"].positions.numpy()] = True
        assert entry.matrices["decoder.weight"] == ever.mean()
    shares = [entry.overall for entry in result]
    assert shares == sorted(shares)
    assert 0.5 < shares[-1] < 1


def test_a_topology_written_down_whole_counts_as_tried(tmp_path: Path) -> None:
    history = TopologyHistory(tmp_path / "a")
    gates = GateLayout.single(2)
    for number, positions in enumerate(([0, 1], [1, 2], [5])):
        history.start({"weight": Topology((2, 3), gates, torch.tensor(positions))}, step=number, epoch=number)
    assert [entry.overall for entry in exploration(history)] == [2 / 6, 3 / 6, 4 / 6]


def test_the_distance_from_an_epoch(tmp_path: Path) -> None:
    history = rewired_history(tmp_path / "a", 1)
    result = dict(distance_from(history, epoch=1))
    assert list(result) == history.moments()[2:]
    first = history.topologies(epoch=1)
    for moment, distance in result.items():
        expected = compare_topologies(first, history.topologies(epoch=moment.epoch))
        assert distance.overall == expected.overall
    distances = [distance.overall for distance in result.values()]
    assert 0 < distances[0] < distances[-1] < 1
    candidate = TopologyHistory(tmp_path / "b")
    candidate.start(first, step=30, epoch=3)
    with pytest.raises(ValueError, match="no record of epoch 1 or before"):
        list(distance_from(candidate, epoch=1))


def test_the_distance_between_runs_from_one_start(tmp_path: Path) -> None:
    first, second = rewired_history(tmp_path / "a", 1), rewired_history(tmp_path / "b", 2, epochs=3)
    result = list(distance_between(first, second))
    assert [moment for moment, _ in result] == [Moment(10 * epoch, epoch) for epoch in range(4)]
    distances = [distance.overall for _, distance in result]
    assert distances[0] == 0
    assert distances == sorted(distances)
    # The paper's plateau: two random topologies of this density.
    assert distances[-1] < 1 - 0.3 / (2 - 0.3) + 0.05
    assert [distance.overall for _, distance in distance_between(second, first)] == pytest.approx(distances)


def test_epochs_that_only_one_run_has_are_left_out_and_the_last_of_an_epoch_counts(tmp_path: Path) -> None:
    first = rewired_history(tmp_path / "a", 1)
    second = TopologyHistory(tmp_path / "b")
    second.start(first.topologies(epoch=1), step=12, epoch=2)
    second.start(first.topologies(epoch=2), step=20, epoch=2)
    second.start(first.topologies(epoch=4), step=90, epoch=9)
    ((moment, distance),) = distance_between(first, second)
    assert (moment, distance.overall) == (Moment(20, 2), 0)


def test_units_of_two_runs_can_be_aligned(tmp_path: Path) -> None:
    first = rewired_history(tmp_path / "a", 1, epochs=1)
    order = np.random.default_rng(0).permutation(10)
    rows = np.concatenate([10 * gate + order for gate in range(4)])
    second = TopologyHistory(tmp_path / "b")
    second.start(
        {
            name: Topology.from_mask(topology.to_mask()[rows][:, order], topology.gates)
            for name, topology in first.topologies(epoch=0).items()
        }
    )
    back = np.argsort(order)
    aligned = MatrixAlignment(np.concatenate([10 * gate + back for gate in range(4)]), back)
    alignment = Alignment(dict.fromkeys(first.topologies(), aligned))
    ((_, distance),) = distance_between(first, second, alignment)
    assert distance.overall == 0
    ((_, distance),) = distance_between(first, second)
    assert distance.overall > 0.5


def test_a_rewiring_that_names_some_matrices_leaves_the_others(tmp_path: Path) -> None:
    history = rewired_history(tmp_path / "a", 1, epochs=0)
    before = history.topology("decoder.weight")
    marks = torch.zeros(before.count, dtype=torch.bool)
    marks[0] = True
    history.append(1, 1, {"decoder.weight": Rewiring(before, marks, torch.empty(0, dtype=torch.int64))})
    first, second = exploration(history)
    assert first.matrices == second.matrices
    assert history.topology("rnn.weight_hh_l0").count == 120
