"""The parts of an experiment, and what is found wrong with them before training."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from selfish_rnn.corpora import load_corpus
from selfish_rnn.errors import UserError
from selfish_rnn.models import MODELS
from selfish_rnn.training.build import check_before_training
from tiny_runs import TINY_MODELS, bits, tiny_experiment, tiny_trainer


@pytest.mark.parametrize("key", ["batch_size", "valid_batch_size", "test_batch_size"])
def test_a_text_too_short_is_found_before_training(texts: Path, key: str):
    with pytest.raises(UserError, match=rf"too short for {key}=300"):
        check_before_training(tiny_experiment(texts, **{key: 300}), load_corpus(texts))


@pytest.mark.parametrize("name", MODELS)
def test_a_model_that_cannot_be_built_is_found_before_training(texts: Path, name: str):
    options = {"name": name, **TINY_MODELS[name]}
    check_before_training(tiny_experiment(texts, model=options), load_corpus(texts))
    with pytest.raises(UserError, match="hidden must be at least 1, got 0"):
        check_before_training(tiny_experiment(texts, model={**options, "hidden": 0}), load_corpus(texts))


def test_the_models_weights_come_from_the_seed_whatever_was_drawn_before(texts: Path):
    torch.manual_seed(99)
    first = bits(tiny_trainer(texts).weights().tensors)
    torch.manual_seed(100)
    assert bits(tiny_trainer(texts).weights().tensors) == first
    assert len(load_corpus(texts).train) == 408


@pytest.mark.parametrize("name", ["on-lstm", "awd-lstm-mos"])
def test_iss_for_a_model_without_units_is_found_before_training(texts: Path, name: str):
    experiment = tiny_experiment(texts, model={"name": name, **TINY_MODELS[name]}, method="iss")
    with pytest.raises(UserError, match="does not describe its units"):
        check_before_training(experiment, load_corpus(texts))


def test_runs_of_one_start_seed_begin_alike_and_part_at_the_first_rewiring(texts: Path, tmp_path: Path) -> None:
    one, other = (
        tiny_trainer(texts, tmp_path / str(seed), seed=seed, start_seed=3, model={"dropout": 0.0}) for seed in (1, 2)
    )
    for before, after in zip(one.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(before, after)
    for trainer in (one, other):
        trainer.sparsifier.rewire()
    topologies = [[weight.topology.positions for weight in trainer.sparsifier.weights] for trainer in (one, other)]
    assert any(not torch.equal(before, after) for before, after in zip(*topologies, strict=True))
    alike = tiny_trainer(texts, tmp_path / "own", seed=3, model={"dropout": 0.0})
    fresh = tiny_trainer(texts, tmp_path / "named", seed=3, start_seed=3, model={"dropout": 0.0})
    assert all(map(torch.equal, alike.model.parameters(), fresh.model.parameters()))


def test_a_run_follows_the_paper_and_not_the_library_s_defaults(texts: Path) -> None:
    """Every matrix becomes sparse, however narrow, and starting weights keep their values."""
    model = {"embedding": 8, "hidden": 16}  # the embedding is narrow, the recurrent matrices are not
    sparse, dense = tiny_trainer(texts, model=model), tiny_trainer(texts, model=model, sparsity=0.0)
    names = {name for name, weight in dense.model.named_parameters() if weight.ndim == 2}
    assert set(sparse.sparsifier.densities()) == names
    assert min(min(weight.shape) for weight in sparse.sparsifier.weights) < 16
    for name, weight in sparse.model.named_parameters():
        existing = weight != 0
        assert torch.equal(weight[existing], dense.model.get_parameter(name)[existing]), name
