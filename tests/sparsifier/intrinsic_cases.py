"""Models with units, and what belongs to a unit, element by element."""

from __future__ import annotations

import copy

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from selfish_rnn.models import LanguageModel, RecurrentHighwayNetwork, StackedRNN
from selfish_rnn.sparsifier.iss import UnitLayer

WORDS = 11


@st.composite
def models(draw: st.DrawFn) -> LanguageModel:
    """Small models of every kind that has units, in double precision, biases away from zero."""
    torch.manual_seed(draw(st.integers(0, 2**16)))
    size = st.integers(1, 5)
    if draw(st.booleans()):
        model: LanguageModel = RecurrentHighwayNetwork(WORDS, hidden=draw(size), depth=draw(st.integers(1, 3)))
    else:
        hidden = draw(st.lists(size, min_size=1, max_size=3).map(tuple) | st.tuples(size).map(lambda one: one * 2))
        tied = draw(st.booleans())
        model = StackedRNN(
            WORDS,
            embedding=hidden[-1] if tied else draw(size),
            hidden=hidden,
            layers=len(hidden),
            cell=draw(st.sampled_from(["lstm", "gru", "rnn"])),
            tied=tied,
        )
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    return model.double().eval()


def group(layer: UnitLayer, unit: int) -> dict[nn.Parameter, Tensor]:
    """The weights of one unit as masks, element by element: what is in two parts is there once."""
    masks: dict[nn.Parameter, Tensor] = {}
    for part in layer.parts:
        mask = masks.setdefault(part.parameter, torch.zeros_like(part.parameter, dtype=torch.bool))
        for block in range(part.blocks):
            mask.select(part.axis, block * layer.size + unit).fill_(True)
    return masks


def penalty_by_loop(model: LanguageModel, strength: float) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for layer in model.unit_layers():
        for unit in range(layer.size):
            squares = [parameter[mask].square().sum() for parameter, mask in group(layer, unit).items()]
            total = total + torch.stack([*squares, torch.tensor(1e-8)]).sum().sqrt()
    return strength * total


@torch.no_grad()
def kill(layer: UnitLayer, unit: int) -> None:
    for parameter, mask in group(layer, unit).items():
        parameter[mask] = 0


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@torch.no_grad()
def assert_same_outputs(model: LanguageModel, smaller: LanguageModel, tolerance: float = 1e-10) -> None:
    model, smaller = copy.deepcopy(model).eval(), copy.deepcopy(smaller).eval()
    state, smaller_state = model.initial_state(3), smaller.initial_state(3)
    for _ in range(3):
        tokens = torch.randint(WORDS, (7, 3))
        scores, state = model(tokens, state)
        smaller_scores, smaller_state = smaller(tokens, smaller_state)
        torch.testing.assert_close(smaller_scores, scores, rtol=0, atol=tolerance)
