"""Running a model to see what goes through its layers; afterwards it is as it was."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from selfish_rnn.analysis.networks import weight_matrices
from selfish_rnn.engine import PackedWeight

Hook = Callable[[str, nn.Module, tuple[Any, ...], Any], None]
"""Hears the name of a module, the module, what it was called with, in the order of its arguments, and what it gave."""


@contextlib.contextmanager
def watched(model: nn.Module, hook: Hook) -> Iterator[None]:
    """In this block the model is in evaluation mode and tells of every call of a module that has a weight matrix."""
    owners = {name for matrix in weight_matrices(model).values() for name in matrix.owners}
    modes = [(module, module.training) for module in model.modules()]
    handles = [
        module.register_forward_hook(partial(_call, hook, name), with_kwargs=True)
        for name, module in model.named_modules()
        if name in owners and not isinstance(module, PackedWeight)
    ]
    model.eval()
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        for module, mode in modes:
            module.training = mode


def _call(hook: Hook, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
    hook(name, module, (*args, *kwargs.values()), output)


def first_tensor(value: Any) -> Tensor | None:
    """The first tensor in what a module takes or gives; of a packed sequence its data."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, PackedSequence):
        return value.data
    if isinstance(value, (tuple, list)):
        return next((found for found in map(first_tensor, value) if found is not None), None)
    return None
