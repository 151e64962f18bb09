"""Every method with every optimizer: a run that finishes, keeps its promise and resumes bit-identically."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from selfish_rnn.engine import available
from selfish_rnn.experiment.methods import CONFIGURABLE_METHODS
from selfish_rnn.files import load_tensors
from tiny_runs import OPTIMIZERS, UPDATES_PER_EPOCH, Recorder, finished_run, result_of, run_in_parts, tiny_run, trained

pytestmark = pytest.mark.slow

NEEDS_KERNELS = pytest.mark.skipif(not available(), reason="the packed engine's kernels are not built")
PAIRS = [(method, optimizer) for method in CONFIGURABLE_METHODS if method != "small-dense" for optimizer in OPTIMIZERS]


@pytest.mark.parametrize(("method", "optimizer"), PAIRS)
def test_every_method_runs_and_resumes_with_every_optimizer(
    method: str, optimizer: str, texts: Path, tmp_path: Path
) -> None:
    changes = {"method": method, "optimizer": OPTIMIZERS[optimizer], "epochs": 3}
    whole = finished_run(texts, tmp_path / "whole", **changes)
    assert len(whole.epochs) == 3
    if method != "iss":  # which promises nothing
        assert whole.epochs[-1].active_weights == whole.trainer.sparsifier.target_weights
    run_in_parts(texts, tmp_path / "parts", UPDATES_PER_EPOCH + 4, **changes)
    assert result_of(tmp_path / "parts") == result_of(tmp_path / "whole")


@pytest.mark.parametrize(
    "method", ["rigl", {"name": "selfish", "redistribution": "gates-by-gradient"}], ids=["rigl", "gates-by-gradient"]
)
def test_gradients_that_rewiring_goes_by_survive_a_stop_right_before_it(
    method: Any, texts: Path, tmp_path: Path
) -> None:
    finished_run(texts, tmp_path / "whole", method=method)
    run_in_parts(texts, tmp_path / "parts", UPDATES_PER_EPOCH, method=method)
    assert result_of(tmp_path / "parts") == result_of(tmp_path / "whole")


@pytest.mark.parametrize("engine", ["masked", pytest.param("packed", marks=NEEDS_KERNELS)])
def test_a_run_that_rewires_by_itself_survives_a_stop_right_before_it(engine: str, texts: Path, tmp_path: Path) -> None:
    changes = {"method": "rigl", "rewire_every": 7, "engine": engine}
    finished_run(texts, tmp_path / "whole", **changes)
    run_in_parts(texts, tmp_path / "parts", 6, **changes)
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
def test_the_ablations_run(parts: dict[str, str], texts: Path) -> None:
    recorder = trained(texts, method={"name": "selfish", **parts})
    counts = {record.active_weights for record in recorder.epochs}
    assert counts == {recorder.trainer.sparsifier.target_weights}


def test_rigl_rewires_every_few_updates(texts: Path) -> None:
    trainer = trained(texts, method="rigl", rewire_every=4).trainer
    assert trainer.sparsifier.rewirings_done == trainer.state.step // 4


def test_small_dense_has_as_many_parameters_as_the_sparse_network(texts: Path, tmp_path: Path) -> None:
    model = {"name": "stacked-lstm", "embedding": 40, "hidden": 40, "layers": 2, "dropout": 0.0}
    sparse = finished_run(texts, tmp_path / "sparse", epochs=1, model=model).trainer
    dense = finished_run(texts, tmp_path / "dense", epochs=1, model=model, method="small-dense").trainer
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
    run, recorder = tiny_run(texts, tmp_path / "run", **changes), Recorder()
    summary = run.train(recorder)
    trainer = recorder.trainer
    tensors, _ = load_tensors(run.folder.model)
    stored = (tensors.get(f"{weight.name}.values", tensors.get(weight.name)) for weight in trainer.sparsifier.weights)
    count = sum(int(values.count_nonzero()) for values in stored)
    if method == "gmp":
        assert summary["active_weights"] == trainer.sparsifier.target_weights
        assert summary["best_epoch"] > 9  # when the network is as sparse as it is to be
        assert count <= summary["active_weights"]
    else:
        assert count == summary["active_weights"]
        assert set(summary["live_units"]) == {"layer_0", "layer_1"}
