"""Packed models that were never dense."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from selfish_rnn import Sparsifier, deferred_init, pack, unpack
from selfish_rnn.engine import PackedEmbedding, PackedLinear, PackedLSTM
from selfish_rnn.engine.packed_weight import packed_weights
from selfish_rnn.models import MODELS
from selfish_rnn.sparsifier.deferred import is_deferred
from tiny_runs import TINY_MODELS

WORDS = 40


def build(model: str, deferred: bool, **settings: Any) -> tuple[nn.Module, Sparsifier]:
    torch.manual_seed(3)
    if deferred:
        with deferred_init():
            made = MODELS[model](WORDS, **TINY_MODELS[model])
    else:
        made = MODELS[model](WORDS, **TINY_MODELS[model])
    sparsifier = Sparsifier(made, rewirings=4, exclude=made.dense_parameters, **settings)
    return pack(made), sparsifier


@pytest.mark.parametrize("rescale", [False, True])
@pytest.mark.parametrize("method", ["selfish", "set", "gmp"])
@pytest.mark.parametrize("model", TINY_MODELS)
def test_a_model_that_was_never_dense_is_the_same_as_one_that_was(model: str, method: str, rescale: bool) -> None:
    settings: dict[str, Any] = {"sparsity": 0.8, "method": method, "rescale": rescale}
    one, first = build(model, False, **settings)
    random = torch.get_rng_state()
    other, second = build(model, True, **settings)
    assert torch.equal(random, torch.get_rng_state())
    assert first.summary() == second.summary()
    tensors = one.state_dict()
    assert tensors.keys() == other.state_dict().keys()
    for name, tensor in other.state_dict().items():
        assert not is_deferred(tensor)
        assert torch.equal(tensor, tensors[name]), name
    if method != "gmp":
        for sparsifier in (first, second):
            sparsifier.rewire()
        for before, after in zip(first.weights, second.weights, strict=True):
            assert torch.equal(before.topology.positions, after.topology.positions)


def test_packing_makes_whole_what_stays_dense_and_masks_what_cannot_be_packed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Scaled(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(x)

    def make() -> nn.Sequential:
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(20, 30), Scaled(30, 30), nn.Linear(30, 4))

    dense = make()
    with deferred_init():
        model = make()
    for each in (dense, model):
        Sparsifier(each, sparsity=0.8, rewirings=2, exclude="2", seed=5, rescale=True)
        pack(each)
    assert "Scaled is a subclass of torch.nn.Linear, overrides forward" in caplog.text
    assert list(packed_weights(model)) == ["0.weight"]
    assert not any(is_deferred(parameter) for parameter in model.parameters())
    x = torch.randn(3, 20)
    assert torch.equal(dense(x), model(x))
    optimizer = torch.optim.Adam(model.parameters())
    model(x).square().mean().backward()
    optimizer.step()
    assert int(model[1].weight.count_nonzero()) == 180


@pytest.mark.slow
def test_a_network_that_no_memory_would_hold_trains() -> None:
    with deferred_init():
        model = nn.Sequential(nn.Embedding(50, 20_000), nn.LSTM(20_000, 20_000), nn.Flatten(0))
    sparsifier = Sparsifier(model[:2], sparsity=1 - 1e-5, rewirings=2)
    pack(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = model[1](model[0](torch.randint(50, (3, 2))))[0].square().mean()
    loss.backward()
    optimizer.step()
    sparsifier.rewire()
    assert sparsifier.active_weights == sparsifier.target_weights == round(1e-5 * sparsifier.total_weights)


# A sparsifier on packed modules


class Made(nn.Module):
    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.embedding = PackedEmbedding(30, 16, sparsity=0.5)
        self.rnn = PackedLSTM(16, 16, sparsity=0.5)
        self.decoder = PackedLinear(16, 30, sparsity=0.5)
        if tied:
            self.decoder.weight = self.embedding.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.decoder(self.rnn(self.embedding(words))[0])
        return scores


@pytest.mark.parametrize("tied", [False, True])
def test_a_model_made_of_packed_modules_is_rewired(tied: bool) -> None:
    torch.manual_seed(2)
    model = Made(tied)
    before = {name: weight.to_dense().detach() for name, weight in packed_weights(model).items()}
    sparsifier = Sparsifier(model, rewirings=3, prune_rate=0.5)
    assert sparsifier.sparsity == 0.5
    assert [weight.name for weight in sparsifier.weights] == list(before)
    assert "forget" in sparsifier.summary()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        model(torch.randint(30, (4, 2))).square().mean().backward()
        optimizer.step()
        sparsifier.rewire()
    assert sparsifier.active_weights == sparsifier.target_weights
    for name, weight in packed_weights(model).items():
        assert not torch.equal(weight.to_dense() != 0, before[name] != 0)
    other = Made(tied)
    twin = Sparsifier(other, rewirings=3, prune_rate=0.5)
    other.load_state_dict(model.state_dict())
    twin.load_state_dict(sparsifier.state_dict())
    for weight, expected in zip(twin.weights, sparsifier.weights, strict=True):
        assert torch.equal(weight.topology.positions, expected.topology.positions)


def test_rescaling_packed_modules_divides_what_exists() -> None:
    torch.manual_seed(2)
    model = Made()
    before = model.decoder.weight.values.detach().clone()
    Sparsifier(model, rewirings=3, rescale=True)
    assert torch.equal(model.decoder.weight.values, before / math.sqrt(0.5))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "gmp", "sparsity": 0.9}, "takes no existing topology"),
        ({"method": "snfs"}, "embedding.weight is packed, but method snfs uses the momentum"),
        ({"sparsity": 0.9}, "sparsity 0.5, not 0.9"),
        ({"masks": {"decoder.weight": torch.ones(30, 16)}}, r"decoder.weight is packed.*leave masks= out"),
    ],
)
def test_what_packed_modules_cannot_have_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sparsifier(Made(), rewirings=3, **settings)


def test_packed_and_dense_modules_together_say_how_they_can_be_bound() -> None:
    model = nn.Sequential(PackedLinear(20, 10, sparsity=0.8), nn.Linear(10, 10))
    with pytest.raises(ValueError, match=r"0\.weight is packed and has a topology, 1\.weight has none"):
        Sparsifier(model, sparsity=0.8, rewirings=3, min_side=1)
    sparsifier = Sparsifier(model, rewirings=3, exclude="1")
    assert sparsifier.active_weights == 40
    sparsifier.detach()
    assert Sparsifier(model, rewirings=3, topology="nonzero", min_side=1).active_weights == 140


def test_a_model_made_of_packed_modules_is_unpacked_with_its_sparsifier(tmp_path: Path) -> None:
    model = Made()
    sparsifier = Sparsifier(model, rewirings=3)
    masks = sparsifier.masks()
    unpack(model)
    assert isinstance(model.rnn, nn.LSTM)
    sparsifier.rewire()
    assert sparsifier.active_weights == sum(int(mask.sum()) for mask in masks.values())
