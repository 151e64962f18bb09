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
    def _parameters(self) -> Sequence[nn.Parameter]:
        """The parameters it is bound to."""

    def _gradient_computed(self, index: int, gradient: Tensor) -> None:
        """A backward pass has computed the gradient of a parameter; it is not yet added to ``.grad``."""

    def _gradient_accumulated(self, index: int) -> None:
        """The gradient of a parameter has been added to its ``.grad``."""

    def _stepped(self, optimizer: Optimizer) -> None:
        """An optimizer that holds some of the parameters has made a step."""

    def _loaded(self) -> None:
        """A module that owns some of the parameters has loaded a state_dict."""


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
        for index, parameter in enumerate(bound._parameters):
            handles.append(parameter.register_hook(_computed(reference, index)))  # type: ignore[no-untyped-call]
            handles.append(parameter.register_post_accumulate_grad_hook(_accumulated(reference, index)))  # type: ignore[no-untyped-call]
        # Optimizers are many and may come later, so this hook is on all of them.
        handles.append(register_optimizer_step_post_hook(_after_step(reference)))
        own = {id(parameter) for parameter in bound._parameters}
        for module in model.modules():
            if any(id(parameter) in own for parameter in module.parameters(recurse=False)):
                module.__dict__.setdefault("_bound", _KeptAlive()).add(bound)
                self._owners.add(module)
                handles.append(module.register_load_state_dict_post_hook(_AfterLoading(reference, weakref.ref(module))))  # type: ignore[no-untyped-call]

        for handle in handles:
            weakref.finalize(bound, handle.remove)
        self._handles = handles

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
            for parameter in bound._parameters:
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


class _AfterLoading:
    """A hook on a module; copied or pickled with it, it does nothing there."""

    def __init__(
        self, reference: weakref.ref[Bound] | None = None, module: weakref.ref[nn.Module] | None = None
    ) -> None:
        self._reference = reference
        self._module = module

    def __call__(self, module: nn.Module, incompatible_keys: Any) -> None:
        bound = None if self._reference is None else self._reference()
        if bound is not None and self._module is not None and self._module() is module:
            bound._loaded()

    def __deepcopy__(self, memo: dict[int, Any]) -> _AfterLoading:
        return _AfterLoading()

    def __reduce__(self) -> tuple[type[_AfterLoading], tuple[()]]:
        return _AfterLoading, ()


def _computed(reference: weakref.ref[Bound], index: int) -> Callable[[Tensor], None]:
    def hook(gradient: Tensor) -> None:
        bound = reference()
        if bound is not None:
            bound._gradient_computed(index, gradient)

    return hook


def _accumulated(reference: weakref.ref[Bound], index: int) -> Callable[[Tensor], None]:
    def hook(parameter: Tensor) -> None:
        bound = reference()
        if bound is not None and parameter.grad is not None:
            bound._gradient_accumulated(index)

    return hook


def _after_step(reference: weakref.ref[Bound]) -> Callable[[Optimizer, Any, Any], None]:
    def hook(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        bound = reference()
        if bound is not None and held(optimizer, bound._parameters):
            bound._stepped(optimizer)

    return hook
