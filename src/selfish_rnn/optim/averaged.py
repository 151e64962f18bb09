"""SGD that, once the validation loss stops improving, also averages its iterates."""

from __future__ import annotations

import abc
import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT


class NonMonotoneTrigger:
    """Fires once, when the validation loss no longer improves on what it was more than ``interval`` epochs ago.

    With losses v_1, v_2, ... the trigger fires after epoch e if ``e - 1 > interval`` and
    ``v_e > min(v_1, ..., v_{e-1-interval})``.

    >>> trigger = NonMonotoneTrigger(interval=1)
    >>> [trigger.observe(loss) for loss in (5.0, 4.0, 4.5, 6.0, 7.0)]
    [False, False, False, True, False]
    """

    def __init__(self, interval: int = 5) -> None:
        self.interval = interval
        self.fired = False
        self.losses: list[float] = []

    def observe(self, loss: float) -> bool:
        """Take the validation loss of an epoch; true if this is the one after which averaging starts."""
        loss = float(loss)  # a tensor would be kept with the state, on its device
        if math.isnan(loss):
            raise ValueError("the validation loss is NaN; the trigger cannot compare it")
        earlier = self.losses[: max(len(self.losses) - self.interval, 0)]
        fires = not self.fired and bool(earlier) and loss > min(earlier)
        self.fired = self.fired or fires
        self.losses.append(loss)
        return fires


def sgd_(weight: Tensor, gradient: Tensor, lr: float, weight_decay: float) -> None:
    """``w <- w - lr (g + weight_decay w)``."""
    if weight_decay:
        weight.mul_(1 - lr * weight_decay)
    weight.add_(gradient, alpha=-lr)


def average_(average: Tensor, age: Tensor, weight: Tensor) -> None:
    """``age <- age + 1``, ``average <- average + (w - average) / age``: the mean of the last ``age`` iterates."""
    age.add_(1)
    # Converted first because torch is slow to divide by whole numbers.
    divisor = age.to(torch.promote_types(weight.dtype, torch.float32))
    average.add_((weight - average).div_(divisor))


class AveragedSGD(Optimizer, abc.ABC):
    """SGD that averages once the validation loss stops improving: what :class:`SNTASGD` and :class:`NTASGD` share.

    They differ in the shape of the age only: one for every weight, or one for all.
    """

    def __init__(self, params: ParamsT, lr: float, weight_decay: float = 0.0, nonmono: int = 5) -> None:
        if lr <= 0:
            raise ValueError(f"lr must be positive, got {lr}")
        if weight_decay < 0:
            raise ValueError(f"weight_decay must not be negative, got {weight_decay}")
        if nonmono < 0:
            raise ValueError(f"nonmono is a number of epochs and must not be negative, got {nonmono}")
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})
        self.trigger = NonMonotoneTrigger(nonmono)
        self.averages_swapped_in = False

    @staticmethod
    @abc.abstractmethod
    def _new_age(parameter: Tensor) -> Tensor:
        """The age of a parameter's average before its first iterate: 0, for every weight or for all of them."""

    @property
    def averaging(self) -> bool:
        """Whether averaging has started."""
        return self.trigger.fired

    def observe(self, validation_loss: float) -> bool:
        """Take the validation loss of an epoch; true if averaging starts with the next step."""
        return self.trigger.observe(validation_loss)

    def start_averaging(self) -> None:
        """Start averaging with the next step, whatever the validation losses say."""
        self.trigger.fired = True

    def restart(self) -> None:
        """Forget the averages, and begin new ones from the current raw weights: a fine-tuning restart.

        Without effect before averaging has started.
        """
        self._refuse_if_swapped("restart()")
        self.state.clear()

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update of the raw weights and, once triggered, of the averages."""
        self._refuse_if_swapped("step()")
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    sgd_(parameter, parameter.grad, float(group["lr"]), group["weight_decay"])
        if self.averaging:
            self._average()
        return loss

    def _average(self) -> None:
        for parameter in self._parameters():
            state = self.state[parameter]
            if not state:
                state["average"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
                state["age"] = self._new_age(parameter)
            average_(state["average"], state["age"], parameter)

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """Inside this block the model holds the averages, outside the raw weights; before the trigger, no change.

        ::

            with optimizer.averaged():
                validation_loss = evaluate(model)
        """
        self._refuse_if_swapped("averaged()")
        self._swap()
        self.averages_swapped_in = True
        try:
            yield
        finally:
            self._swap()
            self.averages_swapped_in = False

    @torch.no_grad()
    def _swap(self) -> None:
        for parameter in self._parameters():
            state = self.state.get(parameter)
            if state:
                raw = parameter.clone()
                parameter.copy_(state["average"])
                state["average"].copy_(raw)

    def _parameters(self) -> Iterator[Tensor]:
        for group in self.param_groups:
            yield from group["params"]

    def _refuse_if_swapped(self, call: str) -> None:
        if self.averages_swapped_in:
            raise RuntimeError(f"{call} needs the raw weights: leave the averaged() block first")

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}nonmono: {self.trigger.interval}, averaging: {self.averaging}\n)"

    def __getstate__(self) -> dict[str, Any]:
        """What a copy or a pickle takes along; torch's own optimizers leave out all but their state and settings."""
        self._refuse_if_swapped("copying")
        return {**super().__getstate__(), "trigger": self.trigger, "averages_swapped_in": False}

    def state_dict(self) -> dict[str, Any]:
        """As of any optimizer, with the history of the trigger.

        It is among the settings of every group, because tools such as ``torch.distributed.checkpoint`` know nothing
        but states and groups.
        """
        self._refuse_if_swapped("state_dict()")
        try:
            for group in self.param_groups:  # where torch finds it, before the hooks of users see what it makes
                group["trigger"] = {"fired": self.trigger.fired, "losses": list(self.trigger.losses)}
            return super().state_dict()
        finally:
            for group in self.param_groups:
                group.pop("trigger", None)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._refuse_if_swapped("load_state_dict()")
        groups = [dict(group) for group in state_dict["param_groups"]]
        triggers = [group.pop("trigger", None) for group in groups]
        if None in triggers:
            raise ValueError("this is not the state of an averaging optimizer: it has no 'trigger'")
        self._refuse_whole_matrices(state_dict)
        super().load_state_dict({"state": state_dict["state"], "param_groups": groups})
        self.trigger.fired = triggers[0]["fired"]
        self.trigger.losses = list(triggers[0]["losses"])
        # Optimizer.load_state_dict casts all state to the parameter's dtype; ages are whole numbers.
        for parameter, saved in zip(self._parameters(), self._saved_states(state_dict), strict=True):
            if saved:
                self.state[parameter]["age"] = saved["age"].to(torch.int32, copy=True).to(parameter.device)

    def _refuse_whole_matrices(self, state_dict: dict[str, Any]) -> None:
        # Packed weights of another number are fine: the topology may be loaded after this.
        for number, (parameter, saved) in enumerate(
            zip(self._parameters(), self._saved_states(state_dict), strict=False)
        ):
            if saved and saved["average"].ndim != parameter.ndim:
                raise ValueError(
                    f"the saved average of parameter {number} is of shape {tuple(saved['average'].shape)}, the "
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
    the best of all epochs but the last ``nonmono``. From then on every weight has its own average, over its values
    since it last grew (or since averaging started, if that is later):

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

    @staticmethod
    def _new_age(parameter: Tensor) -> Tensor:
        return torch.zeros_like(parameter, dtype=torch.int32, memory_format=torch.preserve_format)


class NTASGD(AveragedSGD):
    """Non-monotonically triggered averaged SGD (Merity et al. 2018), the dense ancestor of :class:`SNTASGD`.

    All weights share one start of averaging. In a sparse network a weight that grows later is averaged with the zeros
    before its growth, which drags it towards zero: the effect :class:`SNTASGD` removes.
    """

    @staticmethod
    def _new_age(parameter: Tensor) -> Tensor:
        return torch.zeros((), dtype=torch.int32, device=parameter.device)
