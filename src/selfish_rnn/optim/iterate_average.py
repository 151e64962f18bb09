"""Averages of the iterates of an optimizer, stored in its state."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

AverageKind = Literal["snt", "nt"]

AVERAGE, AGE = "average", "age"
"""Keys of an optimizer's state, followed by a colon and the name of the average if it has one."""


def average_(average: Tensor, age: Tensor, weight: Tensor) -> None:
    """Update a mean of iterates: ``age <- age + 1``, ``average <- average + (w - average) / age``."""
    age.add_(1)
    # Converted first because torch is slow to divide by whole numbers.
    divisor = age.to(torch.promote_types(weight.dtype, torch.float32))
    average.add_((weight - average).div_(divisor))


@dataclass(frozen=True)
class IterateAverage:
    """Average of the iterates of any optimizer, which may have several.

    :class:`~selfish_rnn.SNTASGD` and :class:`~selfish_rnn.NTASGD` each have one; more of them compare averages on the
    same training. The raw weights do not depend on any average.

    ::

        average = IterateAverage("nt", "from epoch 20")
        ...
        optimizer.step()
        if epoch > 20:
            average.update(optimizer)
        ...
        with average.swapped_in(optimizer):
            loss = evaluate(model)

    The average and its age are in ``optimizer.state``, so that a :class:`~selfish_rnn.Sparsifier` resets and moves
    them at a rewiring and the optimizer's ``state_dict`` saves them.

    Args:
        kind: ``"snt"`` averages every weight since it grew, with one age per weight (Liu et al. 2021, Eq. 5); ``"nt"``
            has one age for all weights, so that a grown weight is averaged with the zeros before its growth.
        name: distinguishes the averages of one optimizer. SNT-ASGD and NT-ASGD use the empty name.
    """

    kind: AverageKind
    name: str = ""

    def __post_init__(self) -> None:
        if self.kind not in get_args(AverageKind):
            raise ValueError(f"the kind of an average is one of {', '.join(get_args(AverageKind))}, got {self.kind!r}")

    @property
    def average_key(self) -> str:
        """Key of the average in the state of a parameter."""
        return f"{AVERAGE}:{self.name}" if self.name else AVERAGE

    @property
    def age_key(self) -> str:
        """Key of the number of averaged iterates in the state of a parameter."""
        return f"{AGE}:{self.name}" if self.name else AGE

    @torch.no_grad()
    def update(self, optimizer: Optimizer, parameters: Iterable[Tensor] | None = None) -> None:
        """Average the current weights in; call it after ``optimizer.step()``.

        Args:
            optimizer: the optimizer of the weights.
            parameters: the weights to average, by default all that the optimizer has updated.
        """
        refuse_swapped(optimizer, "update()")
        # Adam and others initialize their state in the first step of a parameter, and only if it is empty.
        for parameter in updated(optimizer) if parameters is None else parameters:
            state = optimizer.state[parameter]
            if self.average_key not in state:
                state[self.average_key] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
                state[self.age_key] = self._new_age(parameter)
            if state[self.age_key].is_floating_point():  # most optimizers convert what they load
                state[self.age_key] = state[self.age_key].to(torch.int32)
            average_(state[self.average_key], state[self.age_key], parameter)

    def _new_age(self, parameter: Tensor) -> Tensor:
        if self.kind == "snt":
            return torch.zeros_like(parameter, dtype=torch.int32, memory_format=torch.preserve_format)
        return torch.zeros((), dtype=torch.int32, device=parameter.device)

    def restart(self, optimizer: Optimizer) -> None:
        """Delete the average; the next :meth:`update` starts another."""
        refuse_swapped(optimizer, "restart()")
        for parameter in parameters_of(optimizer):
            state = optimizer.state.get(parameter)
            if state is None:
                continue
            state.pop(self.average_key, None)
            state.pop(self.age_key, None)
            if not state:
                del optimizer.state[parameter]

    @contextlib.contextmanager
    def swapped_in(self, optimizer: Optimizer) -> Iterator[None]:
        """Put the average into the model inside a block; a weight without an average stays.

        Steps and rewirings need the raw weights, which return at the end of the block.
        """
        refuse_swapped(optimizer, "swapped_in()")
        self._swap(optimizer)
        _mark_swapped(optimizer, True)
        try:
            yield
        finally:
            self._swap(optimizer)
            _mark_swapped(optimizer, False)

    @torch.no_grad()
    def _swap(self, optimizer: Optimizer) -> None:
        for parameter in parameters_of(optimizer):
            average = optimizer.state.get(parameter, {}).get(self.average_key)
            if average is not None:
                raw = parameter.clone()
                parameter.copy_(average)
                average.copy_(raw)


def parameters_of(optimizer: Optimizer) -> Iterator[Tensor]:
    """Iterate over all parameters of an optimizer."""
    for group in optimizer.param_groups:
        yield from group["params"]


def updated(optimizer: Optimizer) -> list[Tensor]:
    """Return the parameters that an optimizer has updated."""
    return [
        parameter
        for parameter in parameters_of(optimizer)
        if optimizer.state.get(parameter) or parameter.grad is not None
    ]


def refuse_swapped(optimizer: Optimizer, call: str) -> None:
    """Raise an error if the model of an optimizer holds averages now."""
    if getattr(optimizer, "averages_swapped_in", False):
        raise RuntimeError(f"{call} needs the raw weights: leave the block with the averages first")


def _mark_swapped(optimizer: Optimizer, swapped: bool) -> None:
    setattr(optimizer, "averages_swapped_in", swapped)  # noqa: B010 - of any optimizer; a sparsifier looks at it


def state_keys(state: dict[str, Any], kind: str) -> list[str]:
    """Return the keys of all averages, or of all ages, in the state of a parameter."""
    return [key for key in state if key.partition(":")[0] == kind]
