"""Sparse training under the Trainer of Hugging Face transformers (the extra ``transformers``)."""

from __future__ import annotations

import base64
import math
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from selfish_rnn.integrations.epochs import Engine, SparseEpochs, averaging, observed
from selfish_rnn.sparsifier import Sparsifier


class SelfishTrainerCallback(TrainerCallback, ExportableState):
    """Makes the model of a ``Trainer`` sparse, and rewires it between epochs.

    ::

        callback = SelfishTrainerCallback(sparsity=0.9, engine="packed")
        trainer = Trainer(model, arguments, train_dataset=data, callbacks=[callback])
        trainer.train()
        print(callback.sparsifier.summary())

    The topology goes into ``trainer_state.json`` of every checkpoint, and ``trainer.train(resume_from_checkpoint=...)``
    goes on with it. Another ``train`` with the same model starts the schedule again, for its number of epochs. With
    :class:`~selfish_rnn.SNTASGD` and ``eval_strategy="epoch"`` evaluations see the averages.

    Args:
        engine: ``"masked"``, or ``"packed"`` to store and multiply existing weights only. Packed models are made in the
            constructor of the Trainer, so the callback has to be given there.
        monitor: the metric that tells :class:`~selfish_rnn.SNTASGD` when to start averaging.
        settings: of the :class:`~selfish_rnn.Sparsifier`; ``rewirings`` is ``num_train_epochs``.
    """

    def __init__(self, *, engine: Engine = "masked", monitor: str = "eval_loss", **settings: Any) -> None:
        self._epochs = SparseEpochs(engine, settings)
        self._monitor = monitor
        self._steps_per_epoch = 0

    @property
    def sparsifier(self) -> Sparsifier:
        """Sparsifier, bound to the model since the Trainer was made."""
        return self._epochs.sparsifier

    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: Any, **context: Any) -> None:
        self._epochs.bind(context["model"], math.ceil(args.num_train_epochs))

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: Any, **context: Any) -> None:
        self.on_init_end(args, state, control, **context)  # unless that was before the callback was added
        self._epochs.begin_training(math.ceil(args.num_train_epochs), state.global_step)
        self._steps_per_epoch = math.ceil(len(context["train_dataloader"]) / args.gradient_accumulation_steps)
        if state.global_step:
            saved = state.stateful_callbacks.get(type(self).__name__)
            if saved is None:
                raise ValueError(
                    "the checkpoint was made without this callback and has no topology: load its model yourself, and "
                    'give the callback topology="nonzero" if it is sparse'
                )
            self.sparsifier.load_state_dict(_from_json(saved["attributes"]["sparsifier"]))

    def on_epoch_begin(self, args: TrainingArguments, state: TrainerState, control: Any, **context: Any) -> None:
        self._epochs.begin_epoch(state.global_step // self._steps_per_epoch, [context["optimizer"]])

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: Any, **context: Any) -> None:
        if (state.global_step + 1) % self._steps_per_epoch == 0:
            self._epochs.begin_last_pass()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: Any, **context: Any) -> None:
        self._epochs.end_last_pass()
        self.on_epoch_end(args, state, control, **context)  # an evaluation may follow a step, too

    def on_epoch_end(self, args: TrainingArguments, state: TrainerState, control: Any, **context: Any) -> None:
        if control.should_evaluate:
            self._epochs.show_averages([context["optimizer"]])

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: Any, **context: Any) -> None:
        self._epochs.hide_averages()
        for optimizer in averaging([context["optimizer"]]):
            optimizer.observe(observed(context["metrics"], self._monitor))

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: Any, **context: Any) -> None:
        self._epochs.end()

    def state(self) -> dict[str, Any]:
        """Return the entry of ``trainer_state.json``."""
        bound = hasattr(self._epochs, "sparsifier")  # the Trainer asks before it has a model to bind
        return {"args": {}, "attributes": {"sparsifier": _to_json(self.sparsifier.state_dict())} if bound else {}}


def _to_json(value: Any) -> Any:
    """Return a state with its tensors as text."""
    if isinstance(value, Tensor):
        data = base64.b64encode(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        return {"dtype": str(value.dtype).removeprefix("torch."), "shape": list(value.shape), "base64": data.decode()}
    return {key: _to_json(item) for key, item in value.items()} if isinstance(value, dict) else value


def _from_json(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if value.keys() == {"dtype", "shape", "base64"}:
        data = torch.frombuffer(bytearray(base64.b64decode(value["base64"])), dtype=torch.uint8)
        return data.view(getattr(torch, value["dtype"])).view(value["shape"])
    return {key: _from_json(item) for key, item in value.items()}
