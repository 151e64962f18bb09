"""Every table and figure at scale tiny, from the runs to the rendered table; items share their runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forked_runs import fork, warm
from selfish_rnn.reproduce.case import DENSE, Case
from selfish_rnn.reproduce.distances import measure_missing
from selfish_rnn.reproduce.execution import Executor
from selfish_rnn.reproduce.paper import ITEMS
from selfish_rnn.reproduce.paper.claims import CLAIMS
from selfish_rnn.reproduce.plan import PlannedRun, pairs_of, plan
from selfish_rnn.reproduce.rendering.documents import render_item
from selfish_rnn.reproduce.rendering.tables import EMPTY, ResultView, table
from selfish_rnn.reproduce.results import Results
from selfish_rnn.reproduce.scales import PAPER, SCALES, SMALL, SMALL_FIRST, TINY, Scale
from selfish_rnn.reproduce.tuning import CHOSEN
from selfish_rnn.runs.folder import RunFolder

REPOSITORY = Path(__file__).parents[2]


MEASURED = ("valid", "test", "before averaging", "at the end", "first measured", "weights", "dropout")
"""Headings of columns that have a number for every run."""


def planned(timed: bool) -> list[PlannedRun]:
    """Return the runs of all timed items, or of all others."""
    return plan([item for item in ITEMS.values() if (item.kind == "time") == timed], TINY)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Executor]:
    """All runs of all items; do not change their files."""
    root = tmp_path_factory.mktemp("reproduce")
    executor = Executor(TINY, root / "runs", Results(root / "results", "tiny"), jobs=2, launch=fork)
    items = list(ITEMS.values())
    with warm(root / "warm"):
        progress = executor.train(planned(timed=False))
        assert {outcome.state for outcome in progress.outcomes} == {"finished"}, [one.tail() for one in progress.failed]
        executor.train_timed(planned(timed=True), TINY.budget)
    for item in items:
        if item.kind == "distances":
            assert measure_missing(pairs_of(item, TINY), executor.results, executor.folder, _distance) == []
    return root / "results", executor


def _distance(first: Path, second: Path | None) -> list[dict[str, float]]:
    assert first.is_dir()
    assert second is None or second.is_dir()
    return [{"epoch": 1, "mean": 0.25}, {"epoch": 2, "mean": 0.75}]


@pytest.mark.slow
@pytest.mark.parametrize("name", ITEMS)
def test_an_item_is_made_and_rendered(name: str, made: tuple[Path, Executor]) -> None:
    item, view = ITEMS[name], ResultView.read(made[0], "tiny")
    for run in plan([item], TINY) if item.kind != "time" else ():
        result = view.results.get(run)
        assert result is not None, run.name
        assert "commit" in result.made  # None where the package is not in a repository
        assert result.command.startswith(f"selfish-rnn train {TINY.networks[run.case.network][0]} ")
        assert len(result.series["epoch"]) == len(result.series["valid_perplexity"]) > 0
    path = render_item(item, view)[0]
    lines = [line.strip("| ").split(" | ") for line in path.read_text().splitlines() if line.startswith("| ")]
    if item.kind in ("gates", "flops", "time"):  # not a line for each row
        return
    planned = set(item.planned_cases) if not item.scales or TINY.name in item.scales else set()
    rows = [row for row in item.rows if row.case in planned]
    for row, line in zip(rows, lines[1:], strict=True):
        assert row.label in line[0]
        measured = [cell for heading, cell in zip(lines[0], line, strict=True) if heading in MEASURED]
        assert measured
        assert EMPTY not in measured


@pytest.mark.slow
def test_operations_of_a_small_dense_network_are_fractions_of_those_of_the_network_it_is_smaller_than(
    made: tuple[Path, Executor],
) -> None:
    for run in plan([ITEMS["flops"]], TINY):
        if run.case.method in DENSE:
            result = made[1].results.get(run)
            assert result is not None
            assert result.operations is not None
            small = run.case.method == "small-dense"
            assert all(0 < share < 0.9 if small else share == 1 for share in result.operations)


@pytest.mark.slow
def test_a_timed_run_is_measured_when_its_time_is_up(made: tuple[Path, Executor]) -> None:
    results = ResultView.read(made[0], "tiny").results
    for run in plan([ITEMS["time-to-quality"]], TINY):
        result = results.get(run)
        if result is None:  # a busy machine may not get through the first epoch
            assert not RunFolder(made[1].folder(run)).metrics.read()
            continue
        assert [point["seconds"] for point in result.points] == [TINY.budget]
        assert result.points[0]["test_perplexity"] > 1
        reached = result.series["epoch"][-1]
        if run.case.method in DENSE:  # stopped by the clock and not at the end of its epochs
            assert 0 < reached < run.experiment.epochs
        else:
            assert 0 < reached <= run.experiment.epochs


@pytest.mark.slow
def test_nothing_is_made_twice(made: tuple[Path, Executor]) -> None:
    def never(command: object, log: object) -> None:
        raise AssertionError(f"{command} was started again")

    root, executor = made
    again = Executor(TINY, executor.runs, Results(root, "tiny"), launch=never)  # type: ignore[arg-type]
    progress = again.train(planned(timed=False))
    assert {outcome.state for outcome in progress.outcomes} == {"finished before"}
    timed = [run for run in planned(timed=True) if again.results.get(run) is not None]
    assert again.train_timed(timed, TINY.budget).outcomes == []
    names = [
        json.loads(path.read_text())["run"]
        for path in root.rglob("tiny/*/*-seed*.json")
        if path.parent.name != "distances"
    ]
    assert len(names) == len(set(names))
    assert set(names) >= {run.name for run in planned(timed=False)}


@pytest.mark.parametrize("scale", [name for name, scale in SCALES.items() if not scale.superseded])
def test_every_run_of_every_scale_has_valid_settings_and_a_name_of_its_own(scale: str) -> None:
    runs = plan(ITEMS.values(), SCALES[scale])
    settings = {run.experiment.model_dump_json(): run.name for run in runs}
    assert len(settings) == len(runs)


def dropout(scale: Scale, method: str, sparsity: float | None, optimizer: str = "snt-asgd") -> float:
    model = PlannedRun(scale, Case("stacked-lstm", method, optimizer, sparsity), seed=1).experiment.model
    value: float = model.model_dump()["dropout"]
    return value


def test_a_sparse_start_has_the_dropout_of_the_nearest_tuned_sparsity() -> None:
    for method in ("selfish", "rigl", "static", "gates-by-gradient"):
        for optimizer in ("snt-asgd", "adam"):
            for sparsity, tuned in (
                (None, 0.67), (0.5, 0.5), (0.55, 0.5), (0.6, 0.67), (0.7, 0.67), (0.8, 0.8), (0.9, 0.9), (0.98, 0.95),
            ):  # fmt: skip
                assert dropout(SMALL, method, sparsity, optimizer) == CHOSEN[f"sparse-{tuned}"]
    assert dropout(SMALL, "gmp", 0.95) == dropout(SMALL, "dense", None) == CHOSEN["dense"]
    assert dropout(SMALL, "small-dense", None) == CHOSEN["small-dense"]
    assert dropout(PAPER, "selfish", 0.95) == dropout(PAPER, "selfish", None)


def test_the_first_edition_of_small_keeps_its_settings() -> None:
    result = {sparsity: dropout(SMALL_FIRST, "rigl", sparsity) for sparsity in (None, 0.7, 0.8, 0.9, 0.95)}
    assert result == {None: 0.55, 0.7: 0.55, 0.8: 0.4, 0.9: 0.3, 0.95: 0.1}
    experiment = PlannedRun(SMALL_FIRST, Case("stacked-lstm"), 1).experiment
    assert experiment.method.pool == "matrix"
    assert experiment.optimizer.model_dump()["average_from"] is None
    assert (experiment.averages, experiment.restart_at) == ((), ())


def test_results_of_the_first_edition_are_still_read() -> None:
    results = Results(REPOSITORY / "results", "small-first")
    runs = {run.name for run in plan(ITEMS.values(), SMALL_FIRST) if results.get(run) is not None}
    files = list((REPOSITORY / "results" / "small-first").rglob("*-seed[0-9].json"))
    assert len(runs) == len(files) > 60


def test_every_claim_is_decided_by_runs_that_items_make() -> None:
    made = {(run.name) for run in plan(ITEMS.values(), TINY)}
    for claim in CLAIMS:
        for network in claim.networks:
            for part in claim.parts:
                for case in part.on(network).cases:
                    assert PlannedRun(TINY, case, 1).trained_run.name in made, (claim.number, case)


def test_there_are_twelve_claims() -> None:
    assert [claim.number for claim in CLAIMS] == list(range(1, 13))


def test_a_table_without_results_names_its_rows(tmp_path: Path) -> None:
    view = ResultView(TINY, Results(tmp_path, "tiny"))
    assert table(ITEMS["gate-rules"], view).startswith("*Not run:* by mean magnitude; by mean gradient; equal")
