"""What is measured of training, after every update and every epoch, and who is told."""

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
    """How many weights of every matrix are larger than 0.1 in magnitude."""
    return {
        weight.name: int((weight.parameter.detach().abs() > LARGE).count_nonzero()) for weight in sparsifier.weights
    }


def describe(sparsifier: SparseTraining) -> dict[str, Any]:
    """The network as it is now: how many weights, and where."""
    return {
        "sparsity": 1 - sparsifier.active_weights / sparsifier.total_weights,
        "active_weights": sparsifier.active_weights,
        "total_weights": sparsifier.total_weights,
        "density": {weight.name: weight.topology.densities() for weight in sparsifier.weights},
        **sparsifier.measures(),
    }


@dataclass(frozen=True)
class StepReport:
    """Where training stands after an update."""

    epoch: int
    epochs: int
    row: int
    rows: int
    loss: float
    tokens_per_second: float
    seconds_left: float


class Listener:
    """Whoever wants to know how training goes, or to write it down: a subclass overrides what it cares for.

    >>> class Losses(Listener):
    ...     def on_epoch(self, record):
    ...         print(record.epoch, record.valid_loss)
    >>> Trainer(experiment, corpus, Losses()).run()
    """

    def on_start(self, trainer: Trainer) -> None:
        """Training begins, or goes on."""

    def on_step(self, report: StepReport) -> None:
        """An update is done."""

    def on_pause(self, trainer: Trainer) -> None:
        """Between two updates, or two epochs: ``trainer.state_dict()`` is complete, and an exception ends training."""

    def on_best(self, trainer: Trainer) -> None:
        """The model, as it is evaluated at this moment, is the best so far: ``trainer.weights()``."""

    def on_best_average(self, trainer: Trainer, name: str) -> None:
        """The model holds an additional average, the best so far of this name: ``trainer.weights()``."""

    def on_epoch(self, record: EpochRecord) -> None:
        """Receive the record of an epoch that has ended."""

    def on_note(self, message: str) -> None:
        """Something happened that a person may want to know."""


class DivergedError(RuntimeError):
    """A loss, gradient, weight or average is no number any more."""


def spoilt_gradient(model: nn.Module) -> str:
    """What is wrong with a gradient whose norm is no number: the first weight where it has others, or its size."""
    held = [(weight, weight.grad) for weight in model.parameters() if weight.grad is not None]
    found = _first_spoilt([gradient for _, gradient in held])
    if found is None:
        return "the norm of the gradient is infinite"
    return f"the gradient of {_name(model, held[found][0])} has entries that are no numbers"


def spoilt_weight(model: nn.Module, optimizer: Optimizer) -> str | None:
    """The name of the first weight that is not all numbers, or of which the optimizer remembers something else.

    Looked for after every update, so names are made up only for what is found.
    """
    held = [(weight, "", weight) for group in optimizer.param_groups for weight in group["params"]]
    held += [
        (weight, f"{key} of ", value)
        for weight, _, _ in held
        for key, value in optimizer.state.get(weight, {}).items()
        if isinstance(value, Tensor) and value.is_floating_point()
    ]
    found = _first_spoilt([tensor for _, _, tensor in held])
    if found is None:
        return None
    weight, what, _ = held[found]
    return what + _name(model, weight)


@torch.no_grad()
def _first_spoilt(tensors: Sequence[Tensor]) -> int | None:
    """The place of the first tensor that is not all numbers.

    A sum is no number if an entry is none, and takes no memory as ``isfinite`` would; large entries may spoil it, too,
    and are looked at one by one. All sums are asked for before the first is read: a GPU is waited for once.
    """
    for place, total in enumerate([tensor.sum() for tensor in tensors]):
        if not math.isfinite(float(total)) and not bool(tensors[place].isfinite().all()):
            return place
    return None


def _name(model: nn.Module, weight: Tensor) -> str:
    """The name of a weight, in a packed model that of its matrix."""
    return next(
        name
        for name, stored in named_tensors(model)
        if weight is (stored.values if isinstance(stored, PackedWeight) else stored)
    )
