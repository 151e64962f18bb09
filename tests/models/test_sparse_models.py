"""Every model under a sparsifier: the paper's numbers of weights, and nothing outside the topology, ever."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from selfish_rnn import SNTASGD, Sparsifier
from selfish_rnn.models import MODELS, LanguageModel, detach
from selfish_rnn.sparsifier.selection import choose_weights
from selfish_rnn.topology import ALLOCATIONS

TINY: dict[str, dict[str, Any]] = {
    "stacked-lstm": {"embedding": 6, "hidden": 6, "layers": 2, "dropout": 0.3, "tied": True},
    "stacked-gru": {"embedding": 6, "hidden": 8, "layers": 2, "dropout": 0.3},
    "stacked-rnn": {"embedding": 6, "hidden": 8, "layers": 2, "dropout": 0.3},
    "rhn": {"hidden": 8, "depth": 3},
    "on-lstm": {"embedding": 6, "hidden": 8, "layers": 2, "chunk": 2},
    "awd-lstm-mos": {"embedding": 6, "hidden": 8, "hidden_last": 6, "layers": 2, "experts": 3},
}


@pytest.mark.parametrize(
    ("name", "words", "sparsity", "dense", "sparse"),
    [
        ("stacked-lstm", 10_000, 0.67, 66_034_000, 21_814_000),
        ("rhn", 10_000, 0.528, 23_484_060, 11_099_398),
        ("on-lstm", 10_000, 0.55, 25_232_180, 11_372_455),
        ("awd-lstm-mos", 33_278, 0.55, 34_909_528, 15_748_408),
    ],
)
def test_number_of_parameters_of_the_paper(name: str, words: int, sparsity: float, dense: int, sparse: int) -> None:
    with torch.device("meta"):
        model = MODELS[name](words)
    chosen = list(choose_weights(model, None, model.dense_parameters))
    shapes = [tuple(parameter.shape) for _, parameter, _ in chosen]
    total = sum(parameter.numel() for parameter in model.parameters())
    sparsified = sum(parameter.numel() for _, parameter, _ in chosen)
    assert total == dense
    assert total - sparsified + sum(ALLOCATIONS["uniform"].counts(shapes, 1 - sparsity)) == sparse


def train_step(model: LanguageModel, optimizer: torch.optim.Optimizer, state: Any) -> Any:
    tokens = torch.randint(12, (6, 3))
    optimizer.zero_grad()
    encoded = model.encode(tokens[:-1], state)
    model.loss(encoded.output, tokens[1:]).backward()
    return detach(encoded.state)


@pytest.mark.parametrize("kind", ["snt-asgd", "adam"])
@pytest.mark.parametrize("name", MODELS)
def test_nothing_outside_the_topology_is_ever_changed(name: str, kind: str) -> None:
    """With all dropouts on, DropConnect and weight drop among them, tied weights, averaging and rewiring."""
    torch.manual_seed(0)
    model = MODELS[name](12, **TINY[name])
    sparsifier = Sparsifier(model, sparsity=0.6, prune_rate=0.5, rewirings=4, exclude=model.dense_parameters)
    optimizer: torch.optim.Optimizer
    if kind == "snt-asgd":
        optimizer = SNTASGD(model.parameters(), lr=1.0, weight_decay=1e-3)
        optimizer.start_averaging()
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=1e-3)
    count = sparsifier.active_weights
    state = model.initial_state(3)
    for _ in range(3):
        for _ in range(3):
            state = train_step(model, optimizer, state)
            for weight in sparsifier.weights:
                outside = weight.mask == 0
                assert weight.parameter.grad is not None
                assert not weight.parameter.grad[outside].any()
            optimizer.step()
            for weight in sparsifier.weights:
                outside = weight.mask == 0
                assert not weight.parameter[outside].any()
                for value in optimizer.state[weight.parameter].values():
                    if torch.is_tensor(value) and value.shape == outside.shape and value.is_floating_point():
                        assert not value[outside].any()
        sparsifier.rewire()
        assert sparsifier.active_weights == count
        assert sum(int(weight.parameter.count_nonzero()) for weight in sparsifier.weights) <= count


def test_the_prior_of_the_mixture_stays_dense() -> None:
    model = MODELS["awd-lstm-mos"](12, **TINY["awd-lstm-mos"])
    sparsifier = Sparsifier(model, sparsity=0.6, rewirings=4, exclude=model.dense_parameters)
    assert "prior.weight" not in [weight.name for weight in sparsifier.weights]
    assert bool(model.get_parameter("prior.weight").ne(0).all())


@pytest.mark.parametrize(
    ("name", "gates"),
    [
        ("rhn", ("nonlinear", "transform")),
        ("on-lstm", ("master_input", "master_forget", "output", "candidate", "input", "forget")),
        ("stacked-gru", ("reset", "update", "candidate")),
    ],
)
def test_gates_compete_in_every_recurrent_matrix(name: str, gates: tuple[str, ...]) -> None:
    model = MODELS[name](12, **TINY[name])
    sparsifier = Sparsifier(model, sparsity=0.6, rewirings=4)
    recurrent = [weight for weight in sparsifier.weights if len(weight.gates) > 1]
    assert recurrent
    assert all(weight.gates.names == gates for weight in recurrent)
