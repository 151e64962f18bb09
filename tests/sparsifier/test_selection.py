from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from torch import nn

from selfish_rnn.sparsifier.selection import Selector, choose_weights, register_cell
from selfish_rnn.topology import GateLayout


class LanguageModel(nn.Module):
    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, 4)
        self.rnn = nn.LSTM(4, 4)
        self.filter = nn.Conv2d(2, 3, 3)
        self.decoder = nn.Linear(4, 9)
        if tied:
            self.decoder.weight = self.embedding.weight


def names(model: nn.Module, include: list[Selector] | None = None, exclude: list[Selector] | None = None) -> list[str]:
    return [name for name, _, _ in choose_weights(model, include, exclude or [])]


RNN = ["rnn.weight_ih_l0", "rnn.weight_hh_l0"]


def test_default_is_every_weight_of_known_modules_and_no_bias() -> None:
    assert names(LanguageModel()) == ["embedding.weight", *RNN, "decoder.weight"]


@pytest.mark.parametrize(
    ("include", "exclude", "expected"),
    [
        (["rnn.*"], [], RNN),
        (["*_hh_*", "decoder.weight"], [], [RNN[1], "decoder.weight"]),
        ([nn.LSTM], [], RNN),
        ([nn.Linear, "embedding.*"], [], ["embedding.weight", "decoder.weight"]),
        (["filter.weight"], [], ["filter.weight"]),
        (["*"], [nn.LSTM], ["embedding.weight", "filter.weight", "decoder.weight"]),
        (None, ["embedding.weight", nn.Linear], RNN),
        ([nn.LSTM], ["*_ih_*"], [RNN[1]]),
    ],
)
def test_include_and_exclude(include: list[Selector] | None, exclude: list[Selector], expected: list[str]) -> None:
    assert names(LanguageModel(), include, exclude) == expected


@pytest.mark.parametrize(
    ("include", "exclude", "unmatched"),
    [
        (["rmn.*"], [], r"rmn\.\*"),
        (None, ["decodr.weight"], r"decodr\.weight"),
        ([nn.LSTM, nn.GRU], [], "GRU"),
        (["*.bias*"], [], r"\*\.bias\*"),
    ],
)
def test_a_selector_that_matches_nothing_is_an_error(
    include: list[Selector] | None, exclude: list[Selector], unmatched: str
) -> None:
    with pytest.raises(ValueError, match=f"no weight matrix of the model matches .*{unmatched}"):
        names(LanguageModel(), include, exclude)


def test_nothing_left_is_an_error() -> None:
    with pytest.raises(ValueError, match="no weight matrix to make sparse"):
        names(LanguageModel(), [nn.LSTM], ["rnn.*"])
    with pytest.raises(ValueError, match="no weight matrix to make sparse"):
        names(nn.Tanh())


def test_tied_weights_are_one_weight_under_their_first_name() -> None:
    assert names(LanguageModel(tied=True)) == ["embedding.weight", *RNN]


@pytest.mark.parametrize("selector", ["embedding.weight", "decoder.weight", nn.Embedding, nn.Linear])
def test_a_tied_weight_is_excluded_under_any_of_its_names(selector: Selector) -> None:
    assert names(LanguageModel(tied=True), None, [selector]) == RNN


def test_a_shared_module_is_excluded_under_any_of_its_names() -> None:
    layer = nn.Linear(3, 3)
    model = nn.ModuleDict({"first": layer, "second": layer, "other": nn.Linear(3, 3)})
    assert names(model) == ["first.weight", "other.weight"]
    assert names(model, None, ["second.weight"]) == ["other.weight"]


def test_frozen_weights_are_left_alone() -> None:
    """A pretrained embedding that is not trained would only lose its weights."""
    model = LanguageModel()
    model.embedding.weight.requires_grad_(False)
    assert names(model) == [*RNN, "decoder.weight"]


def test_the_model_may_itself_be_the_layer() -> None:
    ((name, weight, gates),) = choose_weights(nn.Linear(3, 4), None, [])
    assert (name, weight.shape, gates) == ("weight", (4, 3), GateLayout.single(4))


def test_gates_come_along() -> None:
    chosen = {name: gates for name, _, gates in choose_weights(LanguageModel(), ["*"], [])}
    assert chosen["rnn.weight_hh_l0"].names == ("input", "forget", "candidate", "output")
    assert chosen["filter.weight"] == GateLayout.single(3)


def test_vectors_are_never_chosen() -> None:
    model = nn.Sequential(nn.LayerNorm(3), nn.Linear(3, 1))
    model.register_parameter("scale", nn.Parameter(torch.ones(3)))
    assert names(model, ["*"]) == ["1.weight"]


def test_one_selector_needs_no_list_and_a_module_stands_for_what_it_holds() -> None:
    model = nn.Sequential(OrderedDict(a=nn.Linear(2, 2), b=nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))))
    assert [name for name, _, _ in choose_weights(model, "b", ())] == ["b.0.weight", "b.1.weight"]
    assert [name for name, _, _ in choose_weights(model, None, "b.0")] == ["a.weight", "b.1.weight"]
    assert len(list(choose_weights(model, nn.Linear, "a.*"))) == 2
    with pytest.raises(ValueError, match=r"matches c; there are a\.weight, b\.0\.weight, b\.1\.weight"):
        choose_weights(model, "c", ())
    with pytest.raises(TypeError, match="not by 5"):
        choose_weights(model, [5], ())  # type: ignore[list-item]


def test_a_registration_that_names_no_parameter_is_an_error() -> None:
    class Cell(nn.Module):
        pass

    register_cell(Cell, lambda cell: {"nope": GateLayout.single(2)})
    with pytest.raises(ValueError, match="Cell has no parameter 'nope'"):
        choose_weights(nn.Sequential(Cell(), nn.Linear(2, 2)), None, ())
