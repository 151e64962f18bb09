"""SGD that averages its iterates once the validation loss stops improving, or from an epoch on."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT

from selfish_rnn.optim.iterate_average import AGE, AVERAGE, IterateAverage, parameters_of, refuse_swapped, state_keys
from selfish_rnn.optim.triggers import EpochTrigger, NonMonotoneTrigger


def sgd_(weight: Tensor, gradient: Tensor, lr: float, weight_decay: float) -> None:
    """Step by ``w <- w - lr (g + weight_decay w)``."""
    if weight_decay:
        weight.mul_(1 - lr * weight_decay)
    weight.add_(gradient, alpha=-lr)


class AveragedSGD(Optimizer, abc.ABC):
    """Base class of :class:`SNTASGD` and :class:`NTASGD`, which differ only in the kind of their average.

    Args:
        params: parameters or parameter groups, as for any torch optimizer.
        lr: learning rate.
        weight_decay: part of a weight that is added to its gradient.
        nonmono: averaging starts when the validation loss is worse than the best of all epochs but the last ``nonmono``
            (:class:`NonMonotoneTrigger`).
        average_from: start averaging after this many epochs instead, with the first step of the next epoch.
        below: epochs with a validation loss of at least this do not count for ``nonmono``.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        weight_decay: float = 0.0,
        nonmono: int = 5,
        *,
        average_from: int | None = None,
        below: float | None = None,
    ) -> None:
        if lr <= 0:
            raise ValueError(f"lr must be positive, got {lr}")
        if weight_decay < 0:
            raise ValueError(f"weight_decay must not be negative, got {weight_decay}")
        if nonmono < 0:
            raise ValueError(f"nonmono is a number of epochs and must not be negative, got {nonmono}")
        if average_from is not None and average_from < 1:
            raise ValueError(f"average_from is a number of epochs and must be at least 1, got {average_from}")
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})
        self.trigger: NonMonotoneTrigger | EpochTrigger = (
            NonMonotoneTrigger(nonmono, below) if average_from is None else EpochTrigger(average_from)
        )
        self.averages_swapped_in = False

    @property
    @abc.abstractmethod
    def average(self) -> IterateAverage:
        """Average of this optimizer."""

    @property
    def averaging(self) -> bool:
        """True if averaging has started."""
        return self.trigger.fired

    def observe(self, validation_loss: float) -> bool:
        """Take the validation loss of an epoch; return True if averaging starts with the next step."""
        return self.trigger.observe(validation_loss)

    def start_averaging(self) -> None:
        """Start averaging with the next step, independent of the validation losses."""
        self.trigger.fired = True

    def restart(self) -> None:
        """Restart the averages from the current raw weights, for fine-tuning.

        Without effect before averaging has started.
        """
        self.average.restart(self)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update the raw weights and, once triggered, the averages."""
        refuse_swapped(self, "step()")
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    sgd_(parameter, parameter.grad, float(group["lr"]), group["weight_decay"])
        if self.averaging:
            # All parameters: one that is frozen is its own average, and joins in when it is trained.
            self.average.update(self, parameters_of(self))
        return loss

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """Put the averages into the model inside a block; before the trigger nothing changes.

        ::

            with optimizer.averaged():
                validation_loss = evaluate(model)
        """
        refuse_swapped(self, "averaged()")
        with self.average.swapped_in(self):
            yield

    def __repr__(self) -> str:
        trigger = self.trigger
        if isinstance(trigger, EpochTrigger):
            start = f"average_from: {trigger.epochs}"
        else:
            start = f"nonmono: {trigger.interval}"
        return f"{super().__repr__()[:-1]}{start}, averaging: {self.averaging}\n)"

    def __getstate__(self) -> dict[str, Any]:
        """Return the content of a copy or a pickle, which torch's optimizers limit to state and settings."""
        refuse_swapped(self, "copying")
        return {**super().__getstate__(), "trigger": self.trigger, "averages_swapped_in": False}

    def state_dict(self) -> dict[str, Any]:
        """Return the state as any optimizer does, with the history of the trigger.

        It is among the settings of every group, because tools such as ``torch.distributed.checkpoint`` know nothing
        but states and groups.
        """
        refuse_swapped(self, "state_dict()")
        try:
            for group in self.param_groups:  # where torch finds it, before the hooks of users see what it makes
                group["trigger"] = self.trigger.state_dict()
            return super().state_dict()
        finally:
            for group in self.param_groups:
                group.pop("trigger", None)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        refuse_swapped(self, "load_state_dict()")
        groups = [dict(group) for group in state_dict["param_groups"]]
        triggers = [group.pop("trigger", None) for group in groups]
        if None in triggers:
            raise ValueError("this is not the state of an averaging optimizer: it has no 'trigger'")
        self._refuse_whole_matrices(state_dict)
        super().load_state_dict({"state": state_dict["state"], "param_groups": groups})
        self.trigger.load_state_dict(triggers[0])
        # Optimizer.load_state_dict casts all state to the parameter's dtype; ages are whole numbers.
        for parameter, saved in zip(parameters_of(self), self._saved_states(state_dict), strict=True):
            for key in state_keys(saved, AGE):
                self.state[parameter][key] = saved[key].to(torch.int32, copy=True).to(parameter.device)

    def _refuse_whole_matrices(self, state_dict: dict[str, Any]) -> None:
        # Packed weights of another number are fine: the topology may be loaded after this.
        for number, (parameter, saved) in enumerate(
            zip(parameters_of(self), self._saved_states(state_dict), strict=False)
        ):
            for key in state_keys(saved, AVERAGE):
                if saved[key].ndim != parameter.ndim:
                    raise ValueError(
                        f"the saved average of parameter {number} is of shape {tuple(saved[key].shape)}, the "
                        f"parameter of shape {tuple(parameter.shape)}: averages from before pack(model) are of whole "
                        "matrices, and a packed model needs a new optimizer"
                    )

    @staticmethod
    def _saved_states(state_dict: dict[str, Any]) -> list[dict[str, Tensor]]:
        indices = [index for group in state_dict["param_groups"] for index in group["params"]]
        return [cast("dict[str, Tensor]", state_dict["state"].get(index, {})) for index in indices]


class SNTASGD(AveragedSGD):
    """Sparse non-monotonically triggered averaged SGD (Liu et al. 2021, Eq. 5).

    Plain SGD with a constant learning rate until the validation loss, fed in with :meth:`observe`, is worse than
    the best of all epochs but the last ``nonmono``, or until epoch ``average_from`` is over. From then on every weight
    has its own average, over its values since it last grew (or since averaging started, if that is later):

        average_i = (w_{i,T_i} + ... + w_{i,K}) / (K - T_i + 1)

    A grown weight has age 0 and average 0, which a :class:`~selfish_rnn.Sparsifier` sees to; no masks are
    needed. The first iterate after growth counts, as in the paper's formula (the authors' released code leaves it out).

    ::

        optimizer = SNTASGD(model.parameters(), lr=40, weight_decay=1.2e-6)
        ...                                        # an epoch of optimizer.step()
        with optimizer.averaged():                 # the averages, once there are any
            loss = evaluate(model)
        optimizer.observe(loss)

    Memory: nothing before the trigger, then one average and one age (int32) per weight.
    """

    average = IterateAverage("snt")


class NTASGD(AveragedSGD):
    """Non-monotonically triggered averaged SGD (Merity et al. 2018), the dense ancestor of :class:`SNTASGD`.

    All weights share one start of averaging. In a sparse network a weight that grows later is averaged with the zeros
    before its growth, which drags it towards zero: the effect :class:`SNTASGD` removes.
    """

    average = IterateAverage("nt")
