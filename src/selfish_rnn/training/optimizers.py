"""Optimizers and their learning-rate rules, made from settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from torch import nn
from torch.optim import SGD, Adam, Optimizer

from selfish_rnn.corpora import Corpus, unigram_perplexity
from selfish_rnn.experiment.settings import AveragedSettings, OptimizerSettings, epochs_before
from selfish_rnn.optim import NTASGD, SNTASGD

LEARNED = 0.9
"""Fraction of the unigram perplexity below which a network has learned from context."""

_OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "snt-asgd": SNTASGD,
    "nt-asgd": NTASGD,
    "sgd": SGD,
    "momentum-sgd": SGD,
    "adam": Adam,
}


def build_optimizer(
    settings: OptimizerSettings, parameters: Iterable[nn.Parameter], epochs: int, below: float
) -> Optimizer:
    """Return the optimizer that the settings name.

    All settings except the rules of the learning rate are arguments of its constructor. Averaging optimizers also get
    the epoch in which averaging starts, out of ``epochs``, or the validation loss that an epoch must be ``below`` to
    count.
    """
    arguments = settings.model_dump(exclude={"name", "drop", "decay"})
    if isinstance(settings, AveragedSettings):
        start = settings.average_from
        arguments |= {"average_from": None if start is None else epochs_before(start, epochs), "below": below}
    return _OPTIMIZERS[settings.name](parameters, **arguments)


def learned_loss(corpus: Corpus) -> float:
    """Return the validation loss below which a network has learned more than the frequencies of words.

    It is that of 0.9 times the unigram perplexity.
    """
    return math.log(LEARNED * unigram_perplexity(corpus, "valid"))


class LearningRate:
    """The learning rate over the epochs: constant, dropped when validation stalls, or decayed after some epochs."""

    def __init__(self, settings: OptimizerSettings) -> None:
        self.settings = settings
        self.value = settings.lr
        self.best = float("inf")
        self.stalled = 0

    def validated(self, epoch: int, loss: float) -> None:
        """Take the validation loss after ``epoch`` epochs."""
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
        """Set the learning rate for the next update."""
        for group in optimizer.param_groups:
            group["lr"] = self.value * scale

    def state_dict(self) -> dict[str, float]:
        return {"value": self.value, "best": self.best, "stalled": self.stalled}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.value, self.best, self.stalled = state["value"], state["best"], int(state["stalled"])
