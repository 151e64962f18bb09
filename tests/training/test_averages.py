"""Averages besides that of the optimizer: what they are equal to, and that training does not depend on them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from selfish_rnn.errors import UserError
from selfish_rnn.experiment.settings import Experiment
from selfish_rnn.files import is_partial, load_tensors, replacing
from selfish_rnn.runs.checkpoints import CheckpointStore
from selfish_rnn.runs.run import Run
from selfish_rnn.training import build as optimizers
from selfish_rnn.training.engine_choice import needed_memory
from selfish_rnn.training.records import EpochRecord
from tiny_runs import (
    OPTIMIZERS,
    Recorder,
    bits,
    result_of,
    run_in_parts,
    stop_after,
    tiny_experiment,
    tiny_run,
    trained,
)

MODEL = "model.safetensors"
RESTLESS = {"lr": 30.0, "nonmono": 0}
AVERAGES: list[dict[str, Any]] = [
    {"kind": "nt", "from": 1},
    {"kind": "snt", "from": 2},
    {"kind": "snt", "from": 0.5},
    {"kind": "nt", "from": "trigger"},
    {"kind": "snt", "from": "trigger"},
]
NAMES = ["nt-1", "snt-2", "snt-0.5", "nt-trigger", "snt-trigger"]

ENGINES = pytest.mark.parametrize("engine", ["masked", "packed"])


@pytest.fixture(autouse=True)
def every_epoch_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The words of the tiny corpus are random: no network gets below the unigram perplexity."""
    monkeypatch.setattr(optimizers, "LEARNED", 100.0)


def own_averages(record: EpochRecord) -> dict[str, Any]:
    """The record of an epoch without what takes time or belongs to additional averages."""
    return {name: value for name, value in record.to_json().items() if name not in ("seconds", "averages")}


def raw(recorder: Recorder) -> Any:
    """The raw weights, topology and own averages at the end."""
    trainer = recorder.trainer
    entries = {
        index: {key: value for key, value in state.items() if ":" not in key}
        for index, state in trainer.optimizer.state_dict()["state"].items()
    }
    entries = {index: state for index, state in entries.items() if state}
    return bits(
        {"weights": trainer.weights().tensors, "optimizer": entries, "sparsifier": trainer.sparsifier.state_dict()}
    )


# What training does


@pytest.mark.slow
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=12)
@given(
    optimizer=st.sampled_from(sorted(OPTIMIZERS)),
    method=st.sampled_from(["selfish", "static", "rigl", "gmp", "set"]),
    engine=st.sampled_from(["masked", "packed"]),
    chosen=st.sets(st.sampled_from(range(len(AVERAGES))), min_size=1),
    rewire_every=st.sampled_from([None, 4]),
)
def test_training_does_not_depend_on_additional_averages(
    texts: Path, optimizer: str, method: str, engine: str, chosen: set[int], rewire_every: int | None
) -> None:
    changes: dict[str, Any] = {"optimizer": OPTIMIZERS[optimizer], "method": method, "rewire_every": rewire_every}
    changes |= {"engine": engine, "epochs": 4}
    plain = trained(texts, **changes)
    averaged = trained(texts, **changes, averages=[AVERAGES[index] for index in sorted(chosen)])
    assert list(map(own_averages, averaged.epochs)) == list(map(own_averages, plain.epochs))
    assert raw(averaged) == raw(plain)
    assert bits(averaged.bests) == bits(plain.bests)
    assert all(set(record.averages) == {NAMES[index] for index in chosen} for record in averaged.epochs)


# What averages are equal to


@pytest.mark.slow
@pytest.mark.parametrize("main", ["snt-asgd", "nt-asgd", "sgd"])
@pytest.mark.parametrize(
    ("method", "engine"), [("selfish", "masked"), ("selfish", "packed"), ("gmp", "masked"), ("dense", "masked")]
)
def test_an_average_is_that_of_a_run_whose_optimizer_has_it(
    texts: Path, tmp_path: Path, main: str, method: str, engine: str
) -> None:
    """Every validation, the best epoch and the test; torch's SGD makes the same steps without weight decay."""
    common: dict[str, Any] = {"method": method, "engine": engine, "epochs": 6, "restart_at": [5], "prune_rate": 0.7}
    optimizer: dict[str, Any] = {"name": main, "weight_decay": 0.0, **RESTLESS}
    if main == "sgd":
        optimizer.pop("nonmono")
    elif main == "nt-asgd":
        optimizer["average_from"] = 1  # before the others start, so that their raw weights have to be evaluated
    averages = [*AVERAGES, {"kind": "nt", "from": 3}]
    recorder = Recorder()
    run = tiny_run(texts, tmp_path / "several", **common, optimizer=optimizer, averages=averages)
    summary = run.train(recorder)
    for average in averages:
        kind, start = average["kind"], average["from"]
        if start == "trigger" and main == "sgd":
            continue  # its trigger waits for the usual number of epochs
        own = {"name": f"{kind}-asgd", "weight_decay": 0.0, **RESTLESS}
        if start != "trigger":
            own["average_from"] = start
        name, other = f"{kind}-{start}", Recorder()
        expected = tiny_run(texts, tmp_path / name, **common, optimizer=own).train(other)
        records = [record.averages[name] for record in recorder.epochs]
        assert [each.valid_loss for each in records] == [each.valid_loss for each in other.epochs], name
        assert [each.averaging for each in records] == [each.averaging for each in other.epochs], name
        assert any(each.averaging for each in records), name
        outcome = {key: summary["averages"][name][key] for key in ("best_epoch", "valid_perplexity", "test_perplexity")}
        assert outcome == {key: expected[key] for key in outcome}, name
        saved, whole = (load_tensors(path)[0] for path in (run.folder.average(name), tmp_path / name / MODEL))
        assert bits(saved) == bits(whole), name


@pytest.mark.slow
@pytest.mark.parametrize("name", ["snt-asgd", "nt-asgd"])
@pytest.mark.parametrize("method", ["selfish", "gmp"])
@ENGINES
def test_average_from_is_a_trigger_at_once_and_a_restart(texts: Path, name: str, method: str, engine: str) -> None:
    """The way averages were started at a certain epoch before there was a setting for it."""
    common: dict[str, Any] = {"method": method, "engine": engine, "epochs": 6}
    restarted = trained(texts, **common, optimizer={"name": name, **RESTLESS}, restart_at=[4])
    started = trained(texts, **common, optimizer={"name": name, "lr": 30.0, "average_from": 4})
    assert restarted.epochs[3].averaging, "the trigger must fire before the restart for this test to say anything"
    assert [record.averaging for record in started.epochs] == [False] * 4 + [True] * 2
    same = [{**own_averages(record), "averaging": True} for record in restarted.epochs[4:]]
    assert [own_averages(record) for record in started.epochs[4:]] == same
    assert raw(started) == raw(restarted)


def test_a_fraction_is_the_epoch_it_is_rounded_to(texts: Path) -> None:
    optimizer = {"name": "snt-asgd", "lr": 4.0}
    fraction = trained(texts, epochs=5, optimizer={**optimizer, "average_from": 0.5})
    epoch = trained(texts, epochs=5, optimizer={**optimizer, "average_from": 3})
    assert raw(fraction) == raw(epoch)
    assert [record.averaging for record in fraction.epochs] == [False] * 3 + [True] * 2


def test_average_from_is_restarted_as_any_other_start(texts: Path) -> None:
    common: dict[str, Any] = {"epochs": 5, "restart_at": [3]}
    early = trained(texts, **common, optimizer={"name": "nt-asgd", "lr": 4.0, "average_from": 1})
    late = trained(texts, **common, optimizer={"name": "nt-asgd", "lr": 4.0, "average_from": 3})
    assert early.epochs[1].valid_loss != late.epochs[1].valid_loss
    assert [record.valid_loss for record in early.epochs[3:]] == [record.valid_loss for record in late.epochs[3:]]


def test_an_average_without_restarts_is_that_of_a_run_without_restarts(texts: Path) -> None:
    optimizer = {"name": "snt-asgd", "lr": 4.0, "average_from": 1}
    averages = [{"kind": "snt", "from": 1}, {"kind": "snt", "from": 1, "restart": False}]
    restarted = trained(texts, epochs=5, optimizer=optimizer, restart_at=[3], averages=averages)
    unbroken = trained(texts, epochs=5, optimizer=optimizer)
    losses = {
        name: [record.averages[name].valid_loss for record in restarted.epochs]
        for name in ("snt-1", "snt-1-no-restart")
    }
    assert losses["snt-1-no-restart"] == [record.valid_loss for record in unbroken.epochs]
    assert losses["snt-1"] == [record.valid_loss for record in restarted.epochs] != losses["snt-1-no-restart"]


def test_engines_have_the_same_averages(texts: Path) -> None:
    averages = [{"kind": kind, "from": start} for kind in ("snt", "nt") for start in (1, 2)]
    changes: dict[str, Any] = {"epochs": 4, "averages": averages, "optimizer": {"name": "sgd", "lr": 4.0}}
    masked, packed = (trained(texts, engine=engine, **changes) for engine in ("masked", "packed"))
    for one, two in zip(masked.epochs, packed.epochs, strict=True):
        for name, average in one.averages.items():
            assert average.valid_loss == pytest.approx(two.averages[name].valid_loss, rel=1e-5)
    losses = {average.valid_loss for average in masked.epochs[-1].averages.values()}
    assert len(losses) == 4, "the averages must differ for this test to say anything"


def test_networks_that_are_not_yet_sparse_do_not_compete(texts: Path, tmp_path: Path) -> None:
    recorder = Recorder()
    changes: dict[str, Any] = {"method": "gmp", "epochs": 5, "optimizer": {"name": "sgd", "lr": 4.0}}
    run = tiny_run(texts, tmp_path / "run", **changes, averages=AVERAGES[:2])
    summary = run.train(recorder)
    first = next(record.epoch for record in recorder.epochs if record.active_weights == summary_weights(run))
    for name in NAMES[:2]:
        best = min(recorder.epochs[first - 1 :], key=lambda record: record.averages[name].valid_loss)
        assert summary["averages"][name]["best_epoch"] == best.epoch


def summary_weights(run: Run) -> int:
    return run.folder.metrics.read()[-1].active_weights


# Files


@pytest.mark.slow
@ENGINES
@pytest.mark.parametrize("name", ["snt-asgd", "adam"])
def test_a_run_with_averages_is_recorded_and_resumed_to_the_same_bits(
    texts: Path, tmp_path: Path, engine: str, name: str
) -> None:
    changes: dict[str, Any] = {"engine": engine, "optimizer": OPTIMIZERS[name], "averages": AVERAGES, "epochs": 4}
    changes["restart_at"] = [3]
    run = tiny_run(texts, tmp_path / "whole", **changes)
    summary = run.train()
    for stop in (5, 10, 23, 31):
        run_in_parts(texts, tmp_path / str(stop), stop, **changes)
        assert result_of(tmp_path / str(stop)) == result_of(tmp_path / "whole")
    assert json.loads(run.folder.summary.read_text())["averages"] == summary["averages"]
    records = run.folder.metrics.read()
    assert [list(record.averages) for record in records] == [NAMES] * 4
    for name in NAMES:
        losses = [record.averages[name].valid_loss for record in records]
        outcome = summary["averages"][name]
        assert outcome["best_epoch"] == losses.index(min(losses)) + 1
        assert outcome["averaging"] == records[outcome["best_epoch"] - 1].averages[name].averaging
        assert outcome["valid_perplexity"] == pytest.approx(math.exp(min(losses)), rel=1e-6)
        assert outcome["test_perplexity"] > 1
    assert sorted(path.stem for path in run.folder.averages.iterdir()) == sorted(NAMES)
    assert run.train()["averages"] == summary["averages"], "a finished run is only evaluated again"


def test_a_run_without_averages_has_no_traces_of_them(texts: Path, tmp_path: Path) -> None:
    run = tiny_run(texts, tmp_path / "run")
    assert "averages" not in run.train()
    assert not any(record.averages for record in run.folder.metrics.read())
    assert "averages" not in run.folder.metrics.path.read_text()
    assert not run.folder.averages.exists()


def test_half_written_averages_of_a_killed_process_are_removed(texts: Path, tmp_path: Path) -> None:
    run = tiny_run(texts, tmp_path / "run", averages=AVERAGES[:1])
    run.folder.averages.mkdir()
    with replacing(run.folder.average("nt-1")) as half_written:
        half_written.write_bytes(b"half")
        assert is_partial(next(run.folder.averages.iterdir()))
        run.train()
        assert [path.name for path in run.folder.averages.iterdir()] == ["nt-1.safetensors"]
        half_written.parent.mkdir(exist_ok=True)
        half_written.write_bytes(run.folder.average("nt-1").read_bytes())


def test_a_checkpoint_of_a_version_without_averages_is_continued(texts: Path, tmp_path: Path) -> None:
    run = tiny_run(texts, tmp_path / "run")
    stop_after(run, 13)
    store = CheckpointStore(run.folder.checkpoints.folder)
    loaded = store.load()
    del loaded.state["experiment"]["averages"]
    del loaded.state["experiment"]["model"]["init_range"], loaded.state["experiment"]["optimizer"]["average_from"]
    store.save(loaded.state, loaded.step)
    Run.open(tmp_path / "run").train()
    tiny_run(texts, tmp_path / "whole").train()
    assert result_of(tmp_path / "run") == result_of(tmp_path / "whole")


# Settings


def test_memory_of_averages_is_counted(texts: Path) -> None:
    def needed(averages: list[dict[str, Any]]) -> int:
        return needed_memory(tiny_experiment(texts, averages=averages, epochs=60), 100, "masked")

    sparse, others = tiny_experiment(texts).model.sizes(100)
    assert needed(AVERAGES) - needed([]) == (sparse + others) * (3 * 8 + 2 * 4)


@pytest.mark.parametrize("optimizer", ["adam", "momentum-sgd"])
def test_averages_of_snfs_need_an_optimizer_without_momentum(texts: Path, optimizer: str) -> None:
    changes: dict[str, Any] = {"method": "snfs", "averages": AVERAGES[:1]}
    with pytest.raises(UserError, match=f"averages do not work with method snfs and optimizer {optimizer}"):
        tiny_experiment(texts, **changes, optimizer=OPTIMIZERS[optimizer])
    assert isinstance(tiny_experiment(texts, **changes, optimizer=OPTIMIZERS["sgd"]), Experiment)
