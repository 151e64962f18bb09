"""Results made up for tests of what is read from them."""

from __future__ import annotations

from typing import Any

from selfish_rnn.reproduce.case import Case
from selfish_rnn.reproduce.plan import PlannedRun
from selfish_rnn.reproduce.results import Result
from selfish_rnn.reproduce.scales import SMALL
from selfish_rnn.training.records import WEIGHTS_ABOVE


def made_up(case: Case, seed: int, test: float, **changes: Any) -> tuple[Result, PlannedRun]:
    """The result of a run of scale small that nobody made."""
    run = PlannedRun(SMALL, case, seed)
    averages = [run.scale.selections[name] for name in run.averages]
    fields: dict[str, Any] = {
        "run": run.name,
        "scale": SMALL.name,
        "seed": seed,
        "command": run.command,
        "settings": run.stored_experiment(100).model_dump(mode="json"),
        "summary": {
            "vocabulary": 100, "test_perplexity": test, "valid_perplexity": test + 10, "active_weights": 1000,
            "seconds": 720.0, "unigram_perplexity": 170.0,
            "averages": {
                name: {"best_epoch": 2, "averaging": True, "valid_perplexity": test + 10, "test_perplexity": test}
                for name in averages
            },
        },
        "series": {
            "epoch": [1, 2], "averaging": [False, True], WEIGHTS_ABOVE: {"a": [1000, 2000], "b": [500, 700]},
            "averages": {
                name: {"valid_perplexity": [test + 20, test + 10], "averaging": [False, True]} for name in averages
            },
        },
        "density": {"rnn.weight_hh_l0": {"input": 0.4, "forget": 0.2, "output": 0.36, "all": 0.32}},
        "made": {"commit": "abc"},
        **changes,
    }  # fmt: skip
    return Result(**fields), run
