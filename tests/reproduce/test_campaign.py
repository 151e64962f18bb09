"""The campaign: one order, fixed before its first run, and one command that works through it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from reproduce_cases import made_up

from selfish_rnn.errors import UserError
from selfish_rnn.experiment.comparison import differences
from selfish_rnn.reproduce.campaign import STAGES, campaign_runs, stage_runs, stages_named
from selfish_rnn.reproduce.case import Case
from selfish_rnn.reproduce.paper import items_at
from selfish_rnn.reproduce.paper.claims import CLAIMS
from selfish_rnn.reproduce.paper.comparisons import CORE
from selfish_rnn.reproduce.plan import PlannedRun, plan
from selfish_rnn.reproduce.results import Results
from selfish_rnn.reproduce.scales import SMALL, TINY

BY_NAME = {stage.name: stage for stage in STAGES}


def test_the_order_of_the_stages_is_as_written() -> None:
    assert [stage.name for stage in STAGES] == [
        "tuning", "core", "adam", "sparsities", "prune-rates", "distances", "equal-cost", "pareto", "other-networks",
        "growth", "momentum", "rest", "pareto-more",
    ]  # fmt: skip


def test_a_stage_makes_first_seeds_first_and_core_cases_with_five_seeds() -> None:
    runs = stage_runs(BY_NAME["core"], SMALL)
    assert [run.seed for run in runs] == sorted(run.seed for run in runs)
    # NT-ASGD is an average of the run of Selfish.
    assert Counter(run.seed for run in runs) == dict.fromkeys((1, 2, 3, 4, 5), len(CORE) - 1)
    assert [run.case.method for run in runs[:5]] == ["dense", "selfish", "static", "by-matrix", "set"]
    assert {run.seed for run in stage_runs(BY_NAME["adam"], SMALL)} == {1, 2, 3}


def test_the_campaign_makes_every_run_once_and_no_reported_run_before_the_tuning(tmp_path: Path) -> None:
    runs = campaign_runs(STAGES, SMALL, Results(tmp_path, "small"))
    names = [run.name for _, run in runs]
    assert len(names) == len(set(names))
    order = [stage.name for stage, _ in runs]
    assert order == sorted(order, key=[stage.name for stage in STAGES].index)
    tuning = [run for stage, run in runs if stage.name == "tuning"]
    assert {run.seed for run in tuning} == {11}
    assert all(run.case.untuned for run in tuning)


def test_the_campaign_makes_all_runs_of_the_stacked_lstm_that_items_and_claims_need(tmp_path: Path) -> None:
    campaign = campaign_runs(STAGES, SMALL, Results(tmp_path, "small"))
    made = {run.name for _, run in campaign}
    items = [item for item in items_at("small") if item.kind != "time" and item.name != "tuning"]
    needed = [run for run in plan(items, SMALL) if run.case.network == "stacked-lstm"]
    assert {run.name for run in needed} <= made
    for claim in CLAIMS:
        for part in claim.parts:
            for case in part.on(claim.networks[0]).cases:
                assert PlannedRun(SMALL, case, 3).trained_run.name in made, claim.number


def test_every_averaging_run_of_small_has_the_common_windows() -> None:
    networks = ("stacked-lstm", "rhn", "on-lstm", "awd-lstm-mos")
    for network in networks:
        for method, optimizer in (("selfish", "snt-asgd"), ("dense", "nt-asgd"), ("gmp", "snt-asgd"), ("set", "adam")):
            experiment = PlannedRun(SMALL, Case(network, method, optimizer), 1).experiment
            if optimizer == "adam":
                assert experiment.restart_at == ()
                continue
            assert experiment.restart_at == (36, 52)
            assert experiment.optimizer.model_dump()["average_from"] == 20
            assert experiment.model.model_dump()["init_range"] == 0.3


def test_gradual_pruning_has_made_its_last_cut_when_the_last_window_begins() -> None:
    experiment = PlannedRun(SMALL, Case("stacked-lstm", "gmp"), 1).experiment
    method = experiment.method.build()
    updates = 36_000 // 5 // 20 * experiment.epochs
    planned = updates // (experiment.rewire_every or 1)
    epochs_between = experiment.epochs / planned
    done = int(experiment.restart_at[-1] / epochs_between)
    final = method.counts([(256, 256)], experiment.sparsity, planned, planned)
    assert method.counts([(256, 256)], experiment.sparsity, done + 1, planned) == final


def test_nt_asgd_is_read_from_the_run_of_selfish(tmp_path: Path) -> None:
    result, run = made_up(Case("stacked-lstm"), 1, 80.0)
    result.summary["averages"]["nt-20"] |= {"test_perplexity": 82.5, "best_epoch": 1}
    result.summary["averages"]["nt-20-no-restart"] |= {"test_perplexity": 85.5}
    results = Results(tmp_path, "small")
    results.save(result, run)
    for average, test in (("nt", 82.5), ("nt-start", 85.5), ("snt-start", 80.0)):
        view = PlannedRun(SMALL, Case("stacked-lstm", average=average), 1)
        assert view.trained_run.name == run.name
        selected = results.get(view)
        assert selected is not None
        assert selected.summary["test_perplexity"] == test
        assert selected.settings["restart_at"] == ([36, 52] if average == "nt" else [])
        assert selected.series["averaging"] == [False, True]
    assert result.settings["restart_at"] == [36, 52]


def test_a_scale_without_several_averages_has_a_run_for_each_kind() -> None:
    run = PlannedRun(replace(TINY, averages={}), Case("stacked-lstm", average="nt-start"), 1).trained_run
    assert run.case == Case("stacked-lstm", "selfish", "nt-asgd")
    assert run.selected is None


def test_averages_do_not_depend_on_how_a_case_is_written() -> None:
    plain = PlannedRun(SMALL, Case("stacked-lstm"), 1)
    for case in (Case("stacked-lstm", sparsity=0.67), Case("stacked-lstm", changes=("prune_rate=0.7",))):
        candidate = PlannedRun(SMALL, case, 1)
        assert candidate.averages == plain.averages != ()
        assert (candidate.name, differences(candidate.experiment, plain.experiment)) == (plain.name, [])
    assert PlannedRun(SMALL, Case("stacked-lstm", sparsity=0.8), 1).averages == ()


def test_a_wrong_stage_is_named() -> None:
    assert [stage.name for stage in stages_named(["equal-cost", "core"])] == ["core", "equal-cost"]
    with pytest.raises(UserError, match=r"unknown stage 'cor' \(did you mean 'core'\?\)"):
        stages_named(["cor"])
