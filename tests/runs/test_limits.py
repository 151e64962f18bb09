"""Networks that do not fit into memory, and numbers that are none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from selfish_rnn.cli import main
from selfish_rnn.errors import UserError
from selfish_rnn.runs.checkpoints import CheckpointStore
from selfish_rnn.runs.run import DivergedRunError
from selfish_rnn.training import engine_choice
from selfish_rnn.training.metrics import DivergedError
from tiny_runs import Recorder, tiny_experiment, tiny_run, tiny_words

# Memory


@pytest.mark.parametrize("engine", ["masked", "packed"])
def test_a_network_that_cannot_fit_is_refused_before_any_of_it_is_made(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    needed = engine_choice.needed_memory(tiny_experiment(texts, engine=engine), 19, engine)
    monkeypatch.setattr(engine_choice, "available_memory", lambda: needed - 1)
    with pytest.raises(UserError, match=rf"engine={engine} takes at least .* GiB are free"):
        tiny_run(texts, tmp_path / "run", engine=engine)
    assert not (tmp_path / "run").exists()
    monkeypatch.setattr(engine_choice, "available_memory", lambda: needed)
    tiny_run(texts, tmp_path / "run", engine=engine)


def test_the_largest_model_that_settings_allow_is_refused_at_once(texts: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="takes at least"):
        tiny_run(
            texts, tmp_path / "run", model={"name": "stacked-lstm", "hidden": 10**6, "embedding": 10**6, "layers": 9}
        )


# Numbers that are none


def spoiled(texts: Path, path: Path, where: Callable[[Any], torch.Tensor], **changes: Any) -> str:
    def spoil(_: object) -> None:
        if recorder.trainer.state.step == 15:
            where(recorder.trainer).detach().flatten()[0] = torch.nan

    recorder = Recorder(spoil)
    with pytest.raises(DivergedRunError) as caught:
        tiny_run(texts, path, checkpoint_every=1e-9, **changes).train(recorder)
    assert caught.value.exit_code == 3
    assert isinstance(caught.value.__cause__, DivergedError)
    return str(caught.value)


@pytest.mark.parametrize("engine", ["masked", "packed"])
def test_a_weight_that_is_no_number_never_gets_into_a_checkpoint(texts: Path, tmp_path: Path, engine: str) -> None:
    path = tmp_path / "run"
    message = spoiled(texts, path, lambda trainer: next(trainer.model.parameters()), engine=engine)
    assert "contains NaN or infinity after update 15" in message
    assert "the last good checkpoint, of update 14, is kept" in message
    assert "smaller optimizer.lr" in message
    state = CheckpointStore(path / "checkpoints").load().state
    assert all(tensor.isfinite().all() for tensor in state["trainer"]["model"].values())


def test_an_average_that_is_no_number_is_found(texts: Path, tmp_path: Path) -> None:
    def average(trainer: Any) -> torch.Tensor:
        weight = next(trainer.model.parameters())
        state = trainer.optimizer.state[weight]
        return next(
            value for value in state.values() if isinstance(value, torch.Tensor) and value.shape == weight.shape
        )

    optimizer = {"name": "adam", "lr": 0.01}
    message = spoiled(texts, tmp_path / "run", average, optimizer=optimizer)
    assert "contains NaN or infinity after update 15" in message


def test_a_gradient_that_is_no_number_is_named_at_its_update(texts: Path, tmp_path: Path) -> None:
    def spoil(_: object) -> None:
        trainer = recorder.trainer
        if trainer.state.step == 15:
            weight = next(trainer.model.parameters())
            weight.register_hook(lambda gradient: gradient * torch.nan)

    recorder = Recorder(spoil)
    with pytest.raises(DivergedRunError, match=r"gradient of embedding\.weight contains NaN or infinity at update 16;"):
        tiny_run(texts, tmp_path / "run").train(recorder)


def test_a_run_that_diverges_ends_the_command_with_its_own_code(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = tiny_words(texts, optimizer={"name": "sgd", "lr": 1e6}, clip=None, sparsity=0.1)
    monkeypatch.setattr("sys.argv", ["selfish-rnn", "train", *words, "--run", str(tmp_path / "run")])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 3
    assert "error: training diverged:" in capsys.readouterr().err
