"""Settings: complete, validated before anything is trained, and clear about what is wrong."""

from __future__ import annotations

import math
import pickle
from typing import Any

import pytest

from selfish_rnn.errors import UserError
from selfish_rnn.experiment.comparison import changed_settings
from selfish_rnn.experiment.methods import CONFIGURABLE_METHODS
from selfish_rnn.experiment.optimizers import OPTIMIZERS, AdamSettings
from selfish_rnn.experiment.presets import build_experiment, parse, to_yaml, with_assignments
from selfish_rnn.experiment.settings import MODEL_SETTINGS, Experiment
from selfish_rnn.models import MODELS
from selfish_rnn.topology import METHODS


@pytest.mark.parametrize(
    "settings",
    [
        {},
        *({"model": name} for name in MODELS),
        *({"method": name} for name in CONFIGURABLE_METHODS),
        *({"optimizer": name} for name in OPTIMIZERS),
        {"optimizer": {"name": "adam", "betas": [0.5, 0.9], "drop": None, "decay": {"factor": 1.5, "after": 3}}},
        {"averages": [{"kind": "nt", "from": 20}, {"kind": "snt", "from": 0.5}, {"kind": "snt"}], "optimizer": "sgd"},
        {"optimizer": {"name": "snt-asgd", "average_from": 0.25}, "model": {"name": "rhn", "init_range": 0.3}},
        {"optimizer": {"name": "nt-asgd", "average_from": 20}, "restart_at": [36]},
        {"restart_at": [3, 5], "clip": None, "rewire_every": 100, "method": {"name": "selfish", "pool": "gate"}},
    ],
    ids=str,
)
def test_a_complete_dump_is_the_same_experiment(settings: dict[str, Any]):
    experiment = Experiment.model_validate(settings)
    dump = experiment.model_dump(mode="json")
    assert Experiment.model_validate(dump) == experiment
    assert set(dump) == set(Experiment.model_fields)


def test_a_section_may_be_only_a_name():
    assert Experiment(model="rhn", optimizer="adam", method="static") == Experiment(
        model={"name": "rhn"}, optimizer={"name": "adam"}, method={"name": "static"}
    )


def test_the_default_is_the_paper():
    experiment = Experiment()
    assert (experiment.model.name, experiment.model.hidden, experiment.model.dropout) == ("stacked-lstm", 1500, 0.65)
    assert (experiment.optimizer.name, experiment.optimizer.lr, experiment.optimizer.nonmono) == ("snt-asgd", 40.0, 5)
    assert (experiment.method.name, experiment.sparsity, experiment.prune_rate) == ("selfish", 0.67, 0.7)


def test_sections_are_of_the_type_their_name_says():
    experiment = Experiment(model="rhn", optimizer={"name": "adam", "lr": 0.5})
    assert type(experiment.optimizer) is AdamSettings
    assert type(experiment.model) is MODEL_SETTINGS["rhn"]
    assert Experiment(optimizer=experiment.optimizer).optimizer == experiment.optimizer


def test_a_method_takes_its_parts_from_the_table_unless_they_are_given():
    assert Experiment(method="selfish").method.build() == METHODS["selfish"]
    assert Experiment(method="static").method.build() == METHODS["static"]
    changed = Experiment(method={"name": "selfish", "pool": "gate", "redistribution": "gate"}).method.build()
    assert changed == METHODS["selfish"].replace(pool="gate", redistribution="gate")


def test_a_cell_is_chosen_by_the_models_name_and_is_no_key():
    with pytest.raises(UserError, match=r"unknown key 'model\.cell'"):
        build_experiment({"model": {"name": "stacked-lstm", "cell": "gru"}}, "settings")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"sparsty": 0.5}, "unknown key 'sparsty' (did you mean 'sparsity'?); known are corpus, "),
        ({"sparsity": 1.2}, "sparsity: must be less than 1, got 1.2"),
        ({"sparsity": -0.1}, "sparsity: must be at least 0, got -0.1"),
        ({"sparsity": float("nan")}, "sparsity: must be "),
        ({"sparsity": "much"}, "sparsity: must be a number, got 'much'"),
        ({"epochs": 0}, "epochs: must be greater than 0, got 0"),
        ({"epochs": 2.5}, "epochs: must be an integer, got 2.5"),
        ({"engine": "packd"}, "engine: must be auto, masked or packed, got 'packd'"),
        ({"device": "abacus"}, "device: device must be cpu or cuda, got 'abacus'"),
        ({"model": "stacked-lstn"}, "model: unknown model 'stacked-lstn' (did you mean 'stacked-lstm'?); known are "),
        ({"model": {"hidden": 3}}, "model: the name of the model is missing: one of stacked-lstm, "),
        ({"model": 3}, "model: the name of the model is missing: one of stacked-lstm, "),
        (
            {"model": {"name": "rhn", "dept": 3}},
            "unknown key 'model.dept' (did you mean 'model.depth'?)",
        ),
        ({"model": {"name": "rhn", "depth": "x"}}, "model.depth: must be an integer"),
        ({"method": "selfih"}, "method.name: unknown method 'selfih' (did you mean 'selfish'?); known are selfish"),
        ({"method": {"pol": 1}}, "unknown key 'method.pol' (did you mean 'method.pool'?); known are name, allocation"),
        ({"method": {"pool": "lake"}}, "method.pool: unknown pool 'lake'"),
        ({"method": {"growth": "randm"}}, "method.growth: unknown growth 'randm' (did you mean 'random'?)"),
        ({"prune_schedule": "cosin"}, "prune_schedule: unknown schedule 'cosin' (did you mean 'cosine'?); known are"),
        ({"optimizer": "adm"}, "optimizer: unknown optimizer 'adm' (did you mean 'adam'?); known are snt-asgd, "),
        ({"optimizer": {"lr": 1}}, "optimizer: the name of the optimizer is missing: one of snt-asgd, nt-asgd, "),
        ({"optimizer": None}, "optimizer: the name of the optimizer is missing: one of snt-asgd, "),
        ({"optimizer": {"name": "nt-asgd", "nonmno": 3}}, "unknown key 'optimizer.nonmno' (did you mean 'optimizer.no"),
        ({"optimizer": {"name": "adam", "lr": 0}}, "optimizer.lr: must be greater than 0, got 0"),
        ({"optimizer": {"name": "sgd", "nonmono": 3}}, "unknown key 'optimizer.nonmono'"),
        ({"optimizer": {"name": "sgd", "drop": {"factor": 2}}}, "optimizer.drop.patience is missing"),
        (
            {"optimizer": {"name": "sgd", "drop": {"factor": 2, "patience": 1, "pateince": 1}}},
            "unknown key 'optimizer.drop.pateince' (did you mean 'optimizer.drop.patience'?); known are factor",
        ),
        ({"batch_size": 20, "sub_batches": 3}, "batch_size 20 cannot be divided into 3 sub_batches"),
        (
            {"optimizer": "adam", "restart_at": [3]},
            "restart_at needs an averaging optimizer or averages, not adam",
        ),
        ({"model": ["rhn"]}, "model: the name of the model is missing"),
        ({"model": {"name": ["rhn"]}}, "model: unknown model ['rhn']"),
        ({"method": {"name": ["selfish"]}}, "method.name: unknown method ['selfish']"),
        ({"prune_schedule": {"a": 1}}, "prune_schedule: unknown schedule {'a': 1}"),
    ],
    ids=str,
)
def test_what_is_wrong_is_said_in_one_line(settings: dict[str, Any], expected: str):
    with pytest.raises(UserError) as caught:
        build_experiment(settings, "settings")
    text = str(caught.value)
    assert text.startswith(f"settings: {expected}")
    assert "\n" not in text


def test_several_mistakes_are_all_told():
    with pytest.raises(UserError) as caught:
        build_experiment({"sparsity": 2, "epohcs": 3, "optimizer": {"name": "adam", "lrr": 1}}, "my.yaml")
    text = str(caught.value)
    assert text.startswith("my.yaml: ")
    assert all(part in text for part in ("sparsity: must be", "did you mean 'epochs'?", "did you mean 'optimizer.lr'?"))


AVERAGE = "an average starts after a number of epochs (at least 1) or a fraction of them (between 0 and 1), got "


@pytest.mark.parametrize(
    "value", [0, -1, 1.0, 0.0, -0.5, 1.5, 20.0, True, "20", "trigger", math.nan, math.inf, [20], {}]
)
def test_average_from_is_an_epoch_or_a_fraction(value: Any):
    with pytest.raises(UserError) as caught:
        build_experiment({"optimizer": {"name": "snt-asgd", "average_from": value}}, "settings")
    assert str(caught.value).startswith(f"settings: optimizer.average_from: {AVERAGE}")


@pytest.mark.parametrize("value", [0, -1, 1.0, 1.5, True, math.nan, [20], {}])
def test_averages_start_at_an_epoch_or_a_fraction(value: Any):
    with pytest.raises(UserError) as caught:
        build_experiment({"averages": [{"kind": "nt", "from": value}]}, "settings")
    assert str(caught.value).startswith(f"settings: averages.from: {AVERAGE}")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            {"averages": [{"kind": "nt", "from": None}]},
            "averages.from: from must be trigger, an epoch or a fraction, got ",
        ),
        (
            {"averages": [{"kind": "nt", "from": "20"}]},
            "averages.from: from must be trigger, an epoch or a fraction, got ",
        ),
        ({"averages": [{"kind": "ema"}]}, "averages.kind: must be snt or nt, got 'ema'"),
        ({"averages": [{"from": 20}]}, "averages.kind is missing"),
        ({"averages": [{"kind": "nt", "start": 20}]}, "unknown key 'averages.start'"),
        ({"averages": ["nt-20"]}, "averages: must be "),
        ({"averages": {"kind": "nt"}}, "averages: must be "),
        ({"averages": None}, "averages: must be "),
        ({"averages": [{"kind": "nt"}] * 2}, "averages has nt-trigger more than once"),
        (
            {"averages": [{"kind": "nt", "from": 100}]},
            "averages has nt-100, but 100 is not an epoch before the last one",
        ),
        (
            {"optimizer": {"name": "snt-asgd", "average_from": 100}},
            "optimizer.average_from 100 is not an epoch before the last one, 100",
        ),
        ({"optimizer": {"name": "sgd", "average_from": 20}}, "unknown key 'optimizer.average_from'"),
        ({"average_from": 20}, "unknown key 'average_from' (did you mean 'optimizer.average_from'?)"),
        ({"init_range": 0.3}, "unknown key 'init_range' (did you mean 'model.init_range'?)"),
        ({"model": {"name": "rhn", "init_range": math.inf}}, "model.init_range: must be "),
        ({"model": {"name": "rhn", "init_range": "wide"}}, "model.init_range: must be "),
    ],
    ids=str,
)
def test_what_is_wrong_with_averages_is_said_in_one_line(settings: dict[str, Any], expected: str):
    with pytest.raises(UserError) as caught:
        build_experiment(settings, "settings")
    text = str(caught.value)
    assert text.startswith(f"settings: {expected}")
    assert "\n" not in text


def test_averages_are_named_by_kind_and_start():
    averages = [{"kind": "nt", "from": 20}, {"kind": "snt", "from": 0.5}, {"kind": "nt"}]
    assert [each.name for each in Experiment(averages=averages).averages] == ["nt-20", "snt-0.5", "nt-trigger"]


def test_averages_without_an_averaging_optimizer_can_be_restarted():
    assert Experiment(optimizer="adam", averages=[{"kind": "nt"}], restart_at=[3]).restart_at == (3,)


def test_averages_are_set_on_the_command_line():
    experiment = build_experiment(with_assignments({}, ["averages=[{kind: nt, from: 20}, {kind: snt}]"]), "words")
    assert [each.name for each in experiment.averages] == ["nt-20", "snt-trigger"]
    again = build_experiment(parse(to_yaml(experiment)), "file")
    assert again == experiment
    assert pickle.loads(pickle.dumps(experiment)) == experiment


def test_settings_that_an_earlier_version_did_not_have_are_unchanged():
    experiment = Experiment(restart_at=[3])
    before = experiment.model_dump(mode="json")
    del before["averages"], before["model"]["init_range"], before["optimizer"]["average_from"]
    assert changed_settings(before, experiment) == []
    before["model"]["dropout"] = 0.1
    assert changed_settings(before, experiment) == ["model.dropout"]
    assert changed_settings(before, Experiment(restart_at=[3], averages=[{"kind": "nt"}])) == [
        "model.dropout",
        "averages",
    ]
