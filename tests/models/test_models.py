"""What holds for every model of the registry."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import Tensor, nn

from selfish_rnn.errors import UserError
from selfish_rnn.models import MODELS, LanguageModel, detach
from selfish_rnn.sparsifier.selection import gate_layouts

SIZES = {"embedding": 6, "hidden": 6, "hidden_last": 6, "depth": 3, "chunk": 2, "experts": 3}


def small(name: str, **options: float) -> LanguageModel:
    torch.manual_seed(2)
    known = inspect.signature(MODELS[name]).parameters
    return MODELS[name](13, **{key: size for key, size in SIZES.items() if key in known}, **options)


@pytest.mark.parametrize("name", MODELS)
def test_a_configuration_can_fill_every_argument(name: str) -> None:
    vocabulary, *rest = inspect.signature(MODELS[name]).parameters.values()
    assert vocabulary.name == "vocabulary"
    assert rest
    for argument in rest:
        assert argument.kind is inspect.Parameter.KEYWORD_ONLY
        assert argument.default is None or isinstance(argument.default, int | float | str | bool)


@pytest.mark.parametrize("name", MODELS)
def test_a_masked_weight_stays_zero_through_training(name: str) -> None:
    """All dropouts are at the paper's values: DropConnect, word dropout and tied weights respect the mask."""
    model = small(name).train()
    masks: dict[nn.Parameter, Tensor] = {}
    for module in model.modules():
        for weight in gate_layouts(module):
            parameter = module.get_parameter(weight)
            masks[parameter] = torch.rand_like(parameter) < 0.5
    with torch.no_grad():
        for parameter, mask in masks.items():
            parameter.mul_(mask)
            parameter.register_hook(lambda gradient, mask=mask: gradient * mask)
    before = {parameter: parameter.detach().clone() for parameter in masks}
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    state = model.initial_state(4)
    for _ in range(3):
        tokens, targets = torch.randint(13, (2, 5, 4))
        encoded = model.encode(tokens, detach(state))
        state = encoded.state
        optimizer.zero_grad()
        model.loss(encoded.output, targets).backward()
        optimizer.step()
    for parameter, mask in masks.items():
        assert not parameter[~mask].any()
        assert not torch.equal(parameter, before[parameter])


@pytest.mark.parametrize("name", MODELS)
def test_a_window_of_one_word(name: str) -> None:
    model = small(name).eval()
    scores, state = model(torch.zeros(1, 1, dtype=torch.long))
    assert scores.shape == (1, 1, 13)
    again, _ = model(torch.zeros(1, 1, dtype=torch.long), detach(state))
    assert not torch.equal(scores, again)


@pytest.mark.parametrize("name", MODELS)
def test_weights_saved_are_weights_loaded(name: str) -> None:
    model, other = small(name).eval(), small(name).eval()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1)
    other.load_state_dict(model.state_dict())
    tokens = torch.randint(13, (3, 2))
    torch.testing.assert_close(model(tokens)[0], other(tokens)[0], rtol=0, atol=0)


@pytest.mark.parametrize("name", MODELS)
def test_init_range_scales_embedding_and_output_matrix_and_nothing_else(name: str) -> None:
    usual, wide = small(name), small(name, init_range=0.3)
    assert usual.embedding.weight.abs().max() <= 0.1 < wide.embedding.weight.abs().max() <= 0.3
    scaled = {
        id(model.get_parameter(f"{layer}.weight")) for model in (usual, wide) for layer in ("embedding", "decoder")
    }
    for one, two in zip(usual.parameters(), wide.parameters(), strict=True):
        if id(one) in scaled:
            torch.testing.assert_close(two, 3 * one)
        else:
            assert torch.equal(one, two)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("init_range", [0.0, -0.1, float("inf"), float("nan")])
def test_an_init_range_that_is_not_positive_is_refused(name: str, init_range: float) -> None:
    with pytest.raises(UserError, match="init_range must be a number greater than 0, got"):
        small(name, init_range=init_range)


@pytest.mark.parametrize("name", ["stacked-lstm", "rhn"])
def test_a_resized_model_has_the_same_init_range(name: str) -> None:
    model = small(name, init_range=0.3)
    assert model.resized([3] * len(model.unit_layers())).init_range == 0.3
