"""Network and optimizer of an experiment."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from selfish_rnn.corpora import Corpus, unigram_perplexity
from selfish_rnn.engine import pack
from selfish_rnn.errors import UserError
from selfish_rnn.experiment.optimizers import OPTIMIZERS, AveragedSettings, OptimizerSettings, epochs_before
from selfish_rnn.experiment.settings import Experiment
from selfish_rnn.models import LanguageModel
from selfish_rnn.optim import IterateAverage, NonMonotoneTrigger
from selfish_rnn.sparsifier import SparseTraining, Sparsifier
from selfish_rnn.sparsifier.deferred import deferred_init
from selfish_rnn.sparsifier.iss import ISS, IntrinsicSparseStructures
from selfish_rnn.sparsifier.units import views_of
from selfish_rnn.training.ranks import Ranks, check_even_parts
from selfish_rnn.training.windows import batched

LEARNED = 0.9
"""Fraction of the unigram perplexity below which a network has learned from context."""


def build_optimizer(
    settings: OptimizerSettings, parameters: Iterable[nn.Parameter], epochs: int, below: float
) -> Optimizer:
    """Return the optimizer of the settings.

    Args:
        settings: name and arguments of the optimizer.
        parameters: parameters that it updates.
        epochs: number of epochs of the run, of which ``average_from`` may be a fraction.
        below: validation loss below which epochs count for the trigger of averaging.
    """
    arguments = settings.model_dump(exclude={"name", "drop", "decay"})
    if isinstance(settings, AveragedSettings):
        start = settings.average_from
        arguments |= {"average_from": None if start is None else epochs_before(start, epochs), "below": below}
    return OPTIMIZERS[settings.name].build(parameters, **arguments)


def learned_loss(corpus: Corpus) -> float:
    """Return the validation loss below which a network has learned more than word frequencies.

    It is the loss of 0.9 times the unigram perplexity.
    """
    return math.log(LEARNED * unigram_perplexity(corpus, "valid"))


class LearningRate:
    """Learning rate over the epochs: constant, dropped when validation stalls, or decayed after some epochs."""

    def __init__(self, settings: OptimizerSettings) -> None:
        self.settings = settings
        self.value = settings.lr
        self.best = float("inf")
        self.stalled = 0

    def validated(self, epoch: int, loss: float) -> None:
        """Update the rate with the validation loss of an epoch."""
        drop, decay = self.settings.drop, self.settings.decay
        if loss < self.best:
            self.best, self.stalled = loss, 0
        else:
            self.stalled += 1
        if drop is not None and self.stalled > drop.patience:
            self.value /= drop.factor
            self.stalled = 0
        if decay is not None and epoch >= decay.after:
            self.value /= decay.factor

    def apply(self, optimizer: Optimizer, scale: float = 1.0) -> None:
        """Set the learning rate of the next update."""
        for group in optimizer.param_groups:
            group["lr"] = self.value * scale

    def state_dict(self) -> dict[str, float]:
        return {"value": self.value, "best": self.best, "stalled": self.stalled}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.value, self.best, self.stalled = state["value"], state["best"], int(state["stalled"])


@dataclass(frozen=True)
class BestEpoch:
    """Epoch of an average with the lowest validation loss; ``averaging`` is false if it had not started by then."""

    epoch: int
    valid_loss: float
    averaging: bool


class AdditionalAverages:
    """The ``averages`` of an experiment: averages of the iterates besides that of the optimizer.

    Every average starts independently. Before its start its validation is that of the raw weights, as in a run whose
    optimizer has this average.
    """

    def __init__(self, experiment: Experiment, optimizer: Optimizer, below: float) -> None:
        settings, rule = experiment.averages, experiment.optimizer
        self._optimizer = optimizer
        self._averages = {average.name: IterateAverage(average.kind, average.name) for average in settings}
        self._restarted = [average.name for average in settings if average.restart]
        self._starts = {
            average.name: None if average.start == "trigger" else epochs_before(average.start, experiment.epochs)
            for average in settings
        }
        interval = rule.nonmono if isinstance(rule, AveragedSettings) else NonMonotoneTrigger().interval
        self._trigger = NonMonotoneTrigger(interval, below)
        self._epoch = 0
        self.best: dict[str, BestEpoch] = {}
        if settings:
            optimizer.register_step_post_hook(lambda *_: self._update())

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return iter(self._averages)

    def started(self, name: str) -> bool:
        """Return whether an average has started."""
        start = self._starts[name]
        return self._trigger.fired if start is None else self._epoch >= start

    def _update(self) -> None:
        for name, average in self._averages.items():
            if self.started(name):
                average.update(self._optimizer)

    def swapped_in(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Swap an average into the model inside a block; keep the raw weights if it has not started."""
        return self._averages[name].swapped_in(self._optimizer) if self.started(name) else contextlib.nullcontext()

    def validated(self, name: str, loss: float) -> bool:
        """Record the validation loss of the current epoch; return whether it is the best of this average."""
        if name in self.best and not loss < self.best[name].valid_loss:
            return False
        self.best[name] = BestEpoch(self._epoch + 1, loss, self.started(name))
        return True

    def end_epoch(self, raw_loss: float | None) -> bool:
        """Count an epoch; return whether the averages that wait for the trigger start after it.

        ``raw_loss`` is the validation loss of the raw weights. It may be None once all averages have started.
        """
        self._epoch += 1
        if raw_loss is None or self._trigger.fired or None not in self._starts.values():
            return False
        return self._trigger.observe(raw_loss)

    def restart(self) -> None:
        """Restart the averages from the current raw weights, except those with ``restart: false``."""
        for name in self._restarted:
            self._averages[name].restart(self._optimizer)

    def state_dict(self) -> dict[str, Any]:
        """Return the progress of the averages; their values are in the state of the optimizer."""
        best = {name: asdict(epoch) for name, epoch in self.best.items()}
        return {"epoch": self._epoch, "trigger": self._trigger.state_dict(), "best": best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what :meth:`state_dict` returned."""
        self._epoch = state["epoch"]
        self._trigger.load_state_dict(state["trigger"])
        self.best = {name: BestEpoch(**epoch) for name, epoch in state["best"].items()}


def build_network(experiment: Experiment, vocabulary: int, rewirings: int) -> tuple[LanguageModel, SparseTraining]:
    """Return the language model of an experiment and its sparsifier, for a run with this number of rewirings.

    Weights and topology are drawn from the experiment's seed, the same for both engines. With the packed engine no
    matrix is ever dense.
    """
    packed = experiment.engine == "packed"
    torch.manual_seed(_start_seed(experiment))
    with deferred_init() if packed else contextlib.nullcontext():
        model = experiment.model.build(vocabulary)
    model = model.to(experiment.device)
    sparsifier = _build_sparsifier(experiment, model, rewirings)
    return pack(model, precision=experiment.precision) if packed else model, sparsifier


def planned_rewirings(experiment: Experiment, rows: int) -> int:
    """Return the number of rewirings of a run: one per epoch, or one per ``rewire_every`` updates."""
    if experiment.rewire_every is None:
        return experiment.epochs
    updates = experiment.epochs * math.ceil((rows - 1) / experiment.window)
    return max(updates // experiment.rewire_every, 1)


def _build_sparsifier(experiment: Experiment, model: LanguageModel, rewirings: int) -> SparseTraining:
    if experiment.method.name == ISS.name:
        return IntrinsicSparseStructures(model, strength=experiment.method.strength, exclude=model.dense_parameters)
    sparsifier = Sparsifier(
        model,
        sparsity=experiment.sparsity,
        method=experiment.method.build(),
        prune_rate=experiment.prune_rate,
        rewirings=rewirings,
        schedule=experiment.prune_schedule,
        rewire_every=experiment.rewire_every,
        exclude=model.dense_parameters,
        granularity=experiment.granularity,
        keep_diagonal=experiment.keep_diagonal,
        min_side=1,  # as in the paper, every matrix becomes sparse
        rescale=experiment.rescale,
        seed=_start_seed(experiment),
    )
    sparsifier.register_ddp(None)  # the ranks sum gradients themselves
    if experiment.start_seed is not None:  # runs with equal starts and different random draws
        torch.manual_seed(experiment.seed)
        sparsifier.reseed(experiment.seed)
    return sparsifier


def _start_seed(experiment: Experiment) -> int:
    return experiment.seed if experiment.start_seed is None else experiment.start_seed


def check_before_training(experiment: Experiment, corpus: Corpus) -> None:
    """Check for errors that would stop the run later, such as a text that is too short for its batches."""
    ranks = Ranks.here().size
    check_even_parts(experiment, experiment.sub_batches * ranks, ranks)
    batched(corpus.train, experiment.batch_size, "batch_size")
    batched(corpus.valid, experiment.valid_batch_size, "valid_batch_size")
    batched(corpus.test, experiment.test_batch_size, "test_batch_size")
    model = experiment.model.outline(len(corpus.vocabulary))
    if experiment.method.name == ISS.name:
        model.unit_layers()
    try:
        views_of(model.sparse_matrices(), experiment.granularity, experiment.keep_diagonal, experiment.method.build())
    except ValueError as error:
        raise UserError(str(error)) from error
