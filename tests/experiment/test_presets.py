"""Presets are complete experiments; words and files change them."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import yaml

from selfish_rnn.errors import UserError
from selfish_rnn.experiment.presets import (
    Settings,
    assignment,
    build_experiment,
    preset_names,
    read_config,
    read_preset,
    to_yaml,
    with_assignments,
    with_settings,
)

LSTM: Settings = {
    "model": {"name": "stacked-lstm", "hidden": 10},
    "optimizer": {"name": "snt-asgd", "lr": 40},
    "epochs": 7,
}


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_is_valid_says_what_it_is_and_survives_its_own_file(name: str, tmp_path: Path):
    settings, about = read_preset(name)
    assert about
    experiment = build_experiment(settings, name)
    path = tmp_path / "whole.yaml"
    path.write_text(to_yaml(experiment))
    assert build_experiment(read_config(path), name) == experiment
    # Complete: laid over any other preset it is still the same experiment.
    for other in preset_names():
        assert build_experiment(with_settings(read_preset(other)[0], read_config(path)), name) == experiment


def test_the_papers_preset_is_the_paper():
    experiment = build_experiment(read_preset("ptb-stacked-lstm")[0], "")
    model, optimizer = experiment.model, experiment.optimizer
    assert (model.embedding, model.hidden, model.layers, model.dropout) == (1500, 1500, 2, 0.65)
    assert (optimizer.name, optimizer.lr, optimizer.weight_decay, optimizer.nonmono) == ("snt-asgd", 40, 1.2e-6, 5)
    assert (experiment.sparsity, experiment.prune_rate, experiment.epochs) == (0.67, 0.7, 100)
    assert (experiment.batch_size, experiment.window, experiment.clip) == (20, 35, 0.25)


def test_an_unknown_preset_is_an_error_with_the_nearest():
    with pytest.raises(UserError, match=r"unknown preset 'quikstart' \(did you mean 'quickstart'\?\); known are "):
        read_preset("quikstart")


@pytest.mark.parametrize(
    ("word", "path", "value"),
    [
        ("epochs=3", ["epochs"], 3),
        ("optimizer.lr=1e-3", ["optimizer", "lr"], 0.001),
        ("optimizer.lr=.5", ["optimizer", "lr"], 0.5),
        ("clip=null", ["clip"], None),
        ("clip=", ["clip"], None),
        ("variable_window=true", ["variable_window"], True),
        ("restart_at=[3, 5]", ["restart_at"], [3, 5]),
        ("corpus=some/folder", ["corpus"], "some/folder"),
        ("corpus=a=b", ["corpus"], "a=b"),
        ("corpus=[broken", ["corpus"], "[broken"),
        ("optimizer.drop.factor=2", ["optimizer", "drop", "factor"], 2),
        ("optimizer.drop={factor: 2, patience: 1}", ["optimizer", "drop"], {"factor": 2, "patience": 1}),
    ],
)
def test_a_word_sets_its_key_and_leaves_the_others(word: str, path: list[str], value: Any):
    changed: Any = with_assignments(LSTM, [word])
    for key in path:
        changed = changed[key]
    assert changed == value
    assert type(changed) is type(value)
    assert LSTM["epochs"] == 7
    assert LSTM["optimizer"] == {"name": "snt-asgd", "lr": 40}


@pytest.mark.parametrize("word", ["epochs", "=3", ""])
def test_a_word_that_sets_nothing_is_refused(word: str):
    with pytest.raises(UserError, match=r"is not a setting; write key=value, such as sparsity=0\.8"):
        with_assignments(LSTM, [word])


def test_another_name_starts_a_section_anew():
    for words in (["optimizer.name=adam"], ["optimizer=adam"]):
        experiment = build_experiment(with_assignments(LSTM, words), "settings")
        assert experiment.optimizer.name == "adam"
        assert experiment.optimizer.lr == 0.001
        assert experiment.model.hidden == 10


def test_another_model_keeps_what_it_has_in_common_with_the_one_before():
    given = with_settings(LSTM, {"model": {"embedding": 12, "tied": False}})
    assert with_assignments(given, ["model=stacked-gru"])["model"] == {**given["model"], "name": "stacked-gru"}
    assert with_assignments(given, ["model=rhn"])["model"] == {"name": "rhn", "hidden": 10}
    assert with_assignments(given, ["model=nothing"])["model"] == {"name": "nothing"}


def test_a_corpus_is_taken_as_it_is_written():
    for folder in ("2024", "a: b", "1e3", "null"):
        assert with_assignments(LSTM, [f"corpus={folder}"])["corpus"] == folder


def test_the_same_name_changes_nothing_else():
    assert with_assignments(LSTM, ["optimizer=snt-asgd", "model.name=stacked-lstm"]) == LSTM


def test_the_order_of_words_does_not_matter():
    words = ["optimizer.lr=0.5", "optimizer.name=adam", "model.depth=3", "model=rhn", "epochs=9"]
    results = [with_assignments(LSTM, order) for order in itertools.permutations(words)]
    assert all(result == results[0] for result in results)
    assert results[0] == {
        "model": {"name": "rhn", "hidden": 10, "depth": 3}, "optimizer": {"name": "adam", "lr": 0.5}, "epochs": 9
    }  # fmt: skip


def test_nested_keys_add_up():
    words = ["optimizer.drop.factor=2", "optimizer.drop.patience=1"]
    assert with_assignments(LSTM, words)["optimizer"]["drop"] == {"factor": 2, "patience": 1}
    given = with_assignments(LSTM, ["optimizer.drop={factor: 2, patience: 1}"])
    assert with_assignments(given, ["optimizer.drop.factor=3"])["optimizer"]["drop"] == {"factor": 3, "patience": 1}
    assert with_assignments(given, ["optimizer.drop=null"])["optimizer"]["drop"] is None


def test_a_section_without_a_name_keeps_the_old_one():
    assert with_settings(LSTM, {"model": {"hidden": 20}})["model"] == {"name": "stacked-lstm", "hidden": 20}
    assert with_settings(LSTM, {"model": None}) == LSTM


def test_a_configuration_file_may_say_what_it_is_about(tmp_path: Path):
    path = tmp_path / "mine.yaml"
    path.write_text("about: mine\nepochs: 3\n")
    assert read_config(path) == {"epochs": 3}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "does not exist"),
        (b"epochs: [3", "is not valid YAML"),
        (b"- 1\n- 2\n", "must contain keys and values"),
        (b"", "must contain keys and values"),
        (b"corpus: \xff\xfe", "cannot be read"),
    ],
)
def test_a_bad_configuration_file_is_one_line(tmp_path: Path, content: bytes | None, expected: str):
    path = tmp_path / "mine.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=expected) as caught:
        read_config(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_as_configuration_file_is_one_line(tmp_path: Path):
    with pytest.raises(UserError, match="cannot be read"):
        read_config(tmp_path)


def test_complete_configurations_are_plain_yaml():
    experiment = build_experiment(with_assignments(LSTM, ["checkpoint_every=.inf"]), "settings")
    assert yaml.safe_load(to_yaml(experiment))["checkpoint_every"] == float("inf")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("epochs", 3),
        ("optimizer.lr", 1e-05),
        ("clip", None),
        ("variable_window", True),
        ("restart_at", [3, 5]),
        ("averages", [{"kind": "nt", "from": 2}]),
        ("corpus", "2024"),
        ("corpus", "a: b"),
        ("model.name", "rhn"),
        ("model.name", "null"),
        ("model.name", "a: b"),
        ("checkpoint_every", float("inf")),
    ],
)
def test_an_assignment_reads_back_as_its_value(key: str, value: Any):
    changed: Any = with_assignments(LSTM, [assignment(key, value)])
    for name in key.split("."):
        changed = changed[name]
    assert changed == value
    assert type(changed) is type(value)
