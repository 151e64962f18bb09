"""What a run writes down while it is trained: metrics, events, its best model, checkpoints."""

from __future__ import annotations

import time
from typing import Any

import torch

from selfish_rnn.errors import UserError, shown
from selfish_rnn.experiment.settings import changed_settings, identity
from selfish_rnn.files import save_tensors
from selfish_rnn.runs.folder import RunFolder
from selfish_rnn.runs.logs import EventLog
from selfish_rnn.runs.stop import Interrupted, StopRequest
from selfish_rnn.training.metrics import EpochRecord, Listener
from selfish_rnn.training.trainer import Trainer


class RunRecorder(Listener):
    """Keeps a run folder up to date; only for the process that holds the folder's lock.

    A checkpoint is written after every epoch, between two updates whenever ``checkpoint_every`` minutes have passed,
    and when the run is asked to stop, which ends training with :class:`Interrupted`.
    """

    def __init__(self, folder: RunFolder, stop: StopRequest) -> None:
        self.folder = folder
        self._stop = stop
        self._events = EventLog(folder.events)
        self._last_checkpoint = time.monotonic()

    def resume(self, trainer: Trainer) -> list[str]:
        """Put a trainer where the last checkpoint that is not damaged stands; returns what to tell a person of it."""
        folder = self.folder
        if not folder.checkpoints.steps():
            folder.check_resumable()
            # Killed before its first checkpoint, perhaps just after its first record.
            folder.metrics.truncate_after(0)
            return []
        loaded = folder.checkpoints.load(lambda state: self._continue_from(state, trainer))
        notes = [f"checkpoint {name} is damaged; going back to the one before it" for name in loaded.damaged]
        threads = loaded.state["threads"]
        if threads != torch.get_num_threads():
            notes.append(
                f"the run was started with {threads} threads and goes on with {torch.get_num_threads()}: "
                "results may differ in the last digits"
            )
        folder.metrics.truncate_after(loaded.step)
        self._events = EventLog(folder.events, resumed_at=loaded.step)
        return notes

    def _continue_from(self, state: dict[str, Any], trainer: Trainer) -> None:
        changed = changed_settings(state["experiment"], trainer.experiment)
        if changed:
            raise UserError(
                f"{self.folder.config} was changed since the run was started, in {', '.join(changed)}: put it back, or "
                "start a new run with --config"
            )
        if not isinstance(state["threads"], int):
            raise TypeError(f"threads is {shown(state['threads'])}")
        trainer.load_state_dict(state["trainer"])

    def on_best(self, trainer: Trainer) -> None:
        save_tensors(
            self.folder.model,
            trainer.weights(),
            {"epoch": str(trainer.state.best_epoch), "run": identity(trainer.experiment)},
        )

    def on_epoch(self, record: EpochRecord) -> None:
        self.folder.metrics.append(record.metrics())
        self._events.scalars(record.scalars(), record.step)

    def on_pause(self, trainer: Trainer) -> None:
        due = time.monotonic() - self._last_checkpoint > 60 * trainer.experiment.checkpoint_every
        between_epochs = trainer.state.row == 0
        if due or between_epochs or self._stop.requested:
            self._save(trainer)
        if self._stop.requested and not trainer.state.finished:
            raise Interrupted

    def _save(self, trainer: Trainer) -> None:
        trainer.check_finite()  # what cannot be continued is not kept
        state = {
            "experiment": trainer.experiment.model_dump(mode="json"),
            "threads": torch.get_num_threads(),
            "trainer": trainer.state_dict(),
        }
        self.folder.checkpoints.save(state, step=trainer.state.step)
        self._last_checkpoint = time.monotonic()
