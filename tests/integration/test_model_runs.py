"""Every model through the whole path: train, be interrupted, resume, evaluate, generate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from selfish_rnn.models import MODELS
from selfish_rnn.runs.run import Run
from selfish_rnn.training.evaluation import evaluate_splits, generate
from tiny_runs import TINY_MODELS, Recorder, result_of, run_in_parts, tiny_run

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", MODELS)
def test_train_interrupt_resume_evaluate_generate(name: str, texts: Path, tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "model": {"name": name, **TINY_MODELS[name]},
        "optimizer": {"name": "snt-asgd", "lr": 2.0, "average_from": 1},
        "variable_window": True,
        "sub_batches": 2,
        "ar": 2.0,
        "tar": 1.0,
        "restart_at": [2],
    }
    whole, recorder = tiny_run(texts, tmp_path / "whole", **changes), Recorder()
    summary = whole.train(recorder)
    budget = recorder.trainer.sparsifier.target_weights
    assert {record.active_weights for record in whole.folder.metrics.read()} == {budget}

    run_in_parts(texts, tmp_path / "parts", 13, **changes)
    assert result_of(tmp_path / "parts") == result_of(tmp_path / "whole")

    opened = Run.open(tmp_path / "whole")
    measured = evaluate_splits(opened.model(), opened.experiment, opened.corpus)
    assert measured == {key: summary[key] for key in measured}
    text = generate(opened.model(), opened.vocabulary, "the cat", tokens=12, seed=3)
    assert text.startswith("the cat")
    assert text == generate(opened.model(), opened.vocabulary, "the cat", tokens=12, seed=3)
