"""The topologies of a run are written down as it is trained, also when it is interrupted."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from selfish_rnn.runs.recording import Interrupted, TopologyRecorder
from selfish_rnn.runs.run import Run
from selfish_rnn.runs.topologies import TopologyHistory
from selfish_rnn.topology.gates import WHOLE
from tiny_runs import UPDATES_PER_EPOCH, Recorder, tiny_run, tiny_trainer


@pytest.mark.parametrize("method", ["selfish", "dsr", "gmp", "rigl"])
def test_every_epoch_is_there(texts: Path, tmp_path: Path, method: str) -> None:
    history, recorder = TopologyHistory(tmp_path / "topologies.bin"), Recorder()
    trainer = tiny_trainer(texts, recorder, TopologyRecorder(history), method=method, epochs=4)
    trainer.run()
    assert {weight.name: weight.topology.positions.tolist() for weight in trainer.sparsifier.weights} == {
        name: topology.positions.tolist() for name, topology in history.topologies().items()
    }
    # What an epoch tells of is the network before its rewiring.
    for record in recorder.epochs:
        before = history.topologies(epoch=record.epoch - 1)
        for name, gates in record.density.items():
            assert before[name].density == gates[WHOLE]
            assert all(density == gates[gate] for gate, density in before[name].gate_densities().items())


def test_rewirings_inside_an_epoch(texts: Path, tmp_path: Path) -> None:
    history = TopologyHistory(tmp_path / "topologies.bin")
    trainer = tiny_trainer(texts, TopologyRecorder(history), rewire_every=4, epochs=2)
    trainer.run()
    # The last, at update 20, has a prune rate of zero.
    assert [moment.step for moment in history.moments()] == [0, 4, 8, 12, 16]
    assert [moment.epoch for moment in history.moments()] == [0, 1, 1, 2, 2]


def test_weights_that_die_without_rewirings(texts: Path, tmp_path: Path) -> None:
    history = TopologyHistory(tmp_path / "topologies.bin")
    settings: dict[str, Any] = {"method": {"name": "iss", "strength": 0.5}, "optimizer": {"name": "sgd", "lr": 0.1}}
    trainer = tiny_trainer(texts, TopologyRecorder(history), **settings)
    trainer.run()
    last = history.topologies()
    assert sum(each.count for each in last.values()) == trainer.sparsifier.active_weights
    assert trainer.sparsifier.active_weights < trainer.sparsifier.total_weights


def test_a_network_that_keeps_its_topology_has_one_record(texts: Path, tmp_path: Path) -> None:
    history = TopologyHistory(tmp_path / "topologies.bin")
    tiny_trainer(texts, TopologyRecorder(history), method="static").run()
    assert len(history) == 1


def test_an_interrupted_run_has_the_same_history(texts: Path, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    tiny_run(texts, whole).train()

    def ask(_: object) -> None:
        if len(stopping.steps) == UPDATES_PER_EPOCH + 3:
            signal.raise_signal(signal.SIGINT)

    stopping = Recorder(ask)
    with pytest.raises(Interrupted):
        tiny_run(texts, parts).train(stopping)
    # A crash while the next record was written.
    with open(parts / "topologies.bin", "ab") as file:
        file.write(b"torn")
    Run.open(parts).train()
    assert (whole / "topologies.bin").read_bytes() == (parts / "topologies.bin").read_bytes()


def test_a_run_gives_back_every_topology_it_had(texts: Path, tmp_path: Path) -> None:
    run = tiny_run(texts, tmp_path / "run", epochs=3)
    run.train()
    opened = Run.open(tmp_path / "run")
    records = opened.folder.metrics.read()
    for record in records:
        topologies = opened.topology(record.epoch - 1)
        assert {name: each.density for name, each in topologies.items()} == {
            name: gates[WHOLE] for name, gates in record.density.items()
        }


def test_a_run_told_so_keeps_no_topologies(texts: Path, tmp_path: Path) -> None:
    run = tiny_run(texts, tmp_path / "run", epochs=1, keep_topologies=False)
    run.train()
    assert not run.folder.topologies.exists()
    with pytest.raises(ValueError, match="did not save its topologies"):
        run.topology(0)
