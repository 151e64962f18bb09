"""Runs nobody trained, small enough to look through."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import yaml

from selfish_rnn.analysis.records import RunRecord
from selfish_rnn.experiment.presets import build_experiment, read_preset, to_yaml, with_assignments
from selfish_rnn.runs.logs import MetricsLog
from selfish_rnn.training.records import EpochRecord

GATES = ("input", "forget", "candidate", "output")
MATRICES = ("rnn.weight_ih_l0", "rnn.weight_hh_l0")
LOSSES = 200.0
"""Perplexity of the first epoch; it falls by a tenth in every one."""


def settings(**changes: Any) -> dict[str, Any]:
    """Every setting of the quickstart, with changes."""
    given = {"threads": 1, "engine": "masked", **changes}
    words = [f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in given.items()]
    complete: dict[str, Any] = yaml.safe_load(
        to_yaml(build_experiment(with_assignments(read_preset("quickstart")[0], words), "test"))
    )
    return complete


def epochs(count: int = 12, averaging_from: int | None = 8, scale: float = 1.0) -> tuple[EpochRecord, ...]:
    return tuple(
        EpochRecord(
            epoch=number,
            step=100 * number,
            train_loss=math.log(scale * LOSSES * 0.88**number),
            valid_loss=math.log(scale * LOSSES * 0.9**number),
            train_perplexity=scale * LOSSES * 0.88**number,
            valid_perplexity=scale * LOSSES * 0.9**number,
            seconds=30.0 * number,
            averaging=averaging_from is not None and number >= averaging_from,
            learning_rate=20.0,
            prune_rate=0.5 * (1 - number / count),
            active_weights=330,
            total_weights=1000,
            density={
                "embedding.weight": {"all": 0.33},
                **{
                    name: {"input": 0.33, "forget": 0.33 - 0.01 * number, "candidate": 0.33 + 0.01 * number,
                           "output": 0.33, "all": 0.33}
                    for name in MATRICES
                },
            },
            weights_above={"embedding.weight": 10, **dict.fromkeys(MATRICES, 1000 * number)},
        )
        for number in range(1, count + 1)
    )  # fmt: skip


def record(name: str = "run", *, test: float | None = 50.0, scale: float = 1.0, count: int = 12,
           averaging_from: int | None = 8, corpus: str = "abc", **changes: Any) -> RunRecord:  # fmt: skip
    """A run that came to ``test``, or is not finished."""
    course = epochs(count, averaging_from, scale)
    summary = None if test is None else {
        "test_perplexity": test, "valid_perplexity": test + 3, "best_epoch": count, "peak_memory_mib": 300.0,
    }  # fmt: skip
    return RunRecord(name, settings(**changes), course, {"name": "python-docs", "sha256": corpus}, summary)


def write_run(folder: Path, made: RunRecord) -> Path:
    """Put a record into a folder, as a run would have."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(dict(made.settings), sort_keys=False))
    (folder / "corpus.json").write_text(json.dumps(dict(made.corpus)))
    for epoch in made.epochs:
        MetricsLog(folder / "metrics.jsonl").append(epoch)
    if made.summary is not None:
        (folder / "summary.json").write_text(json.dumps(dict(made.summary)))
    return folder
