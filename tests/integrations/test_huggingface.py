"""The Trainer of transformers trains sparse models, and resumes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from framework_cases import ENGINES, Classifier, examples, same
from torch import Tensor, nn

from selfish_rnn import SNTASGD

pytest.importorskip("transformers", reason="needs the extra transformers")
pytest.importorskip("accelerate", reason="needs the extra transformers")
from transformers import Trainer, TrainingArguments, set_seed

from selfish_rnn.integrations.huggingface import SelfishTrainerCallback

pytestmark = pytest.mark.slow

EPOCHS = 4


class WithLoss(Classifier):
    seen: bool | None = None

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        scores = super().forward(x)
        return {"loss": nn.functional.cross_entropy(scores, labels), "logits": scores}


def train(
    callback: SelfishTrainerCallback, folder: Path, optimizer: str = "adam", checkpoint: Path | None = None, **more: Any
) -> tuple[WithLoss, Trainer]:
    set_seed(1)
    model = WithLoss()
    arguments = TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=8,
        save_strategy="epoch",
        eval_strategy="epoch",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    data = [{"x": x, "labels": label} for x, label in examples()]
    if optimizer == "snt-asgd":
        more["optimizer_cls_and_kwargs"] = (SNTASGD, {"lr": 1.0, "nonmono": 0})
    trainer = Trainer(model, arguments, train_dataset=data, eval_dataset=data, callbacks=[callback], **more)
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    return model, trainer


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("method", "optimizer"), [("selfish", "snt-asgd"), ("rigl", "adam")])
def test_a_resumed_training_is_bit_identical(engine: Any, method: str, optimizer: str, tmp_path: Path) -> None:
    callback = SelfishTrainerCallback(sparsity=0.7, method=method, engine=engine)
    model, trainer = train(callback, tmp_path / "first", optimizer)
    again = SelfishTrainerCallback(sparsity=0.7, method=method, engine=engine)
    resumed, _ = train(again, tmp_path / "second", optimizer, tmp_path / "first" / "checkpoint-10")
    assert same(model, resumed)
    assert callback.sparsifier.rewirings_done == again.sparsifier.rewirings_done == EPOCHS - 1
    assert callback.sparsifier.active_weights == round(0.3 * 792)
    if optimizer == "snt-asgd":
        assert len(trainer.optimizer.optimizer.trigger.losses) == EPOCHS


def test_evaluations_see_averages(tmp_path: Path) -> None:
    seen = []

    class Looking(Trainer):  # type: ignore[misc]
        def evaluate(self, *args: Any, **kwargs: Any) -> Any:
            seen.append(self.optimizer.optimizer.averages_swapped_in)
            return super().evaluate(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "Trainer", Looking)
        _, trainer = train(SelfishTrainerCallback(sparsity=0.7), tmp_path, "snt-asgd")
    assert seen == [True] * EPOCHS
    assert not trainer.optimizer.optimizer.averages_swapped_in


def test_a_checkpoint_without_a_topology_is_refused(tmp_path: Path) -> None:
    train(SelfishTrainerCallback(sparsity=0.7), tmp_path / "first")
    state = tmp_path / "first" / "checkpoint-10" / "trainer_state.json"
    state.write_text(state.read_text().replace("SelfishTrainerCallback", "OtherCallback"))
    with pytest.raises(ValueError, match="made without this callback and has no topology"):
        train(SelfishTrainerCallback(sparsity=0.7), tmp_path / "second", checkpoint=state.parent)


def test_a_callback_may_be_added_later(tmp_path: Path) -> None:
    arguments = TrainingArguments(str(tmp_path), num_train_epochs=2, report_to=[], disable_tqdm=True, use_cpu=True)
    trainer = Trainer(WithLoss(), arguments, train_dataset=[{"x": x, "labels": label} for x, label in examples()])
    callback = SelfishTrainerCallback(sparsity=0.7)
    trainer.add_callback(callback)
    trainer.train()
    assert callback.sparsifier.rewirings_done == 1
    assert sum(int(each.count_nonzero()) for each in trainer.model.parameters() if each.ndim > 1) == round(0.3 * 792)
    assert torch.isfinite(torch.cat([each.flatten() for each in trainer.model.parameters()])).all()


@pytest.mark.parametrize("engine", ENGINES)
def test_another_training_with_the_same_callback_rewires_again(engine: Any, tmp_path: Path) -> None:
    callback = SelfishTrainerCallback(sparsity=0.7, engine=engine)
    model, trainer = train(callback, tmp_path / "first")
    for again in (trainer, None):
        before = callback.sparsifier.masks()
        if again is None:  # a new Trainer with the same model
            again = Trainer(
                model, trainer.args, train_dataset=trainer.train_dataset, eval_dataset=trainer.eval_dataset,
                callbacks=[callback],
            )  # fmt: skip
            assert callback.sparsifier.rewirings_done == EPOCHS  # only a training starts again
        again.args.num_train_epochs = EPOCHS + 1
        again.train()
        assert callback.sparsifier.rewirings_done == EPOCHS
        assert callback.sparsifier.rewirings == EPOCHS + 1
        assert any((mask != before[name]).any() for name, mask in callback.sparsifier.masks().items())
        assert callback.sparsifier.active_weights == round(0.3 * 792)
