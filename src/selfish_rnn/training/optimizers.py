"""Optimizers and their learning-rate rules, made from settings."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn
from torch.optim import SGD, Adam, Optimizer

from selfish_rnn.experiment.settings import AdamSettings, AveragedSettings, MomentumSettings, OptimizerSettings
from selfish_rnn.optim import NTASGD, SNTASGD


def build_optimizer(settings: OptimizerSettings, parameters: Iterable[nn.Parameter]) -> Optimizer:
    """The optimizer that the settings name."""
    lr, weight_decay = settings.lr, settings.weight_decay
    if isinstance(settings, AveragedSettings):
        kind = SNTASGD if settings.name == "snt-asgd" else NTASGD
        return kind(parameters, lr=lr, weight_decay=weight_decay, nonmono=settings.nonmono)
    if isinstance(settings, AdamSettings):
        return Adam(parameters, lr=lr, betas=settings.betas, eps=settings.eps, weight_decay=weight_decay)
    momentum = settings.momentum if isinstance(settings, MomentumSettings) else 0.0
    return SGD(parameters, lr=lr, momentum=momentum, weight_decay=weight_decay)


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
