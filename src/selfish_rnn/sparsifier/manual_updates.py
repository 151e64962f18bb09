"""Updates of weights that no torch optimizer makes."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

PATIENCE = 10
"""Backward passes without an optimizer step, in multiples of ``rewire_every``, until updates are looked for."""


class ManualUpdates:
    """Detector and counter of updates in a loop without a torch optimizer, which announces no steps.

    Such a loop is one whose weights change during many backward passes without a step. From then on a change of the
    weights between two forward passes counts as an update. Both look at one weight only. As long as an optimizer makes
    steps nothing is looked at, so an ordinary loop waits for no device.
    """

    def __init__(self, rewire_every: int | None) -> None:
        self._limit = None if rewire_every is None else PATIENCE * rewire_every
        self._rewire_every = rewire_every
        self.reset()

    def reset(self) -> None:
        """Start again after an optimizer step."""
        self._index: int | None = None
        self.counting = False
        self._pending = False
        self.forget()

    def forget(self) -> None:
        """Ignore the change that loading a state_dict makes."""
        self._passes = 0
        self._before: Tensor | None = None

    def state(self, parameters: list[nn.Parameter]) -> dict[str, Any]:
        """Return what a resumed run needs; empty for a loop with an optimizer."""
        return {"index": self._index, "pending": self.updated(parameters)} if self.counting else {}

    def resume(self, state: Mapping[str, Any]) -> None:
        """Continue from what :meth:`state` returned."""
        self.reset()
        if state:
            self._index, self._pending, self.counting = state["index"], state["pending"], True

    def backward(self, index: int, parameter: nn.Parameter) -> bool:
        """Count a backward pass; return whether it shows that the loop has no optimizer."""
        if self._limit is None or self.counting:
            return False
        if self._index is None:
            self._index = index
        if index != self._index:
            return False
        self._passes += 1
        if self._passes == self._limit - 1:
            self._before = parameter.detach().clone()
        if self._passes < self._limit or not self._changed(parameter):
            return False
        self.counting = True
        warnings.warn(
            f"rewire_every={self._rewire_every} counts optimizer steps, and there was none in {self._passes} backward "
            "passes, but the weights change. Changes between two forward passes of the model are counted as steps from "
            "now on. To decide yourself, or if the model is compiled, leave rewire_every= out and call rewire() after "
            "your updates",
            stacklevel=2,
        )
        return True

    def updated(self, parameters: list[nn.Parameter]) -> bool:
        """Return whether the weights have changed since the last look."""
        assert self._index is not None
        return self._pending or self._changed(parameters[self._index])

    def look(self, parameters: list[nn.Parameter]) -> None:
        """Remember the weights as they are now."""
        assert self._index is not None
        self._before, self._pending = parameters[self._index].detach().clone(), False

    def _changed(self, parameter: nn.Parameter) -> bool:
        return self._before is not None and not torch.equal(self._before, parameter.detach())
