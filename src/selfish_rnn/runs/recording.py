"""Files of a run in training: metrics, events, topologies, models and checkpoints."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from selfish_rnn.errors import RankLostError, UserError
from selfish_rnn.experiment.comparison import changed_settings, identity
from selfish_rnn.files import save_tensors
from selfish_rnn.runs.checkpoints import DamagedError
from selfish_rnn.runs.folder import RunFolder
from selfish_rnn.runs.logs import EventLog
from selfish_rnn.runs.topologies import TopologyHistory
from selfish_rnn.system import releasing_memory, trim_if_releasing
from selfish_rnn.topology import Rewiring, Topology
from selfish_rnn.training.metrics import Listener, StepReport
from selfish_rnn.training.ranks import Ranks
from selfish_rnn.training.records import EpochRecord
from selfish_rnn.training.trainer import Trainer


class Interrupted(Exception):  # noqa: N818 - not an error: the run can be resumed
    """Training stopped on request; a checkpoint contains everything up to the last update."""


class StopRequest:
    """Handler of Ctrl-C and SIGTERM inside a block: the first one sets ``requested``, the second interrupts."""

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():  # only the main thread may set handlers
            self._before = {number: signal.signal(number, self._request) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and issubclass(kind, RankLostError):
            return  # torchrun sends SIGTERM to the remaining ranks, which must not interrupt error messages
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _request(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True


class TopologyRecorder(Listener):
    """Records the initial topology of a run, and the changes of every rewiring.

    It compares the topology before and after, so it works with every sparsifier, also where weights are removed without
    rewirings. A position that one rewiring removes and regrows has not changed. Between rewirings it stores one bit per
    position, or the positions if those are smaller.
    """

    def __init__(self, history: TopologyHistory) -> None:
        self.history = history
        self._known: dict[str, Tensor] = {}
        self._rewirings: int | None = None

    def on_start(self, trainer: Trainer) -> None:
        self._trainer = trainer
        weights = trainer.sparsifier.weights
        self.history.continue_from(
            {weight.name: weight.topology for weight in weights}, trainer.state.step, trainer.state.epoch
        )
        self._known = {weight.name: weight.topology.to_saved() for weight in weights}
        self._rewirings = self._rewirings_done()

    def on_step(self, report: StepReport) -> None:
        if self._rewirings_done() != self._rewirings:  # inside an epoch
            self._record(self._trainer.state.step, report.epoch)

    def on_epoch(self, record: EpochRecord) -> None:
        self._record(record.step, record.epoch)

    def _rewirings_done(self) -> int | None:
        return getattr(self._trainer.sparsifier, "rewirings_done", None)

    def _record(self, step: int, epoch: int) -> None:
        self._rewirings = self._rewirings_done()
        with self.history.recording(step, epoch) as recording:
            for weight in self._trainer.sparsifier.weights:
                after = weight.topology
                saved = after.to_saved()
                if not torch.equal(saved, self._known[weight.name]):
                    before = Topology.from_saved(self._known[weight.name], after.shape, after.gates)
                    trim_if_releasing()
                    rewiring = Rewiring.between(before, after)
                    trim_if_releasing()
                    recording.add(weight.name, rewiring, after)
                    self._known[weight.name] = saved
                    del before, rewiring
                del after, saved
                trim_if_releasing()


class RunRecorder(Listener):
    """Saves a run at pauses and stops it on request; rank 0 writes the run folder.

    Every rank has a recorder, because all ranks must pause together. A checkpoint is written after every epoch, between
    two updates whenever ``checkpoint_every`` minutes have passed, and when a rank is asked to stop. A stop request ends
    training on all ranks with :class:`Interrupted`.
    """

    def __init__(self, folder: RunFolder, stop: StopRequest, ranks: Ranks) -> None:
        self.folder = folder
        self._stop = stop
        self._is_main = ranks.is_main
        self._events = EventLog(folder.events)
        self._last_checkpoint = time.monotonic()

    def resume(self, trainer: Trainer) -> list[str]:
        """Load the newest intact checkpoint into a trainer; return messages for the user."""
        state, notes = trainer.ranks.from_main(lambda: self._load(trainer))
        if state is not None:
            trainer.load_state_dict(state)
        if self._is_main:
            # A kill between a record and its checkpoint leaves a record of an epoch that is trained again.
            self.folder.metrics.truncate_after(trainer.state.step)
            if trainer.state.step:
                self._events = EventLog(self.folder.events, resumed_at=trainer.state.step)
        return notes

    def _load(self, trainer: Trainer) -> tuple[dict[str, Any] | None, list[str]]:
        """Return the state of the newest checkpoint that the trainer accepts, if there is one, and messages."""
        folder = self.folder
        if not folder.checkpoints.steps():
            folder.check_resumable()
            return None, []
        loaded = folder.checkpoints.load(lambda state: self._check(state, trainer))
        notes = [f"checkpoint {name} is damaged; going back to the one before it" for name in loaded.damaged]
        now = {"threads": torch.get_num_threads(), "ranks": Ranks.here().size}
        notes += [
            f"the run was started with {loaded.state.get(what, 1)} {what} and continues with {number}: "
            "results may differ in the last digits"
            for what, number in now.items()
            if loaded.state.get(what, 1) != number
        ]
        return loaded.state["trainer"], notes

    def _check(self, state: dict[str, Any], trainer: Trainer) -> None:
        """Raise an error if a checkpoint does not fit the experiment or the trainer."""
        changed = changed_settings(state["experiment"], trainer.experiment)
        if changed:
            raise UserError(
                f"{self.folder.config} was changed since the run was started, in {', '.join(changed)}: restore it, or "
                "start a new run with --config"
            )
        if not all(isinstance(state.get(what, 1), int) for what in ("threads", "ranks")):
            raise TypeError("threads and ranks must be numbers")
        try:
            trainer.load_state_dict(state["trainer"])
        except UserError as error:  # the settings are those of the run, so the checkpoint is wrong
            raise DamagedError(str(error)) from error

    def on_pause(self, trainer: Trainer) -> None:
        due = time.monotonic() - self._last_checkpoint > 60 * trainer.experiment.checkpoint_every
        between_epochs = trainer.state.row == 0
        due, stopped = trainer.ranks.any(due, self._stop.requested)
        if due or between_epochs or stopped:
            with releasing_memory():
                trainer.check_finite(trainer.state.step)  # never save a state that cannot be resumed
                state = trainer.state_dict()  # a call that all ranks make together
                if self._is_main:
                    self._save(trainer, state)
            self._last_checkpoint = time.monotonic()
        if stopped and not trainer.state.finished:
            raise Interrupted

    def _save(self, trainer: Trainer, state: dict[str, Any]) -> None:
        checkpoint = {
            "experiment": trainer.experiment.model_dump(mode="json"),
            "threads": torch.get_num_threads(),
            "ranks": trainer.ranks.size,
            "trainer": state,
        }
        self.folder.checkpoints.save(checkpoint, step=trainer.state.step)

    def on_best(self, trainer: Trainer) -> None:
        self._save_model(self.folder.model, trainer, trainer.state.best_epoch)

    def on_best_average(self, trainer: Trainer, name: str) -> None:
        self._save_model(self.folder.average(name), trainer, trainer.averages.best[name].epoch)

    def _save_model(self, path: Path, trainer: Trainer, epoch: int) -> None:
        if not self._is_main:
            return
        metadata = {
            "epoch": str(epoch),
            "run": identity(trainer.experiment),
            "vocabulary": trainer.corpus.vocabulary.checksum(),
        }
        saved = trainer.weights()
        save_tensors(path, saved.tensors, {**metadata, **saved.metadata})

    def on_epoch(self, record: EpochRecord) -> None:
        if self._is_main:
            self.folder.metrics.append(record)
            self._events.scalars(record.scalars(), record.step)
