"""Training loop for all models, without file access; listeners receive its progress."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from selfish_rnn.corpora import Corpus
from selfish_rnn.engine.library import forget_workspace
from selfish_rnn.engine.saving import SavedWeights, load_optimizer_state, load_sparse, optimizer_state
from selfish_rnn.experiment.settings import Experiment
from selfish_rnn.models import detach
from selfish_rnn.models.regularisers import activation_penalty, temporal_activation_penalty
from selfish_rnn.optim import AveragedSGD
from selfish_rnn.sparsifier.distributed import check_same_topologies
from selfish_rnn.sparsifier.weights import SparseWeight
from selfish_rnn.system import releasing_memory, trim_memory
from selfish_rnn.training.build import (
    AdditionalAverages,
    LearningRate,
    build_network,
    build_optimizer,
    learned_loss,
    planned_rewirings,
)
from selfish_rnn.training.evaluation import evaluate, perplexity
from selfish_rnn.training.metrics import (
    DivergedError,
    Listener,
    StepReport,
    describe,
    large_weights,
    nonfinite_gradient,
    nonfinite_weight,
)
from selfish_rnn.training.ranks import BatchParts, Ranks
from selfish_rnn.training.records import NETWORK_KEYS, AverageRecord, EpochRecord
from selfish_rnn.training.state import Clock, TrainState
from selfish_rnn.training.windows import batched, draw_length, window_at


class Trainer:
    """Trainer of one model for an experiment, which can be resumed from any pause.

    After every epoch it validates the averages (if there are any), reports a new best model, and rewires the raw
    weights. Listeners are called in their order. Processes of one ``torch.distributed`` group train one model together,
    each on its columns of the batches (:class:`~selfish_rnn.training.ranks.BatchParts`). They call :meth:`run` and
    :meth:`state_dict` together, and have equal weights after every update.
    """

    @releasing_memory()
    def __init__(self, experiment: Experiment, corpus: Corpus, *listeners: Listener) -> None:
        if experiment.threads is not None:
            torch.set_num_threads(experiment.threads)
        self.experiment = experiment
        self.corpus = corpus
        self.listeners = listeners
        self.ranks = Ranks.here()
        self.rows = batched(corpus.train, experiment.batch_size).to(experiment.device)
        rewirings = planned_rewirings(experiment, len(self.rows))
        self.model, self.sparsifier = build_network(experiment, len(corpus.vocabulary), rewirings)
        below = learned_loss(corpus)
        self.optimizer = build_optimizer(experiment.optimizer, self.model.parameters(), experiment.epochs, below)
        self._averaged = self.optimizer if isinstance(self.optimizer, AveragedSGD) else None
        # Registered before the next hook, which checks the averages too.
        self.averages = AdditionalAverages(experiment, self.optimizer, below)
        # An optimizer's own hooks run before the sparsifier's, which may rewire by these weights.
        self.optimizer.register_step_post_hook(lambda *_: self.check_finite(self.state.step + 1))
        self.sparsifier.track(self.optimizer)
        self.learning_rate = LearningRate(experiment.optimizer)
        self.state = TrainState()
        self._window_lengths = torch.Generator().manual_seed(experiment.seed)
        self._parts = BatchParts(experiment, self.ranks, self.model.initial_state)
        self._clock = Clock()

    # The loop

    def run(self) -> None:
        """Train to the end from the current state."""
        self._clock = Clock(self.state.seconds)
        self._parts.check_even()
        check_same_topologies(self.sparsifier.sparse_weights)
        with releasing_memory():
            self._notify(lambda listener: listener.on_start(self))
        while not self.state.finished:
            try:
                self._train_epoch()
                self._end_epoch()
            except FloatingPointError as error:  # raised by a rewiring on non-finite dense gradients
                raise DivergedError(f"{str(error).partition(':')[0]} after update {self.state.step}") from error

    def _train_epoch(self) -> None:
        state, experiment = self.state, self.experiment
        self.model.train()
        while not self._at_end_of_epoch:
            length = experiment.window
            if experiment.variable_window:
                length = draw_length(experiment.window, self._window_lengths)
            inputs, targets = window_at(self.rows, state.row, length)
            state.row += len(inputs)
            # Methods that grow by gradient use the gradient of the last window before a rewiring.
            rewired_next = experiment.rewire_every is None and self._at_end_of_epoch
            with self.sparsifier.dense_gradients() if rewired_next else contextlib.nullcontext():
                loss = self._update(inputs, targets, scale=len(inputs) / experiment.window)
            state.step += 1
            state.loss_sum += loss * len(inputs)
            state.seconds = self._clock.seconds
            self._clock.tokens += inputs.numel()
            self._report_step()
            # No pause between the last update and the rewiring, which may use gradients that no state contains.
            if not self._at_end_of_epoch:
                self._notify(lambda listener: listener.on_pause(self))

    @property
    def _at_end_of_epoch(self) -> bool:
        return self.state.row == len(self.rows) - 1

    def _update(self, inputs: Tensor, targets: Tensor, scale: float) -> float:
        """Run one optimizer step on a window; return the loss without penalties."""
        experiment = self.experiment
        self.optimizer.zero_grad(set_to_none=True)
        total = 0.0
        # Forward and backward pass of each part of the batch, with its own recurrent state and dropout. Gradients
        # accumulate over parts, and the loss without penalties is summed for the record.
        for part in self._parts.mine:
            with part.drawing():
                encoded = self.model.encode(inputs[:, part.columns], part.hidden)
                loss = self.model.loss(encoded.output, targets[:, part.columns])
                total += loss.item() / self._parts.count
                if experiment.ar:
                    penalised = getattr(encoded, self.model.activation_penalty_on)
                    loss = loss + activation_penalty(penalised, experiment.ar)
                if experiment.tar:
                    loss = loss + temporal_activation_penalty(encoded.raw, experiment.tar)
                penalty = self.sparsifier.penalty()
                if penalty is not None:
                    loss = loss + penalty
                (loss / self._parts.count).backward()  # type: ignore[no-untyped-call]
            part.hidden = detach(encoded.state)
        # Add up gradients and losses of all ranks, check and clip them, and update the weights.
        self.ranks.sum_gradients(self.model.parameters())
        total = self.ranks.sum(total)
        if not math.isfinite(total):
            raise DivergedError(f"the training loss became {total} at update {self.state.step + 1}")
        largest = math.inf if experiment.clip is None else experiment.clip
        try:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), largest, error_if_nonfinite=True)
        except RuntimeError as error:  # raised before any gradient is clipped
            raise DivergedError(f"{nonfinite_gradient(self.model)} at update {self.state.step + 1}") from error
        self.learning_rate.apply(self.optimizer, scale if experiment.variable_window else 1.0)
        self.optimizer.step()
        return total

    def check_finite(self, update: int) -> None:
        """Raise an error if weights, averages or optimizer state contain NaN or infinity on any rank."""
        first = nonfinite_weight(self.model, self.optimizer)
        if self.ranks.any(first is not None)[0]:
            names = [name for name in self.ranks.gather([first]) if name is not None]
            raise DivergedError(f"{names[0]} contains NaN or infinity after update {update}")

    def _end_epoch(self) -> None:
        state, experiment = self.state, self.experiment
        averaging, learning_rate = self._averaged is not None and self._averaged.averaging, self.learning_rate.value
        epoch = state.epoch + 1
        # Validate first: the best model is the network before its rewiring.
        if not self.sparsifier.method.uses_gradients:  # gradients would only take memory until the rewiring
            self.optimizer.zero_grad(set_to_none=True)
        trim_memory()  # evaluation allocates other sizes than updates
        valid_loss, network, large = self._validate(epoch)
        averages = self._validate_averages(epoch, None if averaging else valid_loss)
        if self._averaged is not None and self._averaged.observe(valid_loss):
            self._note(f"averaging starts after epoch {epoch}")
        self.learning_rate.validated(epoch, valid_loss)
        # Rewire the raw weights. Their averages restart after it if the experiment says so.
        self._rewire()
        self.optimizer.zero_grad(set_to_none=True)
        if epoch in experiment.restart_at:
            if self._averaged is not None:
                self._averaged.restart()
            self.averages.restart()
        # Advance the progress, and decide whether the run ends here.
        train_loss = state.loss_sum / (len(self.rows) - 1)
        state.epoch, state.row, state.loss_sum = epoch, 0, 0.0
        state.seconds = self._clock.seconds
        self._parts.begin_epoch()
        stalled = experiment.early_stop is not None and epoch - state.best_epoch >= experiment.early_stop
        state.finished = epoch >= experiment.epochs or stalled
        if stalled and epoch < experiment.epochs:
            self._note(f"stopped early: no improvement for {experiment.early_stop} epochs")
        if state.finished and not state.settled:
            self._note("no epoch was validated at the target sparsity: increase epochs")
        # Report the epoch before the pause: its record is written before its checkpoint.
        method = self.sparsifier.method
        record = EpochRecord(
            epoch=epoch,
            step=state.step,
            train_loss=train_loss,
            valid_loss=valid_loss,
            averaging=averaging,
            learning_rate=learning_rate,
            prune_rate=self.sparsifier.last_rewired_fraction if method.rewires or method.prunes else 0.0,
            seconds=state.seconds,
            train_perplexity=perplexity(train_loss),
            valid_perplexity=perplexity(valid_loss),
            active_weights=network["active_weights"],
            total_weights=network["total_weights"],
            density=network["density"],
            weights_above=large,
            averages=averages,
            measures={key: value for key, value in network.items() if key not in NETWORK_KEYS},
        )
        with releasing_memory():
            self._notify(lambda listener: listener.on_epoch(record))
            self._notify(lambda listener: listener.on_pause(self))

    def _validate(self, epoch: int) -> tuple[float, dict[str, Any], dict[str, int]]:
        """Validate the average, or the weights without one; return loss, description and large weights."""
        averages = self._averaged.averaged() if self._averaged is not None else contextlib.nullcontext()
        with averages, self.sparsifier.thresholded():
            loss = self._valid_loss()
            if not math.isfinite(perplexity(loss)):
                raise DivergedError(f"the validation loss became {loss:g} after epoch {epoch}")
            forget_workspace()
            return loss, *self._validated(epoch, loss)

    def _valid_loss(self) -> float:
        """Return the validation loss of the weights in the model."""
        experiment = self.experiment
        return evaluate(
            self.model,
            self.corpus.valid,
            batch_size=experiment.valid_batch_size,
            window=experiment.window,
            ranks=self.ranks,
        )

    @releasing_memory()
    def _validate_averages(self, epoch: int, raw_loss: float | None) -> dict[str, AverageRecord]:
        """Validate the additional averages.

        ``raw_loss`` is the validation loss of the raw weights where it is known. It stands for averages that have not
        started.
        """
        records: dict[str, AverageRecord] = {}
        for name in self.averages:
            started = self.averages.started(name)
            with self.averages.swapped_in(name), self.sparsifier.thresholded():
                if started or raw_loss is None:
                    loss = self._valid_loss()
                    loss = loss if math.isfinite(loss) else math.inf  # only a non-finite main loss ends the run
                    forget_workspace()
                    raw_loss = raw_loss if started else loss
                else:
                    loss = raw_loss
                if self.averages.validated(name, loss):
                    for listener in self.listeners:
                        listener.on_best_average(self, name)
            records[name] = AverageRecord(loss, started, perplexity(loss))
        if self.averages.end_epoch(raw_loss):
            self._note(f"averages with from: trigger start after epoch {epoch}")
        return records

    @releasing_memory()
    def _validated(self, epoch: int, loss: float) -> tuple[dict[str, Any], dict[str, int]]:
        """Notify listeners of a new best model; return the description of the network and its large weights."""
        state, network = self.state, describe(self.sparsifier)
        if self.sparsifier.at_target and not state.settled:
            # Networks that are not yet at the target sparsity do not compete with later ones.
            state.settled, state.best_valid_loss = True, math.inf
            self.averages.best.clear()
        if loss < state.best_valid_loss:
            state.best_valid_loss, state.best_epoch, state.best = loss, epoch, network
            self._notify(lambda listener: listener.on_best(self))
        return network, large_weights(self.sparsifier)

    @releasing_memory()
    def _rewire(self) -> None:
        """Rewire at the end of an epoch if the experiment does, and check the number of weights."""
        if self.experiment.rewire_every is None:
            self.sparsifier.rewire()
        count, promised = self.sparsifier.active_weights, self.sparsifier.target_weights
        if count != promised:
            raise RuntimeError(f"the network has {count} weights after rewiring, its budget is {promised}")

    # Listeners

    def _notify(self, event: Callable[[Listener], None]) -> None:
        for listener in self.listeners:
            event(listener)

    def _note(self, message: str) -> None:
        self._notify(lambda listener: listener.on_note(message))

    def _report_step(self) -> None:
        state = self.state
        report = StepReport(
            epoch=state.epoch + 1,
            epochs=self.experiment.epochs,
            row=state.row,
            rows=len(self.rows) - 1,
            loss=state.loss_sum / state.row,
            tokens_per_second=self._clock.rate(),
            seconds_left=self.seconds_left,
        )
        self._notify(lambda listener: listener.on_step(report))

    @property
    def seconds_left(self) -> float:
        """Estimate of the remaining training time."""
        rows_done = self.state.epoch * (len(self.rows) - 1) + self.state.row
        rows_in_all = self.experiment.epochs * (len(self.rows) - 1)
        return self.state.seconds * (rows_in_all - rows_done) / max(rows_done, 1)

    # Saving and resuming

    @property
    def _stateful_weights(self) -> Sequence[SparseWeight]:
        """Sparse weights whose optimizer state matters only where weights exist."""
        signal = self.sparsifier.method.signal
        return [] if signal is not None and signal.kept_by_optimizer else self.sparsifier.sparse_weights

    def weights(self) -> SavedWeights:
        """Return the weights in their saved form, equal for both engines."""
        return SavedWeights.of(self.model, self.sparsifier.sparse_weights)

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state, from which either engine and any number of ranks can continue."""
        saved = self.weights()
        # The topologies are those of the saved weights.
        sparsifier = {key: value for key, value in self.sparsifier.state_dict().items() if key != "topologies"}
        return {
            "state": asdict(self.state),
            "model": saved.tensors,
            "shapes": {name: list(shape) for name, shape in saved.shapes.items()},
            "sparsifier": sparsifier,
            "optimizer": optimizer_state(self.optimizer, self.model, self._stateful_weights),
            "learning_rate": self.learning_rate.state_dict(),
            **({"averages": self.averages.state_dict()} if self.experiment.averages else {}),
            **self._parts.state_dict(),
            "window_lengths": self._window_lengths.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state of the same experiment."""
        # Load weights first: a sparsifier that rewires at the next update starts to collect their dense gradients.
        saved = SavedWeights(state["model"], {name: tuple(shape) for name, shape in state["shapes"].items()})
        load_sparse(self.model, saved, "the saved state")
        self.sparsifier.load_state_dict({**state["sparsifier"], "topologies": saved.topologies()})
        load_optimizer_state(self.optimizer, state["optimizer"], self.model, self._stateful_weights)
        self.learning_rate.load_state_dict(state["learning_rate"])
        if "averages" in state:
            self.averages.load_state_dict(state["averages"])
        self.state = TrainState.of(state["state"])
        self._parts.load_state_dict(state)
        self._window_lengths.set_state(state["window_lengths"])
