"""The training loop, on a text of a few hundred words."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from selfish_rnn.engine.saving import load_sparse
from selfish_rnn.optim import SNTASGD
from selfish_rnn.training import build as optimizers
from selfish_rnn.training.evaluation import evaluate
from selfish_rnn.training.metrics import DivergedError, Listener
from selfish_rnn.training.trainer import Trainer
from tiny_runs import OPTIMIZERS, UPDATES_PER_EPOCH, Recorder, bits, budget_of, tiny_trainer, trained

# So large that the validation loss soon gets worse, and averaging starts.
RESTLESS = {"name": "snt-asgd", "lr": 30.0, "nonmono": 0}


@pytest.fixture
def every_epoch_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The words of the tiny corpus are random: no network gets below the unigram perplexity."""
    monkeypatch.setattr(optimizers, "LEARNED", 100.0)


def nonzero(trainer: Trainer) -> int:
    return sum(int(weight.parameter.count_nonzero()) for weight in trainer.sparsifier.weights)


# Budget, records, determinism


def test_the_budget_is_exact_at_every_update(texts: Path):
    counts = []

    def count(_: object) -> None:
        counts.append((trainer.sparsifier.active_weights, nonzero(trainer) <= budget_of(trainer)))

    trainer = tiny_trainer(texts, Recorder(count), rewire_every=3)
    trainer.run()
    assert counts == [(budget_of(trainer), True)] * 3 * UPDATES_PER_EPOCH


def test_records_tell_every_epoch(texts: Path):
    recorder = trained(texts)
    trainer, records = recorder.trainer, [record.to_json() for record in recorder.epochs]
    assert [record["epoch"] for record in records] == [1, 2, 3]
    assert [record["step"] for record in records] == [10, 20, 30]
    for record in records:
        assert record["active_weights"] == budget_of(trainer)
        assert record["total_weights"] == trainer.sparsifier.total_weights
        assert record["valid_perplexity"] == math.exp(record["valid_loss"])
        assert record["train_perplexity"] == math.exp(record["train_loss"])
        assert record["learning_rate"] == 4.0
        assert (
            set(record["density"]) == set(record["weights_above_0.1"]) == {w.name for w in trainer.sparsifier.weights}
        )
    # Cosine from 0.5 over three updates; every matrix rewires a whole number of weights.
    assert [record["prune_rate"] for record in records] == pytest.approx([0.375, 0.125, 0.0], abs=0.005)
    seconds = [record["seconds"] for record in records]
    assert seconds == sorted(seconds)


def test_the_training_loss_is_the_mean_over_the_tokens_of_an_epoch(texts: Path):
    # Without learning and dropout the loss of an epoch is that of evaluating its text.
    recorder = Recorder()
    changes: dict[str, Any] = {"model": {"dropout": 0.0}, "optimizer": {"name": "sgd", "lr": 1e-30}, "window": 9}
    trainer = tiny_trainer(texts, recorder, epochs=1, **changes)
    expected = evaluate(trainer.model, trainer.corpus.train, batch_size=4, window=9)
    trainer.run()
    assert recorder.epochs[0].train_loss == pytest.approx(expected, rel=1e-6)


def test_progress_is_reported_at_every_update(texts: Path):
    listener = Recorder()
    tiny_trainer(texts, listener, epochs=1).run()
    assert [report.row for report in listener.steps] == [*range(11, 100, 11), 101]
    assert {report.rows for report in listener.steps} == {101}
    assert listener.steps[-1].seconds_left == 0
    assert all(math.isfinite(report.loss) and report.tokens_per_second > 0 for report in listener.steps)


def test_the_same_seed_gives_the_same_bits_and_another_seed_others(texts: Path):
    first = trained(texts)
    torch.rand(7)  # what was drawn before must not matter
    second, other = trained(texts), trained(texts, seed=6)
    weights = [bits(recorder.trainer.weights().tensors) for recorder in (first, second, other)]
    assert weights[0] == weights[1] != weights[2]
    assert bits([best.tensors for best in first.bests]) == bits([best.tensors for best in second.bests])


def test_training_learns_and_the_best_model_is_the_one_told_of(texts: Path):
    recorder = trained(texts, epochs=4, optimizer={"name": "adam", "lr": 0.2})
    trainer, losses = recorder.trainer, [record.valid_loss for record in recorder.epochs]
    best = min(losses)
    assert losses.index(best) < 3, "the last epoch must not be the best for this test to say anything"
    assert losses.index(best) + 1 == trainer.state.best_epoch
    improvements = [loss for index, loss in enumerate(losses) if loss < min(losses[:index], default=math.inf)]
    assert len(improvements) == len(recorder.bests)
    load_sparse(trainer.model, recorder.bests[-1], "best")
    assert evaluate(trainer.model, trainer.corpus.valid, batch_size=4, window=11) == best


def test_static_never_rewires(texts: Path):
    recorder = Recorder()
    trainer = tiny_trainer(texts, recorder, method="static")
    masks = [weight.mask.clone() for weight in trainer.sparsifier.weights]
    trainer.run()
    assert all(torch.equal(weight.mask, mask) for weight, mask in zip(trainer.sparsifier.weights, masks, strict=True))
    assert [record.prune_rate for record in recorder.epochs] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("sparsity", [0.0, 0.97])
def test_extreme_sparsities_train(texts: Path, sparsity: float):
    recorder = trained(texts, sparsity=sparsity, epochs=2)
    assert {record.active_weights for record in recorder.epochs} == {budget_of(recorder.trainer)}


# Averaging


@pytest.mark.usefixtures("every_epoch_counts")
def test_averaging_starts_when_validation_gets_worse_and_validation_then_uses_averages(texts: Path):
    recorder = trained(texts, epochs=6, optimizer=RESTLESS)
    averaging = [record.averaging for record in recorder.epochs]
    losses = [record.valid_loss for record in recorder.epochs]
    worse = next(index for index in range(1, 6) if losses[index] > min(losses[:index]))
    assert averaging == [index > worse for index in range(6)]
    assert not averaging[0]
    assert averaging[-1]
    assert recorder.notes == [f"averaging starts after epoch {worse + 1}"]


@pytest.mark.usefixtures("every_epoch_counts")
def test_the_recorded_loss_is_that_of_the_averages_and_training_goes_on_with_raw_weights(texts: Path):
    # Nothing is rewired after the last epoch of a cosine schedule, so the averages are still those of the record.
    recorder = trained(texts, epochs=6, optimizer=RESTLESS)
    trainer = recorder.trainer
    assert isinstance(trainer.optimizer, SNTASGD)
    assert not trainer.optimizer.averages_swapped_in
    recorded = recorder.epochs[-1].valid_loss
    raw = evaluate(trainer.model, trainer.corpus.valid, batch_size=4, window=11)
    with trainer.optimizer.averaged():
        averaged = evaluate(trainer.model, trainer.corpus.valid, batch_size=4, window=11)
    assert recorded == averaged
    assert raw != averaged


@pytest.mark.usefixtures("every_epoch_counts")
def test_nonmono_makes_the_trigger_wait(texts: Path):
    patient = trained(texts, epochs=4, optimizer={**RESTLESS, "nonmono": 5})
    assert not any(record.averaging for record in patient.epochs)


@pytest.mark.usefixtures("every_epoch_counts")
def test_a_restart_forgets_the_averages(texts: Path):
    kept = trained(texts, epochs=5, optimizer=RESTLESS)
    restarted = trained(texts, epochs=5, optimizer=RESTLESS, restart_at=[4])
    oldest = [
        max(int(state["age"].max()) for state in recorder.trainer.optimizer.state.values())
        for recorder in (kept, restarted)
    ]
    assert oldest[0] > UPDATES_PER_EPOCH
    assert oldest[1] == UPDATES_PER_EPOCH


def test_epochs_at_the_level_of_word_frequencies_do_not_start_averaging(texts: Path):
    recorder = trained(texts, epochs=6, optimizer=RESTLESS)
    losses = [record.valid_loss for record in recorder.epochs]
    assert any(losses[index] > min(losses[:index]) for index in range(1, 6)), "the trigger would fire otherwise"
    assert min(losses) > optimizers.learned_loss(recorder.trainer.corpus)
    assert not any(record.averaging for record in recorder.epochs)
    assert recorder.trainer.optimizer.trigger.losses == []


# Windows, accumulation, penalties


def test_variable_windows_scale_the_learning_rate(texts: Path, monkeypatch: pytest.MonkeyPatch):
    seen: list[tuple[int, float]] = []
    update = Trainer._update

    def watched(self: Trainer, inputs: torch.Tensor, targets: torch.Tensor, scale: float) -> float:
        loss = update(self, inputs, targets, scale)
        seen.append((len(inputs), self.optimizer.param_groups[0]["lr"]))
        return loss

    monkeypatch.setattr(Trainer, "_update", watched)
    trained(texts, epochs=2, variable_window=True)
    assert len({length for length, _ in seen}) > 3
    assert sum(length for length, _ in seen) == 2 * 101
    assert [lr for _, lr in seen] == [pytest.approx(4.0 * length / 11) for length, _ in seen]


def test_fixed_windows_do_not_scale_the_learning_rate(texts: Path):
    trainer = trained(texts, epochs=1).trainer
    assert trainer.optimizer.param_groups[0]["lr"] == 4.0  # although the last window was shorter


def test_sub_batches_give_the_gradient_of_the_whole_batch(texts: Path):
    options: dict[str, Any] = {"model": {"dropout": 0.0}, "ar": 0.5, "tar": 0.5, "clip": None}
    whole = tiny_trainer(texts, **options)
    parts = tiny_trainer(texts, sub_batches=2, **options)
    for start in (0, 11, 22):
        inputs, targets = whole.rows[start : start + 11], whole.rows[start + 1 : start + 12]
        losses = [trainer._update(inputs, targets, 1.0) for trainer in (whole, parts)]
        assert losses[0] == pytest.approx(losses[1], abs=1e-6)
        for left, right in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
            assert left.grad is not None
            torch.testing.assert_close(left.grad, right.grad, rtol=1e-4, atol=1e-6)


def test_penalties_add_to_the_gradient_but_not_to_the_reported_loss(texts: Path):
    def gradients(name: str, **penalties: float) -> tuple[float, torch.Tensor]:
        trainer = tiny_trainer(texts, clip=None, **penalties)
        loss = trainer._update(trainer.rows[:11], trainer.rows[1:12], 1.0)
        weight = next(weight for weight in trainer.sparsifier.weights if weight.name == "rnn.weight_hh_l1")
        assert weight.parameter.grad is not None
        return loss, weight.parameter.grad

    plain_loss, plain = gradients("plain")
    ar_loss, ar = gradients("ar", ar=2.0)
    tar_loss, tar = gradients("tar", tar=3.0)
    both_loss, both = gradients("both", ar=2.0, tar=3.0)
    assert plain_loss == ar_loss == tar_loss == both_loss
    assert not torch.allclose(ar, plain)
    assert not torch.allclose(tar, plain)
    torch.testing.assert_close(both - plain, (ar - plain) + (tar - plain), rtol=1e-3, atol=1e-6)


def test_the_gradient_is_clipped(texts: Path):
    trainer = tiny_trainer(texts, clip=0.001)
    trainer._update(trainer.rows[:11], trainer.rows[1:12], 1.0)
    norms = [parameter.grad.norm() for parameter in trainer.model.parameters() if parameter.grad is not None]
    assert torch.stack(norms).norm().item() == pytest.approx(0.001, rel=1e-3)


# Rewiring, stopping


def test_rewiring_every_so_many_updates(texts: Path):
    changes = []
    trainer = tiny_trainer(
        texts, Recorder(lambda _: changes.append(trainer.sparsifier.rewirings_done)), rewire_every=4, epochs=2
    )
    assert trainer.sparsifier.rewirings == 5
    trainer.run()
    assert changes == [step // 4 for step in range(1, 21)]


def test_early_stop_waits_for_so_many_epochs_without_improvement(texts: Path):
    listener = Recorder()
    trainer = tiny_trainer(texts, listener, epochs=50, early_stop=2, optimizer={"name": "adam", "lr": 0.3})
    trainer.run()
    losses = [report.valid_loss for report in listener.epochs]
    assert len(losses) < 50
    assert len(losses) - 2 == losses.index(min(losses)) + 1 == trainer.state.best_epoch
    assert listener.notes == ["stopped early: no improvement for 2 epochs"]
    assert trainer.state.finished


def test_a_pause_comes_after_every_update_but_not_between_the_last_one_and_the_rewiring(texts: Path):
    recorder = trained(texts, epochs=2)
    assert recorder.pauses == list(range(1, 21))
    rewired = []

    class AtPause(Listener):
        def on_pause(self, trainer: Trainer) -> None:
            rewired.append(trainer.sparsifier.rewirings_done)

    tiny_trainer(texts, AtPause(), epochs=2).run()
    assert rewired == [0] * 9 + [1] * 10 + [2]


class EnoughError(Exception):
    """A listener has seen enough."""


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("at", [4, 10, 17])
def test_from_the_state_at_a_pause_another_trainer_goes_on_to_the_same_bits(texts: Path, optimizer: str, at: int):
    changes: dict[str, Any] = {"optimizer": OPTIMIZERS[optimizer], "variable_window": True, "epochs": 3}

    class StopAt(Listener):
        def on_pause(self, trainer: Trainer) -> None:
            if trainer.state.step == at:
                raise EnoughError

    whole = trained(texts, **changes)
    first, recorder = tiny_trainer(texts, StopAt(), **changes), Recorder()
    with pytest.raises(EnoughError):
        first.run()
    state = first.state_dict()
    assert "topologies" not in state["sparsifier"], "they are saved with the weights"
    second = tiny_trainer(texts, recorder, **changes)
    second.load_state_dict(state)
    second.run()
    assert bits(second.weights().tensors) == bits(whole.trainer.weights().tensors)
    assert recorder.epochs[-1].valid_loss == whole.epochs[-1].valid_loss


# What goes wrong


def test_divergence_is_an_error(texts: Path):
    wild = tiny_trainer(texts, optimizer={"name": "sgd", "lr": 1e6, "weight_decay": 1e6}, clip=None)
    with pytest.raises(DivergedError, match=r"(loss became|gradient is infinite|NaN or infinity) .*update \d"):
        wild.run()


def test_a_loss_that_is_not_a_number_changes_no_weight(texts: Path, monkeypatch: pytest.MonkeyPatch):
    trainer = tiny_trainer(texts)
    before = bits(trainer.weights().tensors)
    monkeypatch.setattr(trainer.model, "loss", lambda output, targets: output.sum() * math.nan)
    with pytest.raises(DivergedError, match="training loss became nan at update 1"):
        trainer.run()
    assert bits(trainer.weights().tensors) == before


@pytest.mark.parametrize("clip", [None, 0.25])
def test_a_gradient_that_is_not_a_number_reaches_no_weight(texts: Path, clip: float | None):
    trainer = tiny_trainer(texts, clip=clip)
    loss = trainer.model.loss

    def spoiled(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        value = loss(output, targets)
        if trainer.state.step == 4:
            value.register_hook(lambda gradient: gradient * math.nan)
        return value

    trainer.model.loss = spoiled  # type: ignore[method-assign]
    with pytest.raises(DivergedError, match=r"gradient of embedding\.weight contains NaN or infinity at update 5$"):
        trainer.run()
    assert all(tensor.isfinite().all() for tensor in trainer.weights().tensors.values())


def test_a_validation_loss_that_is_not_a_number_is_never_the_best(texts: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("selfish_rnn.training.trainer.evaluate", lambda *_, **__: math.nan)
    recorder = Recorder()
    with pytest.raises(DivergedError, match="validation loss became nan after epoch 1"):
        tiny_trainer(texts, recorder).run()
    assert recorder.bests == recorder.epochs == []
    assert recorder.pauses == list(range(1, 10))


def test_a_budget_that_is_not_kept_is_a_programming_error(texts: Path, monkeypatch: pytest.MonkeyPatch):
    trainer = tiny_trainer(texts)
    budget = budget_of(trainer)

    def lose_one() -> None:
        mask = trainer.sparsifier.weights[0].mask
        mask.view(-1)[mask.view(-1).nonzero()[0]] = 0

    monkeypatch.setattr(trainer.sparsifier, "rewire", lose_one)
    with pytest.raises(RuntimeError, match=rf"has {budget - 1} weights .*budget is {budget}"):
        trainer.run()
