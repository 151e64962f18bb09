"""Every model through the whole path: train, be interrupted, resume, evaluate, generate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from selfish_rnn.experiments.running import Run
from selfish_rnn.models import MODELS
from selfish_rnn.training.interruption import Interrupted
from selfish_rnn.training.outcome import evaluate_splits, generate
from tiny_runs import Recorder, result_of, tiny_experiment

TINY: dict[str, dict[str, Any]] = {
    "stacked-lstm": {"embedding": 8, "hidden": 8},
    "stacked-gru": {"embedding": 8, "hidden": 8},
    "stacked-rnn": {"embedding": 8, "hidden": 8},
    "rhn": {"hidden": 8, "depth": 3},
    "on-lstm": {"embedding": 8, "hidden": 8, "layers": 2, "chunk": 2},
    "awd-lstm-mos": {"embedding": 8, "hidden": 8, "hidden_last": 6, "layers": 2, "experts": 3},
}


@pytest.mark.parametrize("name", MODELS)
def test_train_interrupt_resume_evaluate_generate(name: str, texts: Path, tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "model": {"name": name, **TINY[name]},
        "optimizer": {"name": "snt-asgd", "lr": 2.0, "nonmono": 0},
        "variable_window": True,
        "sub_batches": 2,
        "ar": 2.0,
        "tar": 1.0,
        "restart_at": [2],
    }
    whole = Run.start(tiny_experiment(texts, **changes), tmp_path / "whole")
    summary = whole.execute(whole.trainer())

    parts = Run.start(tiny_experiment(texts, **changes), tmp_path / "parts")
    trainer: Any = None

    def stop(report: object) -> None:
        trainer._stop.requested = trainer.position.step == 13

    trainer = parts.trainer(Recorder(stop))
    with pytest.raises(Interrupted):
        parts.execute(trainer)
    again = Run.open(tmp_path / "parts")
    again.execute(again.trainer())
    assert result_of(tmp_path / "parts") == result_of(tmp_path / "whole")

    opened = Run.open(tmp_path / "whole")
    measured = evaluate_splits(opened.model(), opened.experiment, opened.corpus())
    assert measured == {key: summary[key] for key in measured}
    text = generate(opened.model(), opened.vocabulary(), "the cat", tokens=12, seed=3)
    assert text.startswith("the cat")
    assert text == generate(opened.model(), opened.vocabulary(), "the cat", tokens=12, seed=3)
