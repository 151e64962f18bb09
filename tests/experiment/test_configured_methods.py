"""Names of methods in a configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from selfish_rnn.errors import UserError
from selfish_rnn.experiment.methods import CONFIGURABLE_METHODS, WITHOUT_PARTS, method_row
from selfish_rnn.experiment.presets import build_experiment
from selfish_rnn.experiment.settings import Experiment
from selfish_rnn.experiment.small_dense import resolve_model
from selfish_rnn.topology import METHODS, SELFISH, Growth, register_method
from selfish_rnn.topology.growth import at_random
from selfish_rnn.topology.methods import METHOD_PARTS, registered_names

pytestmark = pytest.mark.usefixtures("tables_as_before")


def test_the_method_table_and_two_methods_without_parts() -> None:
    assert [*CONFIGURABLE_METHODS] == [*METHODS, "iss", "small-dense"]
    assert [*WITHOUT_PARTS] == ["iss", "small-dense"]
    assert all(CONFIGURABLE_METHODS[name] is method for name, method in METHODS.items())


def test_a_registered_method_can_be_configured_with_its_own_parts() -> None:
    growth = Growth("mine", at_random, random=True)
    method = register_method(SELFISH.replace(name="own", growth=growth))
    assert Experiment(method="own").method.build() == method
    assert Experiment(method={"name": "set", "growth": "mine"}).method.build().growth is growth


@pytest.mark.parametrize("name", ["iss", "small-dense"])
def test_what_is_no_composition_has_no_parts_to_replace(name: str) -> None:
    settings = Experiment(method=name).model_dump()
    assert Experiment.model_validate(settings).method.build().name == name
    with pytest.raises(UserError, match=rf"method {name} has no replaceable parts: leave out pool, growth"):
        build_experiment({"method": {"name": name, "pool": "gate", "growth": "gradient"}}, "settings")


def test_none_is_a_word_for_no_part_where_there_can_be_none() -> None:
    assert Experiment(method={"name": "selfish", "removal": "none"}).method.build().removal is None
    with pytest.raises(UserError, match="unknown allocation 'none'"):
        build_experiment({"method": {"name": "selfish", "allocation": "none"}}, "settings")


def test_every_row_of_the_table_is_complete() -> None:
    rows = {name: method_row(method) for name, method in CONFIGURABLE_METHODS.items()}
    assert {tuple(row) for row in rows.values()} == {tuple(rows["selfish"])}
    assert all(row["reference"] for row in rows.values())
    assert (rows["iss"]["removal"], rows["gmp"]["removal"], rows["static"]["removal"]) == (
        "group lasso",
        "magnitude",
        "none",
    )
    growing = [name for name, row in rows.items() if row["growth"] != "none"]
    assert growing == ["selfish", "set", "dsr", "snfs", "rigl", "chts", "chtss", "srigl", "granet", "mest", "gse"]
    assert [name for name, row in rows.items() if row["own optimizer"] == "yes"] == ["selfish"]


def test_only_small_dense_has_another_model() -> None:
    for name in CONFIGURABLE_METHODS:
        experiment = Experiment(model={"name": "stacked-lstm", "hidden": 40, "embedding": 40}, method=name)
        resolved = resolve_model(experiment, vocabulary=50)
        assert (resolved == experiment) == (name != "small-dense")


def test_the_documentation_names_every_method_and_part() -> None:
    text = (Path(__file__).parents[2] / "docs" / "methods.md").read_text(encoding="utf-8")
    names = [*CONFIGURABLE_METHODS, *(name for kind in METHOD_PARTS for name in registered_names(kind))]
    assert [name for name in names if f"`{name}`" not in text] == []
