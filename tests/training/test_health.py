"""Numbers that are none are found in the very update in which they appear, and named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from selfish_rnn.engine import pack
from selfish_rnn.engine.saving import named_tensors
from selfish_rnn.sparsifier import Sparsifier
from selfish_rnn.training.metrics import DivergedError, nonfinite_weight
from selfish_rnn.training.trainer import Trainer
from tiny_runs import OPTIMIZERS, TINY_MODELS, Recorder, tiny_trainer

UPDATE = 14
"""In the middle of the second epoch."""

REMEMBERED = {
    "snt-asgd": ["average"],
    "nt-asgd": ["average"],
    "adam": ["exp_avg", "exp_avg_sq"],
    "momentum-sgd": ["momentum_buffer"],
    "sgd": [],
}


def parameters(trainer: Trainer) -> dict[str, Tensor]:
    """The weights by the names of their matrices, which are the same in both engines."""
    return {name: held if isinstance(held, Tensor) else held.values for name, held in named_tensors(trainer.model)}


def found(texts: Path, spoil: Callable[[Trainer], None], **changes: Any) -> str:
    """What is said of something that is spoilt just before the optimizer takes a step in the middle of an epoch."""
    recorder = Recorder()
    trainer = tiny_trainer(texts, recorder, **changes)
    if trainer._averaged is not None:
        trainer._averaged.start_averaging()

    def before(*_: object) -> None:
        if trainer.state.step + 1 == UPDATE:
            with torch.no_grad():
                spoil(trainer)

    trainer.optimizer.register_step_pre_hook(before)
    with pytest.raises(DivergedError) as caught:
        trainer.run()
    assert len(recorder.steps) == UPDATE - 1, "nobody is told of the update that failed"
    return str(caught.value)


@pytest.mark.parametrize(
    "value", [torch.nan, *(pytest.param(value, marks=pytest.mark.slow) for value in (torch.inf, -torch.inf))]
)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("engine", ["masked", "packed"])
def test_a_weight_is_found_in_its_update(texts: Path, engine: str, optimizer: str, value: float) -> None:
    def spoil(trainer: Trainer) -> None:
        weight = parameters(trainer)["rnn.weight_hh_l1"]
        existing = weight.flatten().nonzero()[0]
        weight.view(-1)[existing] = value

    message = found(texts, spoil, engine=engine, optimizer=OPTIMIZERS[optimizer])
    assert message == f"rnn.weight_hh_l1 contains NaN or infinity after update {UPDATE}"


@pytest.mark.parametrize("model", TINY_MODELS)
@pytest.mark.parametrize("engine", ["masked", "packed"])
def test_every_weight_of_every_model_is_looked_at(texts: Path, engine: str, model: str) -> None:
    trainer = tiny_trainer(texts, engine=engine, model={"name": model, **TINY_MODELS[model]})
    trainer.check_finite(0)
    for name, weight in parameters(trainer).items():
        before = weight.detach().clone()
        with torch.no_grad():
            weight.view(-1)[-1] = torch.nan
        with pytest.raises(DivergedError, match=f"^{name} contains NaN"):
            trainer.check_finite(0)
        with torch.no_grad():
            weight.copy_(before)
    trainer.check_finite(0)


@pytest.mark.parametrize(("optimizer", "key"), [(name, key) for name in REMEMBERED for key in REMEMBERED[name]])
@pytest.mark.parametrize("engine", ["masked", "packed"])
def test_an_average_is_found_in_its_update(texts: Path, engine: str, optimizer: str, key: str) -> None:
    """An infinite second moment, too: it stops its weight for good, and no loss would ever show it."""

    def spoil(trainer: Trainer) -> None:
        trainer.optimizer.state[parameters(trainer)["decoder.bias"]][key][3] = torch.inf

    message = found(texts, spoil, engine=engine, optimizer=OPTIMIZERS[optimizer])
    # A momentum that is none is in its weight at once.
    named = {"exp_avg": "decoder.bias", "momentum_buffer": "decoder.bias"}.get(key, f"{key} of decoder.bias")
    assert message == f"{named} contains NaN or infinity after update {UPDATE}"


@pytest.mark.parametrize("engine", ["masked", "packed"])
def test_a_gradient_is_found_before_it_reaches_a_weight(texts: Path, engine: str) -> None:
    def spoil(_: object) -> None:
        if recorder.trainer.state.step == UPDATE - 1:
            weight = parameters(recorder.trainer)["rnn.weight_ih_l0"]
            weight.register_hook(lambda gradient: gradient * torch.nan)  # type: ignore[no-untyped-call]

    recorder = Recorder(spoil)
    trainer = tiny_trainer(texts, recorder, engine=engine)
    with pytest.raises(DivergedError, match=rf"^the gradient of rnn\.weight_ih_l0 contains .* at update {UPDATE}$"):
        trainer.run()
    assert nonfinite_weight(trainer.model, trainer.optimizer) is None


def test_a_gradient_too_large_for_its_norm_is_found(texts: Path) -> None:
    trainer = tiny_trainer(texts)
    trainer.model.decoder.bias.register_hook(lambda gradient: gradient * 1e30)  # type: ignore[union-attr, operator]
    with pytest.raises(DivergedError, match=r"^the norm of the gradient is infinite at update 1$"):
        trainer.run()


@pytest.mark.parametrize("engine", ["masked", "packed"])
def test_a_weight_that_overflows_by_itself_is_found(texts: Path, engine: str) -> None:
    """Weight decay that multiplies: inputs so large saturate the cells, so the loss stays a number."""
    model = {"name": "stacked-rnn", "embedding": 8, "hidden": 8, "layers": 2}
    optimizer = {"name": "sgd", "lr": 1e6, "weight_decay": 1e6}
    with pytest.raises(DivergedError, match=r"^embedding\.weight contains NaN or infinity after update 4$"):
        tiny_trainer(texts, engine=engine, sparsity=0.9, model=model, optimizer=optimizer).run()


@pytest.mark.parametrize("engine", ["masked", "packed"])
def test_weights_are_looked_at_before_a_rewiring_goes_by_them(texts: Path, engine: str) -> None:
    def spoil(trainer: Trainer) -> None:
        parameters(trainer)["rnn.weight_hh_l1"].fill_(torch.nan)

    message = found(texts, spoil, engine=engine, rewire_every=UPDATE // 2)
    assert message == f"rnn.weight_hh_l1 contains NaN or infinity after update {UPDATE}"


def test_a_growth_that_goes_by_no_numbers_is_a_divergence(texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = tiny_trainer(texts, method="rigl")
    weight = trainer.sparsifier.sparse_weights[0]
    monkeypatch.setattr(weight, "collected_gradient", lambda: torch.full(weight.shape, torch.inf))
    with pytest.raises(DivergedError, match=rf"^the gradient of {weight.name} .* infinite after update 10$"):
        trainer.run()


@pytest.mark.parametrize("packed", [False, True])
def test_sums_that_overflow_raise_no_alarm(packed: bool) -> None:
    model = nn.Sequential(nn.Linear(8, 8))
    Sparsifier(model, sparsity=0.5, rewirings=1).detach()
    model = pack(model) if packed else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    largest = torch.finfo(torch.float32).max
    with torch.no_grad():
        for weight in model.parameters():
            weight.fill_(largest)
            optimizer.state[weight]["momentum_buffer"] = torch.full_like(weight, -largest)
            assert not torch.isfinite(weight.sum())
    assert nonfinite_weight(model, optimizer) is None
    last = list(model.parameters())[-1]
    spoilt: Tensor = optimizer.state[last]["momentum_buffer"]
    spoilt.view(-1)[-1] = torch.inf
    assert str(nonfinite_weight(model, optimizer)).startswith("momentum_buffer of 0.")
