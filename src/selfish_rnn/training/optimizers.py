"""Optimizers and their learning-rate rules, made from settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import nn
from torch.optim import SGD, Adam, Optimizer

from selfish_rnn.experiment.settings import OptimizerSettings
from selfish_rnn.optim import NTASGD, SNTASGD

_OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "snt-asgd": SNTASGD,
    "nt-asgd": NTASGD,
    "sgd": SGD,
    "momentum-sgd": SGD,
    "adam": Adam,
}


def build_optimizer(settings: OptimizerSettings, parameters: Iterable[nn.Parameter]) -> Optimizer:
    """The optimizer that the settings name; all but the rules of the learning rate are arguments of its own."""
    return _OPTIMIZERS[settings.name](parameters, **settings.model_dump(exclude={"name", "drop", "decay"}))


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
