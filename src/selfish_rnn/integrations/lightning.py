"""Sparse training under Lightning (the extra ``lightning``)."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from selfish_rnn.integrations.epochs import Engine, SparseEpochs, averaging, observed
from selfish_rnn.sparsifier import Sparsifier

WEIGHT_AVERAGING = {"StochasticWeightAveraging", "WeightAveraging"}
"""Callbacks that average parameters, in both packages of Lightning, and the bases of others."""


class SelfishCallback(Callback):
    """Makes the module that is fitted sparse, and rewires it between epochs.

    ::

        callback = SelfishCallback(sparsity=0.9, engine="packed")
        trainer = Trainer(max_epochs=20, callbacks=[callback])
        trainer.fit(module, loader)
        print(callback.sparsifier.summary())

    The topology goes into Lightning's checkpoints, and ``trainer.fit(..., ckpt_path=...)`` goes on bit-identically.
    ``trainer.test(module, ..., ckpt_path=...)``, ``validate`` and ``predict`` read them in a new process, too; a packed
    checkpoint needs the callback there. Another ``fit`` with the same module starts the schedule again, for the epochs
    of its trainer. With :class:`~selfish_rnn.SNTASGD` validations and tests see the averages while its optimizer is
    there, which is in the process that trained.

    Args:
        engine: ``"masked"``, or ``"packed"`` to store and multiply existing weights only.
        monitor: the logged validation loss that tells :class:`~selfish_rnn.SNTASGD` when to start averaging.
        settings: of the :class:`~selfish_rnn.Sparsifier`; ``rewirings`` is the trainer's ``max_epochs``.

    Layers are made in the module's ``__init__``, before the callback sees it.
    """

    def __init__(self, *, engine: Engine = "masked", monitor: str | None = None, **settings: Any) -> None:
        self._epochs = SparseEpochs(engine, settings)
        self._packed = engine == "packed"
        self._monitor = monitor
        self._training = True

    @property
    def sparsifier(self) -> Sparsifier:
        """Sparsifier, bound to the module since ``fit`` began or a checkpoint was loaded."""
        return self._epochs.sparsifier

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit":
            self._epochs.bind_when_loaded(pl_module)
            return
        averages = [
            callback
            for callback in trainer.callbacks
            if WEIGHT_AVERAGING & {base.__name__ for base in type(callback).__mro__}
        ]
        if averages and self._packed:
            raise ValueError(
                f"{type(averages[0]).__name__} would average packed weights of different positions: use "
                'engine="masked", or the optimizer selfish_rnn.SNTASGD, which averages every weight since it grew'
            )
        epochs = None if trainer.max_epochs in (None, -1) else trainer.max_epochs
        self._epochs.bind(pl_module, epochs)
        self._epochs.begin_training(epochs, trainer.current_epoch)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._epochs.stop_waiting()

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._monitor is None and any(not optimizer.averaging for optimizer in averaging(trainer.optimizers)):
            warnings.warn(
                "the optimizer starts to average when a validation loss stops improving: name it with "
                'SelfishCallback(monitor="val_loss"), or call its observe() or start_averaging()',
                stacklevel=2,
            )

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._epochs.register_wrapper(trainer.strategy.model)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._epochs.begin_epoch(trainer.current_epoch, trainer.optimizers)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if trainer.is_last_batch:
            self._epochs.begin_last_pass()

    def on_train_batch_end(self, trainer: Trainer, *args: Any) -> None:
        self._epochs.end_last_pass()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._epochs.show_averages(trainer.optimizers)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._epochs.hide_averages()
        if self._monitor is None or trainer.sanity_checking or trainer.state.fn != "fit":
            return
        for optimizer in averaging(trainer.optimizers):
            loss = torch.tensor(observed(trainer.callback_metrics, self._monitor), device=pl_module.device)
            optimizer.observe(float(trainer.strategy.reduce(loss, reduce_op="mean")))  # the same on all ranks

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._epochs.show_averages(trainer.optimizers)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._epochs.hide_averages()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._epochs.end_last_pass()
        self._epochs.hide_averages()

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._epochs.end()

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self._training = trainer.state.fn == "fit"
        groups = [state["param_groups"][0] for state in checkpoint.get("optimizer_states", ()) if state["param_groups"]]
        if not self._training and any(group.get("trigger", {}).get("fired") for group in groups):
            warnings.warn(
                f"{trainer.state.fn.value} sees the raw weights of the checkpoint, not the averages of its optimizer: "
                "evaluate in the process that trained, or load the state of the optimizer and evaluate inside its "
                "averaged()",
                stacklevel=2,
            )

    def state_dict(self) -> dict[str, Any]:
        return {"sparsifier": self.sparsifier.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._epochs.load(state_dict["sparsifier"], training=self._training)
