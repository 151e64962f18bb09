"""Small dense: as many parameters as the sparse network has."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from selfish_rnn.experiment.settings import Experiment
from selfish_rnn.experiment.small_dense import WIDTHS, small_dense, sparse_parameters
from selfish_rnn.models import MODELS, StackedRNN
from selfish_rnn.sparsifier import Sparsifier


def experiment(model: Any, **changes: Any) -> Experiment:
    return Experiment.model_validate({"model": model, "sparsity": 0.67, **changes})


def widths(of: Experiment) -> dict[str, Any]:
    return {name: value for name, value in of.model.model_dump().items() if name in WIDTHS}


def count(of: Experiment, vocabulary: int, **changes: Any) -> int:
    options = {**of.model.model_dump(exclude={"name"}), **changes}
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in MODELS[of.model.name](vocabulary, **options).parameters())


def test_the_papers_stacked_lstm() -> None:
    sparse = experiment("stacked-lstm")
    assert sparse_parameters(sparse, 10_000) == 21_814_000
    dense = small_dense(sparse, 10_000)
    assert widths(dense) == {"embedding": 699, "hidden": 699}
    assert count(dense, 10_000) == 21_818_800


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("sparsity", [0.3, 0.67, 0.9])
def test_every_model_comes_within_one_step_of_the_target(name: str, sparsity: float) -> None:
    sparse = experiment(name, sparsity=sparsity)
    dense, step = small_dense(sparse, 10_000), getattr(sparse.model, "chunk", 1)
    target, reached = sparse_parameters(sparse, 10_000), count(dense, 10_000)
    larger = {width: value + step for width, value in widths(dense).items()}
    smaller = {width: value - step for width, value in widths(dense).items()}
    assert count(dense, 10_000, **smaller) < target < count(dense, 10_000, **larger)
    # ON-LSTM's widths come in tens, and ten dimensions of the embedding are 4 % of its smallest target.
    assert abs(reached - target) < (0.01 if step == 1 else 0.05) * target
    assert all(value % step == 0 for value in widths(dense).values())
    first, *others = (value / getattr(sparse.model, width) for width, value in widths(dense).items())
    assert all(abs(other - first) < step / 300 for other in others)


def test_no_other_width_is_nearer() -> None:
    sparse = experiment({"name": "stacked-gru", "embedding": 60, "hidden": 60}, sparsity=0.8)
    target = sparse_parameters(sparse, 100)
    errors = {width: abs(count(sparse, 100, embedding=width, hidden=width) - target) for width in range(1, 61)}
    assert small_dense(sparse, 100).model.hidden == min(errors, key=errors.__getitem__)


def test_the_target_is_what_a_sparsifier_leaves() -> None:
    sparse = experiment({"name": "awd-lstm-mos", "embedding": 12, "hidden": 20, "hidden_last": 16, "experts": 3})
    model = MODELS["awd-lstm-mos"](50, **sparse.model.model_dump(exclude={"name"}))
    sparsifier = Sparsifier(model, sparsity=0.67, rewirings=1, exclude=model.dense_parameters, min_side=1)
    left = sum(parameter.numel() for parameter in model.parameters())
    left += sparsifier.active_weights - sparsifier.total_weights
    assert abs(sparse_parameters(sparse, 50) - left) <= len(sparsifier.weights)


def test_only_the_model_and_the_sparsity_change() -> None:
    sparse = experiment({"name": "stacked-lstm", "dropout": 0.4}, epochs=7, seed=3, optimizer={"name": "adam"})
    dense = small_dense(sparse, 1000)
    assert (dense.sparsity, dense.method.name, dense.model.dropout) == (0, "selfish", 0.4)
    changed = {"model", "sparsity", "method"}
    assert dense.model_dump(exclude=changed) == sparse.model_dump(exclude=changed)


@pytest.mark.parametrize(
    "model",
    [
        {"name": "stacked-lstm", "embedding": 40, "hidden": (50, 40), "tied": True},
        {"name": "on-lstm", "embedding": 40, "hidden": 90, "layers": 1, "chunk": 10},
        {"name": "rhn", "hidden": 1, "depth": 2},
    ],
)
def test_constraints_of_models(model: dict[str, Any]) -> None:
    dense = small_dense(experiment(model), 30)
    assert count(dense, 30) <= count(experiment(model), 30)


def test_without_sparsity_nothing_shrinks() -> None:
    sparse = experiment({"name": "on-lstm"}, sparsity=0)
    assert widths(small_dense(sparse, 100)) == widths(sparse)


def test_random_numbers_are_left_alone() -> None:
    before = torch.get_rng_state()
    small_dense(experiment({"name": "stacked-lstm", "embedding": 9, "hidden": 9}), 20)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_result_builds() -> None:
    dense = small_dense(experiment({"name": "stacked-lstm", "embedding": 9, "hidden": (9, 12)}), 20)
    model = MODELS["stacked-lstm"](20, **dense.model.model_dump(exclude={"name"}))
    assert isinstance(model, StackedRNN)
    assert isinstance(dense.model.hidden, tuple)
