"""Every method with every optimizer: a run that finishes, keeps its promise and resumes bit-identically."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from selfish_rnn.training.stop import Interrupted

from selfish_rnn import METHODS
from selfish_rnn.runs.checkpoints import load_tensors
from selfish_rnn.runs.run import Run
from tiny_runs import UPDATES_PER_EPOCH, Recorder, result_of, tiny_experiment, tiny_trainer, trained

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "snt-asgd": {"name": "snt-asgd", "lr": 4.0, "nonmono": 0},
    "nt-asgd": {"name": "nt-asgd", "lr": 4.0, "nonmono": 0},
    "adam": {"name": "adam", "lr": 0.01},
    "momentum-sgd": {"name": "momentum-sgd", "lr": 0.5},
    "sgd": {"name": "sgd", "lr": 2.0},
}
PAIRS = [(method, optimizer) for method in METHODS if method != "small-dense" for optimizer in OPTIMIZERS]


def run_in_parts(texts: Path, run: Path, stop_at: int, **changes: Any) -> None:
    """A run that is asked to stop after some update and then continued by another trainer."""
    first: Any = None

    def stop(report: object) -> None:
        if first.position.step == stop_at:
            first._stop.requested = True

    first = tiny_trainer(texts, run, Recorder(stop), **changes)
    with pytest.raises(Interrupted):
        first.run()
    second = tiny_trainer(texts, run, **changes)
    second.load_checkpoint()
    second.run()


@pytest.mark.parametrize(("method", "optimizer"), PAIRS)
def test_every_method_runs_and_resumes_with_every_optimizer(
    method: str, optimizer: str, texts: Path, tmp_path: Path
) -> None:
    changes = {"method": method, "optimizer": OPTIMIZERS[optimizer], "epochs": 3}
    whole = Recorder()
    trainer = tiny_trainer(texts, tmp_path / "whole", whole, **changes)
    trainer.run()
    assert len(whole.epochs) == 3
    if method != "iss":  # which promises nothing
        assert whole.epochs[-1].active_weights == trainer.sparsifier.target_weights
    run_in_parts(texts, tmp_path / "parts", UPDATES_PER_EPOCH + 4, **changes)
    assert result_of(tmp_path / "parts") == result_of(tmp_path / "whole")


@pytest.mark.parametrize(
    "method", ["rigl", {"name": "selfish", "redistribution": "gates-by-gradient"}], ids=["rigl", "gates-by-gradient"]
)
def test_gradients_that_rewiring_goes_by_survive_a_stop_right_before_it(
    method: Any, texts: Path, tmp_path: Path
) -> None:
    trained(texts, tmp_path / "whole", method=method)
    run_in_parts(texts, tmp_path / "parts", UPDATES_PER_EPOCH, method=method)
    assert result_of(tmp_path / "parts") == result_of(tmp_path / "whole")


@pytest.mark.parametrize(
    "parts",
    [
        {"pool": "gate", "redistribution": "gate"},
        {"redistribution": "gates-by-magnitude"},
        {"redistribution": "gates-by-gradient"},
        {"allocation": "er"},
        {"growth": "gradient"},
        {"removal": "signed"},
    ],
)
def test_the_ablations_run(parts: dict[str, str], texts: Path, tmp_path: Path) -> None:
    recorder = Recorder()
    trainer = tiny_trainer(texts, tmp_path / "run", recorder, method={"name": "selfish", **parts})
    trainer.run()
    assert {report.active_weights for report in recorder.epochs} == {trainer.sparsifier.target_weights}


def test_rigl_rewires_every_few_updates(texts: Path, tmp_path: Path) -> None:
    trainer = tiny_trainer(texts, tmp_path / "run", method="rigl", rewire_every=4)
    trainer.run()
    assert trainer.sparsifier.rewirings_done == trainer.position.step // 4


def test_small_dense_has_as_many_parameters_as_the_sparse_network(texts: Path, tmp_path: Path) -> None:
    model = {"name": "stacked-lstm", "embedding": 40, "hidden": 40, "layers": 2, "dropout": 0.0}
    sparse = Run.start(tiny_experiment(texts, model=model), tmp_path / "sparse").trainer()
    dense = Run.start(tiny_experiment(texts, model=model, method="small-dense"), tmp_path / "dense").trainer()
    parameters = sum(parameter.numel() for parameter in sparse.model.parameters())
    target = parameters - sparse.sparsifier.total_weights + sparse.sparsifier.active_weights
    count = sum(parameter.numel() for parameter in dense.model.parameters())
    assert dense.sparsifier.active_weights == dense.sparsifier.total_weights
    assert abs(count - target) / target < 0.05


@pytest.mark.parametrize(("method", "optimizer"), [("gmp", "adam"), ("gmp", "snt-asgd"), ("iss", "snt-asgd")])
def test_the_summary_counts_the_weights_of_the_model_it_measured(
    method: str, optimizer: str, texts: Path, tmp_path: Path
) -> None:
    """Of a method that prunes, a network that is not yet sparse must not pass for the result."""
    changes = {"method": method, "optimizer": OPTIMIZERS[optimizer], "epochs": 12, "sparsity": 0.9}
    run = Run.start(tiny_experiment(texts, **changes), tmp_path / "run")
    trainer = run.trainer()
    summary = run.execute(trainer)
    tensors, _ = load_tensors(run.folder.model)
    count = sum(int(tensors[weight.name].count_nonzero()) for weight in trainer.sparsifier.weights)
    if method == "gmp":
        assert summary["active_weights"] == trainer.sparsifier.target_weights
        assert summary["best_epoch"] > 9  # when the network is as sparse as it is to be
        assert count <= summary["active_weights"]
    else:
        assert count == summary["active_weights"]
        assert set(summary["live_units"]) == {"layer_0", "layer_1"}
