"""How models describe the units of their recurrent layers, and stacked models with layers of different widths."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from model_checks import check_carried_state, check_dropout, check_loss_is_that_of_logits, parameter_count
from torch import nn

from selfish_rnn.errors import UserError
from selfish_rnn.models import MODELS, LanguageModel, RecurrentHighwayNetwork, StackedRNN
from selfish_rnn.models.base import Dropouts
from selfish_rnn.sparsifier.selection import gate_layouts

TINY: dict[str, dict[str, Any]] = {
    "stacked-lstm": {"embedding": 5, "hidden": (6, 4)},
    "stacked-gru": {"embedding": 5, "hidden": 6, "layers": 3},
    "stacked-rnn": {"embedding": 6, "hidden": 6, "tied": True},
    "rhn": {"hidden": 6, "depth": 3},
}


def tiny(name: str, **changes: Any) -> LanguageModel:
    torch.manual_seed(3)
    return MODELS[name](13, **{**TINY[name], **changes}).double()


@pytest.mark.parametrize("name", TINY)
def test_units_share_every_weight_that_has_their_size(name: str) -> None:
    model = tiny(name)
    names = {id(parameter): key for key, parameter in model.named_parameters()}
    described = set()
    for layer in model.unit_layers():
        for part in (*layer.parts, *layer.biases):
            assert part.parameter.shape[part.axis] == part.blocks * layer.size
            described.add(names[id(part.parameter)])
        assert all(part.parameter.ndim == 2 for part in layer.parts)
        assert all(part.parameter.ndim == 1 for part in layer.biases)
    untied = {"embedding.weight"} if name in ("stacked-lstm", "stacked-gru") else set()
    assert described == set(names.values()) - {"decoder.bias"} - untied


@pytest.mark.parametrize("name", TINY)
def test_blocks_are_the_gates(name: str) -> None:
    model = tiny(name)
    gates = {
        id(module.get_parameter(key)): len(layout)
        for module in model.modules()
        for key, layout in gate_layouts(module).items()
    }
    for layer in model.unit_layers():
        assert all(part.blocks == (gates[id(part.parameter)] if part.axis == 0 else 1) for part in layer.parts)


def test_who_reads_a_layer() -> None:
    model = StackedRNN(13, embedding=5, hidden=6)
    first, second = model.unit_layers()
    assert [layer.name for layer in (first, second)] == ["layer_0", "layer_1"]

    def readers(layer: Any) -> list[nn.Parameter]:
        return [part.parameter for part in layer.parts if part.reads]

    assert [id(reader) for reader in readers(first)] == [id(model.rnn.weight_hh_l0), id(model.rnn.weight_ih_l1)]
    assert [id(reader) for reader in readers(second)] == [id(model.rnn.weight_hh_l1), id(model.decoder.weight)]


def test_a_highway_unit_spans_all_depths() -> None:
    model = RecurrentHighwayNetwork(13, hidden=6, depth=3)
    (layer,) = model.unit_layers()
    reading = {id(part.parameter) for part in layer.parts if part.reads}
    assert reading == {id(model.embedding.weight), *map(id, model.cell.recurrent_weights())}


def test_the_error_names_the_models_that_can() -> None:
    able = []
    with torch.device("meta"):
        for name, build in MODELS.items():
            model = build(13)
            try:
                model.unit_layers()
            except UserError as error:
                message = str(error)
                assert type(model).__name__ in message
                with pytest.raises(UserError, match="does not describe its units"):
                    model.resized([1])
            else:
                able.append(name)
    assert message.endswith(f"are {', '.join(able[:-1])} and {able[-1]}")


@pytest.mark.parametrize(("name", "sizes"), [("stacked-lstm", (2, 3)), ("stacked-gru", (4, 4, 4)), ("rhn", (2,))])
def test_resized(name: str, sizes: tuple[int, ...]) -> None:
    model = tiny(name, **({"dropout_hidden": 0.1} if name == "rhn" else {"dropout": 0.1}))
    smaller = model.resized(sizes)
    assert type(smaller) is type(model)
    assert tuple(layer.size for layer in smaller.unit_layers()) == sizes
    old, new = vars(model), vars(smaller)
    plain = [key for key, value in old.items() if isinstance(value, (float, str, Dropouts)) or value is None]
    assert plain
    assert {key: old[key] for key in plain} == {key: new[key] for key in plain}


@pytest.mark.parametrize("name", ["stacked-lstm", "stacked-gru", "stacked-rnn"])
def test_layers_of_different_widths(name: str) -> None:
    torch.manual_seed(3)
    model = MODELS[name](13, embedding=5, hidden=(6, 3, 4), layers=3).double()
    check_carried_state(model, 13)
    check_dropout(model, 13)
    check_loss_is_that_of_logits(model, 13)
    assert [layer.size for layer in model.unit_layers()] == [6, 3, 4]
    for rnn in model.rnn:
        bound = rnn.hidden_size**-0.5
        largest = max(parameter.abs().max() for parameter in rnn.parameters())
        assert 0.8 * bound < largest <= bound


@pytest.mark.parametrize("name", ["stacked-lstm", "stacked-gru", "stacked-rnn"])
def test_separate_layers_compute_what_stacked_ones_do(name: str) -> None:
    """Widths 6 and 6 + 1 with a unit that nothing reads, against 6 and 6."""
    model = MODELS[name](13, embedding=5, hidden=6).double().eval()
    wider = model.resized((6, 7)).double().eval()
    with torch.no_grad():
        for old, new in zip(model.parameters(), wider.parameters(), strict=True):
            if old.shape == new.shape:
                new.copy_(old)
                continue
            gates = len(new) // 7 if len(new) != 13 else 1
            rows = slice(0, 6) if len(new) != 13 else slice(None)
            target = new.view(gates, -1, *new.shape[1:])[:, rows]
            if new.ndim == 2:
                target[..., : old.shape[1]] = old.view(gates, -1, old.shape[1])
                target[..., old.shape[1] :] = 0
            else:
                target.copy_(old.view(gates, -1))
    tokens = torch.randint(13, (9, 2))
    torch.testing.assert_close(wider(tokens)[0], model(tokens)[0], rtol=0, atol=1e-12)


def test_equal_widths_are_one_module() -> None:
    model, same = StackedRNN(13, embedding=5, hidden=6), StackedRNN(13, embedding=5, hidden=(6, 6))
    assert isinstance(same.rnn, nn.LSTM)
    assert list(same.state_dict()) == list(model.state_dict())
    assert parameter_count(same) == parameter_count(model)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"hidden": (6, 6, 6)}, r"one for each of the 2 layers, got \[6, 6, 6\]"),
        ({"hidden": (6, 0)}, "hidden must be at least 1"),
        ({"hidden": (5, 6), "tied": True}, "same size, got embedding 5 and hidden 6"),
    ],
)
def test_bad_widths_are_named(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        StackedRNN(13, **{"embedding": 5, **wrong})
