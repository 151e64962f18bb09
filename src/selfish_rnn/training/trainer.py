"""One training loop for all models."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from selfish_rnn.corpora import Corpus
from selfish_rnn.engine import pack
from selfish_rnn.errors import UserError
from selfish_rnn.experiment.settings import Experiment, changed_settings
from selfish_rnn.models import State, detach
from selfish_rnn.models.regularisers import activation_penalty, temporal_activation_penalty
from selfish_rnn.optim import NTASGD, SNTASGD
from selfish_rnn.runs.checkpoints import save_tensors
from selfish_rnn.runs.folder import RunFolder
from selfish_rnn.runs.logs import EventLog
from selfish_rnn.runs.saved_weights import (
    load_portable_optimizer,
    load_portable_weights,
    portable_optimizer,
    portable_weights,
)
from selfish_rnn.sparsifier.weights import SparseWeight
from selfish_rnn.system import give_back_freed_memory
from selfish_rnn.training.build import build_model, build_sparsifier
from selfish_rnn.training.evaluation import evaluate, perplexity
from selfish_rnn.training.events import EpochReport, Listener, NullListener, StepReport
from selfish_rnn.training.metrics import describe, event_scalars, large_weights
from selfish_rnn.training.optimizers import LearningRate, build_optimizer
from selfish_rnn.training.random_state import random_state, restore_random_state
from selfish_rnn.training.state import Clock, TrainState
from selfish_rnn.training.stop import Interrupted, StopRequest
from selfish_rnn.training.windows import batched, draw_length, window_at


class Trainer:
    """Trains one model as an experiment says, in a run folder, so that it can be continued from any moment.

    After every epoch: validate on the averages (if there are any), keep the best model, rewire the raw weights, log,
    write a checkpoint.
    """

    def __init__(
        self, experiment: Experiment, corpus: Corpus, folder: RunFolder, listener: Listener | None = None
    ) -> None:
        if experiment.threads is not None:
            torch.set_num_threads(experiment.threads)
        self.experiment = experiment
        self.corpus = corpus
        self.folder = folder
        self.listener: Listener = listener or NullListener()
        self.rows = batched(corpus.train, experiment.batch_size).to(experiment.device)
        self.model = build_model(experiment, len(corpus.vocabulary))
        self.sparsifier = build_sparsifier(experiment, self.model, self._planned_rewirings())
        if experiment.engine == "packed":
            pack(self.model)
        self._existing_weights = self.sparsifier.active_weights
        self.optimizer = build_optimizer(experiment.optimizer, self.model.parameters())
        self.sparsifier.track(self.optimizer)
        self.learning_rate = LearningRate(experiment.optimizer)
        self.position = TrainState()
        self._window_lengths = torch.Generator().manual_seed(experiment.seed)
        self._states = self._initial_states()
        self._events = EventLog(folder.events)
        self._last_checkpoint = time.monotonic()
        self._stop = StopRequest()
        self._clock = Clock()
        give_back_freed_memory()  # of building

    def _planned_rewirings(self) -> int:
        experiment = self.experiment
        if experiment.rewire_every is None:
            return experiment.epochs
        steps = experiment.epochs * math.ceil((len(self.rows) - 1) / experiment.window)
        return max(steps // experiment.rewire_every, 1)

    def _initial_states(self) -> list[State]:
        parts = self.experiment.sub_batches
        return [self.model.initial_state(self.experiment.batch_size // parts) for _ in range(parts)]

    # The run

    def run(self) -> None:
        """Train to the end, from wherever the run stands now."""
        self._clock = Clock(self.position.seconds)
        with self._stop:
            while not self.position.finished:
                self._train_epoch()
                self._end_epoch()
                give_back_freed_memory()
        self._events.close()

    def _train_epoch(self) -> None:
        position, experiment = self.position, self.experiment
        self.model.train()
        while not self._at_end_of_epoch:
            length = experiment.window
            if experiment.variable_window:
                length = draw_length(experiment.window, self._window_lengths)
            inputs, targets = window_at(self.rows, position.row, length)
            position.row += len(inputs)
            with self._collecting_dense_gradients():
                loss = self._update(inputs, targets, scale=len(inputs) / experiment.window)
            position.step += 1
            position.loss_sum += loss * len(inputs)
            position.seconds = self._clock.seconds
            self._clock.tokens += inputs.numel()
            self.listener.on_step(self._step_report())
            due = time.monotonic() - self._last_checkpoint > 60 * experiment.checkpoint_every
            # Not between the last update and the rewiring, which may go by gradients that no checkpoint holds.
            if (due or self._stop.requested) and not self._at_end_of_epoch:
                self.save_checkpoint()
                if self._stop.requested:
                    raise Interrupted

    @property
    def _at_end_of_epoch(self) -> bool:
        return self.position.row == len(self.rows) - 1

    def _collecting_dense_gradients(self) -> contextlib.AbstractContextManager[None]:
        """Of the last window before a rewiring at the end of the epoch, for methods that grow by gradient."""
        if self.experiment.rewire_every is None and self._at_end_of_epoch:
            return self.sparsifier.dense_gradients()
        return contextlib.nullcontext()

    def _update(self, inputs: Tensor, targets: Tensor, scale: float) -> float:
        """One optimizer step on a window; the loss without penalties."""
        experiment = self.experiment
        parts = experiment.sub_batches
        self.optimizer.zero_grad(set_to_none=True)
        total = 0.0
        for index, (part_inputs, part_targets) in enumerate(
            zip(inputs.chunk(parts, dim=1), targets.chunk(parts, dim=1), strict=True)
        ):
            encoded = self.model.encode(part_inputs, self._states[index])
            loss = self.model.loss(encoded.output, part_targets)
            total += loss.item() / parts
            if experiment.ar:
                penalised = getattr(encoded, self.model.activation_penalty_on)
                loss = loss + activation_penalty(penalised, experiment.ar)
            if experiment.tar:
                loss = loss + temporal_activation_penalty(encoded.raw, experiment.tar)
            penalty = self.sparsifier.penalty()
            if penalty is not None:
                loss = loss + penalty
            (loss / parts).backward()  # type: ignore[no-untyped-call]
            self._states[index] = detach(encoded.state)
        if not math.isfinite(total):
            raise self._diverged(f"the training loss became {total} at update {self.position.step + 1}")
        largest = math.inf if experiment.clip is None else experiment.clip
        norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), largest))
        if not math.isfinite(norm):  # found before it gets into the weights, and with them into a checkpoint
            raise self._diverged(f"the norm of the gradient became {norm} at update {self.position.step + 1}")
        self.learning_rate.apply(self.optimizer, scale if experiment.variable_window else 1.0)
        self.optimizer.step()
        return total

    def _end_epoch(self) -> None:
        position, experiment = self.position, self.experiment
        averaging, learning_rate = self._averaging, self.learning_rate.value
        epoch = position.epoch + 1
        valid_loss, network = self._validate(epoch)
        if isinstance(self.optimizer, (SNTASGD, NTASGD)) and self.optimizer.observe(valid_loss):
            self.listener.on_note(f"averaging starts after epoch {epoch}")
        self.learning_rate.validated(epoch, valid_loss)
        give_back_freed_memory()  # of the updates: a rewiring needs blocks of other sizes
        self._rewire()
        self.optimizer.zero_grad(set_to_none=True)
        if epoch in experiment.restart_at and isinstance(self.optimizer, (SNTASGD, NTASGD)):
            self.optimizer.restart()
        train_loss = position.loss_sum / (len(self.rows) - 1)
        position.epoch, position.row, position.loss_sum = epoch, 0, 0.0
        position.seconds = self._clock.seconds
        self._states = self._initial_states()
        stalled = experiment.early_stop is not None and epoch - position.best_epoch >= experiment.early_stop
        position.finished = epoch >= experiment.epochs or stalled
        if stalled and epoch < experiment.epochs:
            self.listener.on_note(f"stopped early: no improvement for {experiment.early_stop} epochs")
        if position.finished and not position.settled:
            self.listener.on_note("no epoch was evaluated at the sparsity asked for: give the run more epochs")
        report = EpochReport(
            epoch=epoch,
            epochs=experiment.epochs,
            train_loss=train_loss,
            valid_loss=valid_loss,
            best=position.settled and position.best_epoch == epoch,
            averaging=averaging,
            learning_rate=learning_rate,
            rewired=self.sparsifier.last_rewired_fraction if self.sparsifier.method.rewires else 0.0,
            pruned=self.sparsifier.last_rewired_fraction if self.sparsifier.method.prunes else 0.0,
            active_weights=network["active_weights"],
            seconds=position.seconds,
            seconds_left=self._seconds_left(),
        )
        self._record(report, network)
        self.listener.on_epoch(report)
        self.save_checkpoint()
        if self._stop.requested and not position.finished:
            raise Interrupted

    def _validate(self, epoch: int) -> tuple[float, dict[str, Any]]:
        """The validation loss of what is evaluated, averages if there are any, and a description of that network.

        It is kept as a model if it is the best.
        """
        position, experiment = self.position, self.experiment
        with self._averages(), self.sparsifier.thresholded():
            loss = evaluate(
                self.model, self.corpus.valid, batch_size=experiment.valid_batch_size, window=experiment.window
            )
            if not math.isfinite(perplexity(loss)):
                raise self._diverged(f"the validation loss became {loss:g} after epoch {epoch}")
            network = describe(self.sparsifier)
            if self.sparsifier.at_target and not position.settled:
                # Networks that are not yet as sparse as promised do not compete with those that are.
                position.settled, position.best_valid_loss = True, math.inf
            if loss < position.best_valid_loss:
                position.best_valid_loss, position.best_epoch = loss, epoch
                position.best = network
                weights = portable_weights(self.model, self._sparse_weights)
                save_tensors(self.folder.model, weights, {"epoch": str(epoch)})
            return loss, {**network, "weights_above_0.1": large_weights(self.sparsifier)}

    def _rewire(self) -> None:
        """Rewire at the end of an epoch, if that is when this experiment does; the number of weights is as promised."""
        if self.experiment.rewire_every is None:
            self.sparsifier.rewire()
        count, promised = self.sparsifier.active_weights, self.sparsifier.target_weights
        if count != promised:
            raise RuntimeError(f"the network has {count} weights after rewiring, its budget is {promised}")
        self._existing_weights = count

    @property
    def _sparse_weights(self) -> Sequence[SparseWeight]:
        return self.sparsifier.sparse_weights

    @property
    def sparse_parameters(self) -> int:
        """How many numbers the parameters of the sparsified matrices have."""
        return sum(weight.parameter.numel() for weight in self.sparsifier.weights)

    @property
    def _stateful_weights(self) -> Sequence[SparseWeight]:
        """Those of which the optimizer remembers nothing that matters where no weight exists."""
        return [] if self.sparsifier.method.signal == "momentum" else self._sparse_weights

    # Averages

    @property
    def _averaging(self) -> bool:
        return isinstance(self.optimizer, (SNTASGD, NTASGD)) and self.optimizer.averaging

    def _averages(self) -> contextlib.AbstractContextManager[None]:
        if isinstance(self.optimizer, (SNTASGD, NTASGD)):
            return self.optimizer.averaged()
        return contextlib.nullcontext()

    # Reports and records

    def _step_report(self) -> StepReport:
        position = self.position
        return StepReport(
            epoch=position.epoch + 1,
            epochs=self.experiment.epochs,
            row=position.row,
            rows=len(self.rows) - 1,
            loss=position.loss_sum / position.row,
            tokens_per_second=self._clock.rate(),
            seconds_left=self._seconds_left(),
            active_weights=self._existing_weights,
        )

    def _seconds_left(self) -> float:
        rows_done = self.position.epoch * (len(self.rows) - 1) + self.position.row
        rows_in_all = self.experiment.epochs * (len(self.rows) - 1)
        return self.position.seconds * (rows_in_all - rows_done) / max(rows_done, 1)

    def _record(self, report: EpochReport, network: dict[str, Any]) -> None:
        record = {
            "epoch": report.epoch,
            "step": self.position.step,
            "train_loss": report.train_loss,
            "train_perplexity": perplexity(report.train_loss),
            "valid_loss": report.valid_loss,
            "valid_perplexity": perplexity(report.valid_loss),
            "averaging": report.averaging,
            "learning_rate": report.learning_rate,
            "prune_rate": report.rewired or report.pruned,
            "seconds": report.seconds,
            **network,
        }
        self.folder.metrics.append(record)
        self._events.scalars(event_scalars(record), self.position.step)

    def _diverged(self, what: str) -> UserError:
        kept = self.folder.checkpoints.steps()
        where = f"the last good checkpoint, of update {kept[-1]}, is kept" if kept else "there is no checkpoint yet"
        return UserError(
            f"{what}; {where}. Try a smaller optimizer.lr (now {self.experiment.optimizer.lr:g}), a smaller clip "
            f"(now {self.experiment.clip}) or a smaller prune_rate (now {self.experiment.prune_rate:g}) in a new run"
        )

    # Saving and continuing

    def save_checkpoint(self) -> None:
        """Write down everything that is needed to continue from here."""
        state: dict[str, Any] = {
            "position": asdict(self.position),
            "model": portable_weights(self.model, self._sparse_weights),
            "sparsifier": self.sparsifier.state_dict(),
            "optimizer": portable_optimizer(self.optimizer, self.model, self._stateful_weights),
            "learning_rate": self.learning_rate.state_dict(),
            "states": [list(state) for state in self._states],
            "random": random_state(self.experiment.device),
            "window_lengths": self._window_lengths.get_state(),
            "threads": torch.get_num_threads(),
            "experiment": self.experiment.model_dump(mode="json"),
        }
        self.folder.checkpoints.save(state, step=self.position.step)
        self._last_checkpoint = time.monotonic()

    def load_checkpoint(self) -> None:
        """Continue from the last checkpoint that is not damaged."""
        loaded = self.folder.checkpoints.load()
        for name in loaded.damaged:
            self.listener.on_note(f"checkpoint {name} is damaged; going back to the one before it")
        state = loaded.state
        changed = changed_settings(state["experiment"], self.experiment)
        if changed:
            raise UserError(
                f"{self.folder.config} was changed since the run was started, in {', '.join(changed)}: put it back, or "
                "start a new run with --config"
            )
        if state["threads"] != torch.get_num_threads():
            self.listener.on_note(
                f"the run was started with {state['threads']} threads and goes on with {torch.get_num_threads()}: "
                "results may differ in the last digits"
            )
        self.sparsifier.load_state_dict(state["sparsifier"])
        load_portable_weights(self.model, state["model"], str(self.folder.checkpoints.folder))
        self._existing_weights = self.sparsifier.active_weights
        load_portable_optimizer(self.optimizer, state["optimizer"], self.model, self._stateful_weights)
        self.learning_rate.load_state_dict(state["learning_rate"])
        self.position = TrainState(**state["position"])
        device = self.experiment.device
        self._states = [tuple(tensor.to(device) for tensor in tensors) for tensors in state["states"]]
        self._window_lengths.set_state(state["window_lengths"])
        restore_random_state(state["random"], device)
        self.folder.metrics.truncate_after(self.position.step)
        self._events = EventLog(self.folder.events, resumed_at=self.position.step)
