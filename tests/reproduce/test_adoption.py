"""Finished run folders from elsewhere are results if they are runs of the scale, and refused if not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from selfish_rnn.corpora import Vocabulary
from selfish_rnn.errors import UserError
from selfish_rnn.experiment.presets import Settings, build_experiment, read_preset, with_assignments
from selfish_rnn.experiment.small_dense import small_dense
from selfish_rnn.reproduce.case import Case
from selfish_rnn.reproduce.plan import PlannedRun
from selfish_rnn.reproduce.results import Results, import_run
from selfish_rnn.reproduce.scales import SMALL
from selfish_rnn.runs.logs import MetricsLog
from tiny_runs import epoch_record

WORDS = 10_000
SELFISH = Case("stacked-lstm")


def settings(*words: str, case: Case = SELFISH) -> Settings:
    """The settings of a run of scale small, with changes."""
    preset, *local = PlannedRun(SMALL, case, 1).arguments
    experiment = build_experiment(with_assignments(read_preset(preset)[0], [*local, *words]), "test")
    if experiment.method.name == "small-dense":
        experiment = small_dense(experiment, WORDS)
    return experiment.model_dump(mode="json")


def run_folder(path: Path, given: Settings, finished: bool = True) -> Path:
    """Write the files of a run that the import reads."""
    path.mkdir()
    (path / "config.yaml").write_text(yaml.safe_dump(given))
    (path / "vocabulary.json").write_text(Vocabulary(("<eos>", *map(str, range(WORDS - 1)))).to_json())
    record = epoch_record(
        60, seconds=700.25, valid_perplexity=321.123456, averaging=True,
        density={"rnn.weight_hh_l0": {"forget": 0.3, "all": 0.33}}, weights_above={"rnn.weight_hh_l0": 44},
    )  # fmt: skip
    MetricsLog(path / "metrics.jsonl").append(record)
    if finished:
        (path / "summary.json").write_text(json.dumps({"test_perplexity": 300.5, "valid_perplexity": 321.1}))
    return path


@pytest.mark.parametrize(
    ("case", "words", "name"),
    [
        (SELFISH, ["seed=2"], "stacked-lstm/selfish-snt-asgd-s0.67-seed2"),
        (Case("stacked-lstm", "dense", "nt-asgd"), [], "stacked-lstm/dense-nt-asgd-seed1"),
        (Case("stacked-lstm", "small-dense", "nt-asgd"), [], "stacked-lstm/small-dense-nt-asgd-s0.67-seed1"),
        (SELFISH, ["threads=2", "engine=packed", "checkpoint_every=3"], "stacked-lstm/selfish-snt-asgd-s0.67-seed1"),
        # The same parts under the name of another method.
        (
            SELFISH,
            ["method=set", "method.allocation=uniform", "averages=[]"],
            "stacked-lstm/no-gate-redistribution-snt-asgd-s0.67-seed1",
        ),
        (Case("stacked-lstm", "gmp", sparsity=0.9), [], "stacked-lstm/gmp-snt-asgd-s0.9-seed1"),
        (SELFISH, ["prune_rate=0.1", "averages=[]"], "stacked-lstm/selfish-snt-asgd-s0.67-prune-rate-0.1-seed1"),
    ],
)
def test_a_run_of_the_scale_is_taken(case: Case, words: list[str], name: str, tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "mine", settings(*words, case=case))
    run, path = import_run(folder, SMALL, Results(tmp_path, "small"), "b64a65b")
    assert run.name == name
    result = Results(tmp_path, "small").get(run)
    assert result is not None
    assert path.parent.parent == tmp_path / "small"
    assert result.made == {"commit": "b64a65b", "adopted_from": "mine"}
    assert result.summary["test_perplexity"] == 300.5
    assert result.series["valid_perplexity"] == [321.1235]
    assert result.series["weights_above_0.1"] == {"rnn.weight_hh_l0": [44]}


def test_settings_that_came_later_are_taken_at_their_default(tmp_path: Path) -> None:
    given = settings()
    del given["start_seed"], given["early_stop"]
    run, _ = import_run(run_folder(tmp_path / "mine", given), SMALL, Results(tmp_path, "small"), "b64a65b")
    assert run.name == "stacked-lstm/selfish-snt-asgd-s0.67-seed1"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["model.init_range=0.2"], "model.init_range 0.2 instead of 0.3"),
        (["valid_batch_size=10"], "valid_batch_size 10 instead of 80"),
        (["epochs=59"], "epochs 59 instead of 60"),
        (["method.allocation=er"], "method.allocation er instead of uniform"),
    ],
)
def test_a_run_of_other_settings_is_refused_with_what_differs(words: list[str], told: str, tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "mine", settings(*words))
    with pytest.raises(UserError, match=f"matches no run of scale small; the nearest has: {told}$"):
        import_run(folder, SMALL, Results(tmp_path, "small"), "b64a65b")
    assert not (tmp_path / "small").exists()


def test_keys_that_are_not_known_are_named(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "mine", {**settings(), "temperature": 3})
    with pytest.raises(UserError, match="unknown key 'temperature'"):
        import_run(folder, SMALL, Results(tmp_path, "small"), "b64a65b")


def test_a_run_that_is_not_finished_is_refused(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "mine", settings(), finished=False)
    with pytest.raises(UserError, match="is not finished: run `selfish-rnn resume`"):
        import_run(folder, SMALL, Results(tmp_path, "small"), "b64a65b")


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no config\.yaml"):
        import_run(tmp_path, SMALL, Results(tmp_path, "small"), "b64a65b")
