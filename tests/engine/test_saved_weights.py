"""Saved weights, and a model from them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import nn

from selfish_rnn.engine.saving import SavedWeights, load_sparse
from selfish_rnn.errors import UserError
from selfish_rnn.models import StackedRNN


def weights_of(module: nn.Module) -> Mapping[str, torch.Tensor]:
    return SavedWeights.of(module).tensors


def model(seed: int = 0, hidden: int = 4, tied: bool = True) -> StackedRNN:
    torch.manual_seed(seed)
    return StackedRNN(9, embedding=hidden, hidden=hidden, layers=1, dropout=0.0, tied=tied)


def test_a_tied_weight_is_there_once():
    names = set(weights_of(model(tied=True)))
    assert names == set(weights_of(model(tied=False))) - {"decoder.weight"}


def test_buffers_are_weights_too():
    assert set(weights_of(nn.BatchNorm1d(3))) == {
        "weight", "bias", "running_mean", "running_var", "num_batches_tracked"
    }  # fmt: skip


@pytest.mark.parametrize("tied", [True, False])
def test_loaded_weights_are_the_saved_ones_and_stay_tied(tied: bool):
    source, target = model(seed=1, tied=tied), model(seed=2, tied=tied)
    load_sparse(target, SavedWeights.of(source), "file")
    for name, tensor in weights_of(source).items():
        assert torch.equal(weights_of(target)[name], tensor)
    assert (target.decoder.weight is target.embedding.weight) == tied


@pytest.mark.parametrize(
    ("other", "differing"),
    [
        (model(hidden=5), "decoder.bias|embedding.weight"),
        (model(tied=False), "decoder.weight"),
    ],
)
def test_weights_of_another_model_are_refused_by_name_and_nothing_is_loaded(other: StackedRNN, differing: str):
    target = model(seed=2)
    before = {name: tensor.clone() for name, tensor in weights_of(target).items()}
    with pytest.raises(UserError, match=rf"some/file does not fit the model: .*({differing})"):
        load_sparse(target, SavedWeights.of(other), "some/file")
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights_of(target).items())
