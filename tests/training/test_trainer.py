"""The training loop, on a text of a few hundred words."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from selfish_rnn.errors import UserError
from selfish_rnn.optim import SNTASGD
from selfish_rnn.runs.checkpoints import load_tensors
from selfish_rnn.runs.saved_weights import load_portable_weights, portable_weights
from selfish_rnn.training.evaluation import evaluate, perplexity
from selfish_rnn.training.stop import Interrupted
from selfish_rnn.training.trainer import Trainer
from tiny_runs import UPDATES_PER_EPOCH, Recorder, bits, budget_of, tiny_trainer, trained

# So large that the validation loss soon gets worse, and averaging starts.
RESTLESS = {"name": "snt-asgd", "lr": 30.0, "nonmono": 0}


def nonzero(trainer: Trainer) -> int:
    return sum(int(weight.parameter.count_nonzero()) for weight in trainer.sparsifier.weights)


# Budget, records, determinism


def test_the_budget_is_exact_at_every_update(texts: Path, tmp_path: Path):
    counts = []

    def count(_: object) -> None:
        counts.append((trainer.sparsifier.active_weights, nonzero(trainer) <= budget_of(trainer)))

    trainer = tiny_trainer(texts, tmp_path, Recorder(count), rewire_every=3)
    trainer.run()
    assert counts == [(budget_of(trainer), True)] * 3 * UPDATES_PER_EPOCH


def test_metrics_tell_every_epoch(texts: Path, tmp_path: Path):
    listener = Recorder()
    trainer = tiny_trainer(texts, tmp_path, listener)
    trainer.run()
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [record["epoch"] for record in records] == [1, 2, 3]
    assert [record["step"] for record in records] == [10, 20, 30]
    for record, report in zip(records, listener.epochs, strict=True):
        assert record["active_weights"] == budget_of(trainer)
        assert record["total_weights"] == trainer.sparsifier.total_weights
        assert record["valid_loss"] == report.valid_loss
        assert record["valid_perplexity"] == perplexity(record["valid_loss"])
        assert record["train_perplexity"] == perplexity(record["train_loss"])
        assert record["learning_rate"] == 4.0
        assert (
            set(record["density"]) == set(record["weights_above_0.1"]) == {w.name for w in trainer.sparsifier.weights}
        )
    # Cosine from 0.5 over three updates; every matrix rewires a whole number of weights.
    assert [record["prune_rate"] for record in records] == pytest.approx([0.375, 0.125, 0.0], abs=0.005)
    seconds = [record["seconds"] for record in records]
    assert seconds == sorted(seconds)


def test_the_training_loss_is_the_mean_over_the_tokens_of_an_epoch(texts: Path, tmp_path: Path):
    # Without learning and dropout the loss of an epoch is that of evaluating its text.
    trainer = tiny_trainer(
        texts, tmp_path, epochs=1, model={"dropout": 0.0}, optimizer={"name": "sgd", "lr": 1e-30}, window=9
    )
    expected = evaluate(trainer.model, trainer.corpus.train, batch_size=4, window=9)
    trainer.run()
    assert trainer.folder.metrics.read()[0]["train_loss"] == pytest.approx(expected, rel=1e-6)


def test_events_hold_what_the_metrics_do(texts: Path, tmp_path: Path):
    trainer = trained(texts, tmp_path)
    events = EventAccumulator(str(tmp_path / "events"))
    events.Reload()
    records = trainer.folder.metrics.read()
    for tag, key in (("loss/valid", "valid_loss"), ("perplexity/train", "train_perplexity")):
        scalars = events.Scalars(tag)
        assert [scalar.step for scalar in scalars] == [10, 20, 30]
        assert [scalar.value for scalar in scalars] == pytest.approx([record[key] for record in records], rel=1e-6)
    tags = set(events.Tags()["scalars"])
    assert {"rewiring/prune_rate", "density/rnn.weight_hh_l0/forget", "weights_above_0.1/decoder.weight"} <= tags


def test_progress_is_reported_at_every_update(texts: Path, tmp_path: Path):
    listener = Recorder()
    tiny_trainer(texts, tmp_path, listener, epochs=1).run()
    assert [report.row for report in listener.steps] == [*range(11, 100, 11), 101]
    assert {report.rows for report in listener.steps} == {101}
    assert listener.steps[-1].seconds_left == 0
    assert all(math.isfinite(report.loss) and report.tokens_per_second > 0 for report in listener.steps)


def test_the_same_seed_gives_the_same_bits_and_another_seed_others(texts: Path, tmp_path: Path):
    first = trained(texts, tmp_path / "first")
    torch.rand(7)  # what was drawn before must not matter
    second = trained(texts, tmp_path / "second")
    other = trained(texts, tmp_path / "other", seed=6)
    assert bits(portable_weights(first.model, [])) == bits(portable_weights(second.model, []))
    assert (tmp_path / "first/model.safetensors").read_bytes() == (tmp_path / "second/model.safetensors").read_bytes()
    assert bits(portable_weights(first.model, [])) != bits(portable_weights(other.model, []))


def test_training_learns_and_the_best_model_is_the_one_kept(texts: Path, tmp_path: Path):
    trainer = trained(texts, tmp_path, epochs=4, optimizer={"name": "adam", "lr": 0.2})
    losses = [record["valid_loss"] for record in trainer.folder.metrics.read()]
    best = min(losses)
    assert losses.index(best) < 3, "the last epoch must not be the best for this test to say anything"
    tensors, metadata = load_tensors(tmp_path / "model.safetensors")
    assert metadata["epoch"] == str(losses.index(best) + 1) == str(trainer.position.best_epoch)
    load_portable_weights(trainer.model, tensors, "model.safetensors")
    assert evaluate(trainer.model, trainer.corpus.valid, batch_size=4, window=11) == best


def test_static_never_rewires(texts: Path, tmp_path: Path):
    trainer = tiny_trainer(texts, tmp_path, method="static")
    masks = [weight.mask.clone() for weight in trainer.sparsifier.weights]
    trainer.run()
    assert all(torch.equal(weight.mask, mask) for weight, mask in zip(trainer.sparsifier.weights, masks, strict=True))
    assert [record["prune_rate"] for record in trainer.folder.metrics.read()] == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("sparsity", [0.0, 0.97])
def test_extreme_sparsities_train(texts: Path, tmp_path: Path, sparsity: float):
    trainer = trained(texts, tmp_path, sparsity=sparsity, epochs=2)
    assert {record["active_weights"] for record in trainer.folder.metrics.read()} == {budget_of(trainer)}


# Averaging


def test_averaging_starts_when_validation_gets_worse_and_validation_then_uses_averages(texts: Path, tmp_path: Path):
    listener = Recorder()
    trainer = tiny_trainer(texts, tmp_path, listener, epochs=6, optimizer=RESTLESS)
    trainer.run()
    records = trainer.folder.metrics.read()
    averaging = [record["averaging"] for record in records]
    losses = [record["valid_loss"] for record in records]
    worse = next(index for index in range(1, 6) if losses[index] > min(losses[:index]))
    assert averaging == [index > worse for index in range(6)]
    assert not averaging[0]
    assert averaging[-1]
    assert listener.notes == [f"averaging starts after epoch {worse + 1}"]


def test_the_recorded_loss_is_that_of_the_averages_and_training_goes_on_with_raw_weights(texts: Path, tmp_path: Path):
    # Nothing is rewired after the last epoch of a cosine schedule, so the averages are still those of the record.
    trainer = trained(texts, tmp_path, epochs=6, optimizer=RESTLESS)
    assert isinstance(trainer.optimizer, SNTASGD)
    assert not trainer.optimizer.averages_swapped_in
    recorded = trainer.folder.metrics.read()[-1]["valid_loss"]
    raw = evaluate(trainer.model, trainer.corpus.valid, batch_size=4, window=11)
    with trainer.optimizer.averaged():
        averaged = evaluate(trainer.model, trainer.corpus.valid, batch_size=4, window=11)
    assert recorded == averaged
    assert raw != averaged


def test_nonmono_makes_the_trigger_wait(texts: Path, tmp_path: Path):
    patient = trained(texts, tmp_path, epochs=4, optimizer={**RESTLESS, "nonmono": 5})
    assert not any(record["averaging"] for record in patient.folder.metrics.read())


def test_a_restart_forgets_the_averages(texts: Path, tmp_path: Path):
    kept = trained(texts, tmp_path / "kept", epochs=5, optimizer=RESTLESS)
    restarted = trained(texts, tmp_path / "restarted", epochs=5, optimizer=RESTLESS, restart_at=[4])
    oldest = [
        max(int(state["age"].max()) for state in trainer.optimizer.state.values()) for trainer in (kept, restarted)
    ]
    assert oldest[0] > UPDATES_PER_EPOCH
    assert oldest[1] == UPDATES_PER_EPOCH


# Windows, accumulation, penalties


def test_variable_windows_scale_the_learning_rate(texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    seen: list[tuple[int, float]] = []
    update = Trainer._update

    def watched(self: Trainer, inputs: torch.Tensor, targets: torch.Tensor, scale: float) -> float:
        loss = update(self, inputs, targets, scale)
        seen.append((len(inputs), self.optimizer.param_groups[0]["lr"]))
        return loss

    monkeypatch.setattr(Trainer, "_update", watched)
    trained(texts, tmp_path, epochs=2, variable_window=True)
    assert len({length for length, _ in seen}) > 3
    assert sum(length for length, _ in seen) == 2 * 101
    assert [lr for _, lr in seen] == [pytest.approx(4.0 * length / 11) for length, _ in seen]


def test_fixed_windows_do_not_scale_the_learning_rate(texts: Path, tmp_path: Path):
    trainer = trained(texts, tmp_path, epochs=1)
    assert trainer.optimizer.param_groups[0]["lr"] == 4.0  # although the last window was shorter


def test_sub_batches_give_the_gradient_of_the_whole_batch(texts: Path, tmp_path: Path):
    options: dict[str, Any] = {"model": {"dropout": 0.0}, "ar": 0.5, "tar": 0.5, "clip": None}
    whole = tiny_trainer(texts, tmp_path / "whole", **options)
    parts = tiny_trainer(texts, tmp_path / "parts", sub_batches=2, **options)
    for start in (0, 11, 22):
        inputs, targets = whole.rows[start : start + 11], whole.rows[start + 1 : start + 12]
        losses = [trainer._update(inputs, targets, 1.0) for trainer in (whole, parts)]
        assert losses[0] == pytest.approx(losses[1], abs=1e-6)
        for left, right in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
            assert left.grad is not None
            torch.testing.assert_close(left.grad, right.grad, rtol=1e-4, atol=1e-6)


def test_penalties_add_to_the_gradient_but_not_to_the_reported_loss(texts: Path, tmp_path: Path):
    def gradients(name: str, **penalties: float) -> tuple[float, torch.Tensor]:
        trainer = tiny_trainer(texts, tmp_path / name, clip=None, **penalties)
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


def test_the_gradient_is_clipped(texts: Path, tmp_path: Path):
    trainer = tiny_trainer(texts, tmp_path, clip=0.001)
    trainer._update(trainer.rows[:11], trainer.rows[1:12], 1.0)
    norms = [parameter.grad.norm() for parameter in trainer.model.parameters() if parameter.grad is not None]
    assert torch.stack(norms).norm().item() == pytest.approx(0.001, rel=1e-3)


# Rewiring, stopping


def test_rewiring_every_so_many_updates(texts: Path, tmp_path: Path):
    changes = []
    trainer = tiny_trainer(
        texts, tmp_path, Recorder(lambda _: changes.append(trainer.sparsifier.rewirings_done)), rewire_every=4, epochs=2
    )
    assert trainer.sparsifier.rewirings == 5
    trainer.run()
    assert changes == [step // 4 for step in range(1, 21)]


def test_early_stop_waits_for_so_many_epochs_without_improvement(texts: Path, tmp_path: Path):
    listener = Recorder()
    trainer = tiny_trainer(texts, tmp_path, listener, epochs=50, early_stop=2, optimizer={"name": "adam", "lr": 0.3})
    trainer.run()
    losses = [report.valid_loss for report in listener.epochs]
    assert len(losses) < 50
    assert len(losses) - 2 == losses.index(min(losses)) + 1 == trainer.position.best_epoch
    assert listener.notes == ["stopped early: no improvement for 2 epochs"]
    assert trainer.position.finished


def test_a_request_to_stop_leaves_a_checkpoint_of_that_update(texts: Path, tmp_path: Path):
    def stop(report: object) -> None:
        trainer._stop.requested = trainer.position.step == 13

    trainer = tiny_trainer(texts, tmp_path, Recorder(stop))
    with pytest.raises(Interrupted):
        trainer.run()
    assert trainer.folder.checkpoints.steps() == [10, 13]


# What goes wrong


def test_divergence_is_the_users_error_that_keeps_the_last_checkpoint(texts: Path, tmp_path: Path):
    trainer = trained(texts, tmp_path, epochs=1)
    kept = trainer.folder.checkpoints.load()
    wild = tiny_trainer(texts, tmp_path, epochs=3, optimizer={"name": "sgd", "lr": 1e30}, clip=None)
    with pytest.raises(UserError) as caught:
        wild.run()
    text = str(caught.value)
    assert re.search("(loss|norm of the gradient) became", text)
    assert "the last good checkpoint, of update 10, is kept" in text
    assert "Try a smaller optimizer.lr (now 1e+30)" in text
    assert "clip (now None)" in text
    after = trainer.folder.checkpoints.load()
    assert (after.step, bits(after.state)) == (kept.step, bits(kept.state))


def test_a_loss_that_is_not_a_number_changes_no_weight(texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    trainer = tiny_trainer(texts, tmp_path)
    before = bits(portable_weights(trainer.model, []))
    monkeypatch.setattr(trainer.model, "loss", lambda output, targets: output.sum() * math.nan)
    with pytest.raises(
        UserError, match=r"training loss became nan at update 1; there is no checkpoint yet.*optimizer.lr"
    ):
        trainer.run()
    assert bits(portable_weights(trainer.model, [])) == before


@pytest.mark.parametrize("clip", [None, 0.25])
def test_a_gradient_that_is_not_a_number_reaches_no_checkpoint(texts: Path, tmp_path: Path, clip: float | None):
    trainer = tiny_trainer(texts, tmp_path, clip=clip, checkpoint_every=1e-9)
    loss = trainer.model.loss

    def spoiled(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        value = loss(output, targets)
        if trainer.position.step == 4:
            value.register_hook(lambda gradient: gradient * math.nan)
        return value

    trainer.model.loss = spoiled  # type: ignore[method-assign]
    with pytest.raises(UserError, match=r"gradient became nan at update 5; the last good checkpoint, of update 4, is"):
        trainer.run()
    kept = trainer.folder.checkpoints.load()
    assert kept.step == 4
    assert all(tensor.isfinite().all() for tensor in kept.state["model"].values())


def test_a_validation_loss_that_is_not_a_number_stops_before_the_checkpoint(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("selfish_rnn.training.trainer.evaluate", lambda *_, **__: math.nan)
    trainer = tiny_trainer(texts, tmp_path)
    with pytest.raises(UserError, match="validation loss became nan after epoch 1"):
        trainer.run()
    assert trainer.folder.checkpoints.steps() == []
    assert not trainer.folder.model.exists()


def test_a_budget_that_is_not_kept_is_a_programming_error(texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    trainer = tiny_trainer(texts, tmp_path)
    budget = budget_of(trainer)

    def lose_one() -> None:
        mask = trainer.sparsifier.weights[0].mask
        mask.view(-1)[mask.view(-1).nonzero()[0]] = 0

    monkeypatch.setattr(trainer.sparsifier, "rewire", lose_one)
    with pytest.raises(RuntimeError, match=rf"has {budget - 1} weights .*budget is {budget}"):
        trainer.run()
