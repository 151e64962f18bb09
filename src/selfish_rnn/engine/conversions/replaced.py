"""Parameters that packing took out of a model: an optimizer that still holds one would train nothing, silently."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook
from torch.utils.weak import WeakTensorKeyDictionary

# The name each had; an entry goes when the parameter does.
_replaced: MutableMapping[Tensor, str] = WeakTensorKeyDictionary()


def mark_replaced(before: nn.Module, parameters: dict[str, nn.Parameter], after: nn.Module) -> None:
    """Remember which ``parameters`` of the model ``before`` are not those of the model ``after`` packing."""
    kept = {id(parameter) for parameter in after.parameters()}
    for name, parameter in parameters.items():
        if id(parameter) not in kept:
            _replaced[parameter] = name if before is after else f"{name} of the module that was given to pack"


def _refuse_replaced(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    if not len(_replaced):
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter in _replaced:
                raise RuntimeError(
                    f"this {type(optimizer).__name__} holds {_replaced[parameter]}, which packing or unpacking has "
                    "replaced: make the optimizer afterwards, from the parameters of the model that was returned"
                )


register_optimizer_step_pre_hook(_refuse_replaced)
