"""Tying an object to a model's weights and to whatever optimizers step them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook


class Bound(Protocol):
    """What is bound: it hears of gradients and of steps."""

    @property
    def parameters(self) -> Sequence[nn.Parameter]:
        """The parameters it is bound to."""

    def gradient_computed(self, index: int, gradient: Tensor) -> None:
        """A backward pass has computed the gradient of a parameter; it is not yet added to ``.grad``."""

    def gradient_accumulated(self, index: int) -> None:
        """The gradient of a parameter has been added to its ``.grad``."""

    def stepped(self, optimizer: Optimizer) -> None:
        """An optimizer that holds some of the parameters has made a step."""


class Binding:
    """The hooks of one bound object.

    Hooks refer to it weakly (a strong reference from a tensor's hook is a leak the garbage collector does not see);
    the modules that own the parameters keep it alive, whether or not the user does.
    """

    def __init__(self, bound: Bound, model: nn.Module) -> None:
        reference = weakref.ref(bound)
        self._bound = reference
        self._owners: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        handles: list[Any] = []
        for index, parameter in enumerate(bound.parameters):
            handles.append(parameter.register_hook(_computed(reference, index)))  # type: ignore[no-untyped-call]
            handles.append(parameter.register_post_accumulate_grad_hook(_accumulated(reference, index)))  # type: ignore[no-untyped-call]
        # Optimizers are many and may come later, so this hook is on all of them.
        handles.append(register_optimizer_step_post_hook(_after_step(reference)))
        for handle in handles:
            weakref.finalize(bound, handle.remove)
        self._handles = handles
        own = {id(parameter) for parameter in bound.parameters}
        for module in model.modules():
            if any(id(parameter) in own for parameter in module.parameters(recurse=False)):
                module.__dict__.setdefault("_bound", _KeptAlive()).add(bound)
                self._owners.add(module)

    def release(self) -> None:
        """Remove the hooks, and let go of the model."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        for module in self._owners:
            module.__dict__["_bound"].discard(self._bound())


def refuse_bound(model: nn.Module, names: dict[int, str]) -> None:
    """Two that set weights to zero would each break what the other promises; ``names`` are by parameter id."""
    for module in model.modules():
        for bound in module.__dict__.get("_bound", ()):
            for parameter in bound.parameters:
                if id(parameter) in names:
                    raise ValueError(
                        f"{names[id(parameter)]} already has a sparsifier; exclude it here, "
                        "or detach() the other one first"
                    )


def held(optimizer: Optimizer, parameters: Iterable[nn.Parameter]) -> list[int]:
    """Which of the parameters an optimizer holds, by index."""
    own = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    return [index for index, parameter in enumerate(parameters) if id(parameter) in own]


class _KeptAlive(set[Any]):
    """What is bound to a module; a copy of the module is an ordinary one to which nothing is."""

    def __deepcopy__(self, memo: dict[int, Any]) -> _KeptAlive:
        return _KeptAlive()

    def __reduce__(self) -> tuple[type[_KeptAlive], tuple[()]]:
        return _KeptAlive, ()


def _computed(reference: weakref.ref[Bound], index: int) -> Callable[[Tensor], None]:
    def hook(gradient: Tensor) -> None:
        bound = reference()
        if bound is not None:
            bound.gradient_computed(index, gradient)

    return hook


def _accumulated(reference: weakref.ref[Bound], index: int) -> Callable[[Tensor], None]:
    def hook(parameter: Tensor) -> None:
        bound = reference()
        if bound is not None and parameter.grad is not None:
            bound.gradient_accumulated(index)

    return hook


def _after_step(reference: weakref.ref[Bound]) -> Callable[[Optimizer, Any, Any], None]:
    def hook(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        bound = reference()
        if bound is not None and held(optimizer, bound.parameters):
            bound.stepped(optimizer)

    return hook
