"""Every combination of settings in a file, each a run of its own."""

from __future__ import annotations

import json
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest
import yaml
from typer.testing import CliRunner

from forked_runs import fork, warm
from selfish_rnn.cli.app import app
from selfish_rnn.errors import UserError
from selfish_rnn.scheduling.scheduler import Job, Process, run
from selfish_rnn.scheduling.sweep import Sweep, group_by_seed

TINY = {"epochs": 2, "train_tokens": 600, "model": {"hidden": 4, "embedding": 4}, "engine": "masked"}


def sweep(folder: Path, content: Any) -> Sweep:
    path = folder / "sweep.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content, sort_keys=False))
    return Sweep.read(path, folder / "runs")


def test_a_grid_is_every_combination_with_a_name_that_tells_it_from_the_others(tmp_path: Path) -> None:
    found = sweep(tmp_path, {"settings": TINY, "grid": {"method": ["set", {"name": "rigl"}], "seed": [1, 2]}})
    assert [one.name for one in found.runs] == [
        "method-set-seed-1", "method-set-seed-2", "method.name-rigl-seed-1", "method.name-rigl-seed-2",
    ]  # fmt: skip
    last = found.runs[-1].experiment
    assert (last.method.name, last.seed, last.epochs, last.model.hidden) == ("rigl", 2, 2, 4)


def test_several_grids_are_laid_side_by_side(tmp_path: Path) -> None:
    grids = [{"method": ["selfish"], "prune_rate": [0.3, 0.5]}, {"method": ["static"]}]
    found = sweep(tmp_path, {"settings": TINY, "grid": grids})
    assert [one.name for one in found.runs] == [
        "method-selfish-prune_rate-0.3", "method-selfish-prune_rate-0.5", "method-static",
    ]  # fmt: skip


def test_the_words_of_a_run_give_its_experiment(tmp_path: Path) -> None:
    values = {"corpus": ["python-docs"], "restart_at": [[2, 4]], "early_stop": [None], "rescale": [True]}
    (found,) = sweep(tmp_path, {"grid": values}).runs
    assert found.words == ("quickstart", "corpus=python-docs", "restart_at=[2, 4]", "early_stop=null", "rescale=true")
    assert found.experiment.restart_at == [2, 4] or found.experiment.restart_at == (2, 4)


def test_a_name_that_is_too_long_for_a_folder_is_cut_and_still_its_own(tmp_path: Path) -> None:
    found = sweep(tmp_path, {"grid": {"corpus": [f"{'long/' * 60}{end}" for end in "ab"]}})
    names = [one.name for one in found.runs]
    assert len(set(names)) == 2
    assert all(len(name) < 120 and "/" not in name for name in names)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ({"gird": {}}, r"unknown key 'gird' \(did you mean 'grid'\?\)"),
        ({"preset": 3, "grid": {"seed": [1]}}, "preset must be the name of a preset, got 3"),
        ({"preset": "quickstat", "grid": {"seed": [1]}}, "unknown preset 'quickstat'"),
        ({"settings": [1], "grid": {"seed": [1]}}, "settings must contain keys and values"),
        ({"settings": {"epochs": 2}}, r"grid must contain settings with lists of values"),
        ({"grid": {"seed": 3}}, r"grid.seed must be a list of values, such as \[1, 2, 3\], got 3"),
        ({"grid": {"seed": []}}, "grid.seed must be a list of values"),
        ({"grid": {"seed": [1, 1]}}, "two runs have the same settings and the name seed-1"),
        ({"grid": {"sparsity": [0.5, 1.5]}}, "run sparsity-1.5: "),
        ({"grid": {"sparstiy": [0.5]}}, "sparsity"),
        ({"grid": {"seed": list(range(200)), "epochs": list(range(1, 200))}}, "more than 10,000 runs"),
        ("grid: [", "is not valid YAML"),
        ("3", "must contain keys and values"),
    ],
)
def test_what_is_wrong_is_found_before_anything_starts(content: Any, told: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=told) as caught:
        sweep(tmp_path, content)
    assert "sweep.yaml" in str(caught.value)
    assert not (tmp_path / "runs").exists()


def test_seeds_are_averaged_and_the_best_comes_first() -> None:
    results = [
        {"settings": {"method": method, "seed": seed}, "test_perplexity": value}
        for method, seed, value in [("a", 1, 10.0), ("b", 1, 5.0), ("a", 2, 14.0)]
    ]
    groups = group_by_seed(results)
    assert [(group.settings, len(group.results)) for group in groups] == [({"method": "b"}, 1), ({"method": "a"}, 2)]
    assert groups[1].mean("test_perplexity") == 12
    assert [len(group.values("test_perplexity")) for group in groups] == [1, 2]


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with warm(tmp_path_factory.mktemp("warm") / "run"):
        yield


def results_of(found: Sweep) -> list[dict[str, Any]]:
    return [{key: value for key, value in result.items() if key != "seconds"} for result in found.results()]


@pytest.mark.slow
@pytest.mark.usefixtures("ready")
def test_a_full_disk_under_one_run_loses_nothing_and_the_same_sweep_continues(tmp_path: Path) -> None:
    content = {"settings": TINY, "grid": {"method": ["selfish", "static"], "seed": [1]}}
    (tmp_path / "quiet").mkdir()
    undisturbed = sweep(tmp_path / "quiet", content)
    run(undisturbed.jobs(), 1, launch=fork)

    def on_a_full_disk(job: Job, log: IO[bytes]) -> Process:
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        small = 20_000 if "selfish" in job.name else before[0]
        resource.setrlimit(resource.RLIMIT_FSIZE, (small, before[1]))
        try:
            return fork(job, log)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    found = sweep(tmp_path, content)
    progress = run(found.jobs(), 1, launch=on_a_full_disk)
    assert {outcome.job.name: outcome.state for outcome in progress.outcomes} == {
        "method-selfish-seed-1": "failed",
        "method-static-seed-1": "finished",
    }
    assert "cannot write" in "\n".join(progress.failed[0].tail())
    assert [result["run"] for result in found.results()] == ["method-static-seed-1"]
    again = run(found.jobs(), 1, launch=fork)
    assert not again.failed
    assert results_of(found) == results_of(undisturbed)
    assert json.loads(found.write_results().read_text()) == found.results()


def test_the_command_lists_runs_and_refuses_those_begun_with_other_settings(tmp_path: Path) -> None:
    content = {"settings": TINY, "grid": {"seed": [1, 2]}}
    sweep(tmp_path, content)
    words = ["sweep", str(tmp_path / "sweep.yaml"), "--runs", str(tmp_path / "runs")]
    told = CliRunner().invoke(app, [*words, "--dry-run"]).output.splitlines()
    assert told == [
        "to do     selfish-rnn train quickstart epochs=2 train_tokens=600 model.hidden=4 model.embedding=4 "
        f"engine=masked seed={seed}"
        for seed in (1, 2)
    ]
