"""Measurements of training after every update and epoch, and the interface of listeners."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from selfish_rnn.engine.packed_weight import PackedWeight
from selfish_rnn.engine.saving import named_tensors
from selfish_rnn.sparsifier import SparseTraining
from selfish_rnn.training.records import LARGE, EpochRecord

if TYPE_CHECKING:
    from selfish_rnn.training.trainer import Trainer


def large_weights(sparsifier: SparseTraining) -> dict[str, int]:
    """Return the number of weights of every matrix that are larger than 0.1 in magnitude."""
    return {
        weight.name: int((weight.parameter.detach().abs() > LARGE).count_nonzero()) for weight in sparsifier.weights
    }


def describe(sparsifier: SparseTraining) -> dict[str, Any]:
    """Return the numbers and densities of the current network."""
    return {
        "sparsity": 1 - sparsifier.active_weights / sparsifier.total_weights,
        "active_weights": sparsifier.active_weights,
        "total_weights": sparsifier.total_weights,
        "density": {weight.name: weight.topology.densities() for weight in sparsifier.weights},
        **sparsifier.measures(),
    }


@dataclass(frozen=True)
class StepReport:
    """Progress of training after an update."""

    epoch: int
    epochs: int
    row: int
    rows: int
    loss: float
    tokens_per_second: float
    seconds_left: float


class Listener:
    """Base class for observers of training; a subclass overrides the events that it needs.

    >>> class Losses(Listener):
    ...     def on_epoch(self, record):
    ...         print(record.epoch, record.valid_loss)
    >>> Trainer(experiment, corpus, Losses()).run()
    """

    def on_start(self, trainer: Trainer) -> None:
        """Handle the start of training, or its continuation."""

    def on_step(self, report: StepReport) -> None:
        """Handle the end of an update."""

    def on_pause(self, trainer: Trainer) -> None:
        """Handle a pause between updates: ``trainer.state_dict()`` is complete, and an exception ends training."""

    def on_best(self, trainer: Trainer) -> None:
        """Handle a new best model; ``trainer.weights()`` are its weights, as they were validated."""

    def on_best_average(self, trainer: Trainer, name: str) -> None:
        """Handle a new best model of an additional average; ``trainer.weights()`` are its weights."""

    def on_epoch(self, record: EpochRecord) -> None:
        """Handle the record of an epoch that has ended."""

    def on_note(self, message: str) -> None:
        """Handle a message for the user."""


class DivergedError(RuntimeError):
    """A loss, gradient, weight or average became NaN or infinite."""


def nonfinite_gradient(model: nn.Module) -> str:
    """Describe a gradient with a non-finite norm: name the first weight with a NaN or infinity, or the norm itself."""
    gradients = [(weight, weight.grad) for weight in model.parameters() if weight.grad is not None]
    index = _first_nonfinite([gradient for _, gradient in gradients])
    if index is None:
        return "the norm of the gradient is infinite"
    return f"the gradient of {_name(model, gradients[index][0])} contains NaN or infinity"


def nonfinite_weight(model: nn.Module, optimizer: Optimizer) -> str | None:
    """Return the name of the first weight with NaN or infinity in its values or optimizer state, or None.

    This runs after every update, so a name is only looked up for the weight that it returns.
    """
    tensors = [(weight, "", weight) for group in optimizer.param_groups for weight in group["params"]]
    tensors += [
        (weight, f"{key} of ", value)
        for weight, _, _ in tensors
        for key, value in optimizer.state.get(weight, {}).items()
        if isinstance(value, Tensor) and value.is_floating_point()
    ]
    index = _first_nonfinite([tensor for _, _, tensor in tensors])
    if index is None:
        return None
    weight, prefix, _ = tensors[index]
    return prefix + _name(model, weight)


@torch.no_grad()
def _first_nonfinite(tensors: Sequence[Tensor]) -> int | None:
    """Return the index of the first tensor with NaN or infinity, or None.

    A sum is non-finite if an entry is, and needs no memory, unlike ``isfinite``. Large entries may overflow it too, so
    such tensors are then checked by entry. All sums are computed before the first is read: a GPU is synchronized once.
    """
    for index, total in enumerate([tensor.sum() for tensor in tensors]):
        if not math.isfinite(float(total)) and not bool(tensors[index].isfinite().all()):
            return index
    return None


def _name(model: nn.Module, weight: Tensor) -> str:
    """Return the name of a weight; in a packed model the name of its matrix."""
    return next(
        name
        for name, stored in named_tensors(model)
        if weight is (stored.values if isinstance(stored, PackedWeight) else stored)
    )
