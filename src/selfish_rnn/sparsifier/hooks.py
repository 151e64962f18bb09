"""Hooks on the gradients of weights and on the steps of the optimizers that hold them."""

from __future__ import annotations

import functools
import itertools
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.hooks import RemovableHandle

from selfish_rnn.sparsifier.weights import SparseWeight

ATTRIBUTE = "_selfish_rnn_bound"
"""Attribute of a module that keeps the listeners of its weights alive."""


class HookListener:
    """Receiver of events of some parameters of a model; a subclass overrides the methods it needs."""

    @property
    def hooked_parameters(self) -> Sequence[nn.Parameter]:
        """Parameters whose events it receives."""
        raise NotImplementedError

    def on_gradient(self, index: int, gradient: Tensor) -> Tensor | None:
        """Process the gradient of a parameter before autograd returns it or adds it to ``.grad``.

        Returns:
            The gradient to use instead, or None to use this one.
        """
        return None

    def on_forward(self) -> None:
        """Run before a forward pass of the model; see :meth:`Hooks.listen_to_forward`."""

    def before_step(self) -> None:
        """Run before a step of an optimizer that holds some of the parameters."""

    def on_step(self, optimizer: Optimizer, indices: Sequence[int]) -> None:
        """Run after a step of an optimizer; ``indices`` are those of its parameters."""

    def on_load(self) -> None:
        """Run after a module with some of the parameters has loaded a state_dict."""

    def on_lost(self, index: int) -> None:
        """Run after a step of an optimizer that holds the tensor which replaced a parameter in its module."""


class Hooks:
    """Hooks of one listener on one model.

    Hooks refer to the listener weakly (a strong reference from a tensor's hook is a leak the garbage collector does not
    see); the modules that own the parameters keep it alive, whether or not the user does.
    """

    def __init__(self, listener: HookListener, model: nn.Module, before: nn.Module | None = None) -> None:
        reference = weakref.ref(listener)
        self._listener = reference
        self._before = None if before is None or before is model else weakref.ref(before)
        self._model = weakref.ref(model)
        self._forward: RemovableHandle | None = None
        self._owners: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        handles: list[Any] = []
        for index, parameter in enumerate(listener.hooked_parameters):
            frozen = not parameter.requires_grad
            parameter.requires_grad_(True)  # a frozen one takes no hooks, and may be thawed later
            handles.append(parameter.register_hook(functools.partial(_computed, reference, index)))  # type: ignore[no-untyped-call]
            parameter.requires_grad_(not frozen)
        self._number = next(_numbers)
        _listen_to_steps()
        _active_hooks[self._number] = self
        indices = {id(parameter): index for index, parameter in enumerate(listener.hooked_parameters)}
        self._places: dict[int, tuple[weakref.ref[nn.Module], str, weakref.ref[object]]] = {}
        for module in model.modules():
            for name, holder, parameter in _held(module):
                if id(parameter) in indices:
                    place = weakref.ref(module), name, weakref.ref(holder)
                    self._places.setdefault(indices[id(parameter)], place)
            if any(id(parameter) in indices for parameter in module.parameters(recurse=False)):
                module.__dict__.setdefault(ATTRIBUTE, _Listeners()).add(listener)
                self._owners.add(module)
                handles.append(module.register_load_state_dict_post_hook(_AfterLoading(reference, weakref.ref(module))))  # type: ignore[no-untyped-call]

        for handle in handles:
            weakref.finalize(listener, handle.remove)
        self._handles = handles

    def lost(self) -> Iterator[tuple[int, nn.Module | None]]:
        """Yield the parameters that were replaced in the model, each with its module if that still exists."""
        for index, (reference, name, holder) in self._places.items():
            module = reference()
            if module is None or module._parameters.get(name, module._modules.get(name)) is not holder():
                yield index, module

    @property
    def dropped(self) -> bool:
        """True if the replacement of a module was dropped while the module still exists."""
        return self._before is not None and self._before() is not None

    def listen_to_forward(self) -> None:
        """Call the listener's :meth:`HookListener.on_forward` before every forward pass from now on."""
        model = self._model()
        if self._forward is None and model is not None:
            self._forward = model.register_forward_pre_hook(_BeforeForward(self._listener, self._model))

    def ignore_forward(self) -> None:
        """Stop what :meth:`listen_to_forward` started."""
        if self._forward is not None:
            self._forward.remove()
        self._forward = None

    def stepping(self, parameter_ids: set[int]) -> None:
        """Announce a step of an optimizer that has parameters of these ids."""
        listener = self._listener()
        if listener is not None and any(id(parameter) in parameter_ids for parameter in listener.hooked_parameters):
            listener.before_step()

    def stepped(self, optimizer: Optimizer, parameter_ids: set[int]) -> None:
        """Announce the end of a step of an optimizer that has parameters of these ids."""
        listener = self._listener()
        if listener is None:
            return
        for index, module in self.lost():
            if module is not None and any(id(parameter) in parameter_ids for parameter in module.parameters()):
                listener.on_lost(index)
        indices = [
            index for index, parameter in enumerate(listener.hooked_parameters) if id(parameter) in parameter_ids
        ]
        if indices:
            listener.on_step(optimizer, indices)

    def release(self) -> None:
        """Remove the hooks, and every trace of them in the modules of the model."""
        self.ignore_forward()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        _active_hooks.pop(self._number, None)
        for module in self._owners:
            bound = module.__dict__.get(ATTRIBUTE, set())
            bound.discard(self._listener())
            if not bound:
                module.__dict__.pop(ATTRIBUTE, None)


def _held(module: nn.Module) -> Iterator[tuple[str, object, nn.Parameter]]:
    """Yield the weights of a module: name, object and parameter.

    The object of a packed weight is the module itself, because users of the weight keep its parameter alive.
    """
    if isinstance(module, SparseWeight):
        return
    for name, parameter in module.named_parameters(recurse=False):
        yield name, parameter, parameter
    for name, child in module.named_children():
        if isinstance(child, SparseWeight):
            yield name, child, child.parameter


def listeners(model: nn.Module) -> Iterator[HookListener]:
    """Yield the listeners to weights of a model, each once."""
    seen: set[int] = set()
    for module in model.modules():
        for listener in module.__dict__.get(ATTRIBUTE, ()):
            if id(listener) not in seen:
                seen.add(id(listener))
                yield listener


def check_unbound(model: nn.Module, names: dict[int, str]) -> None:
    """Raise an error if one of the parameters ``names`` (by id) has a listener: two would undo each other's zeros."""
    for listener in listeners(model):
        for parameter in listener.hooked_parameters:
            if id(parameter) in names:
                raise ValueError(
                    f"{names[id(parameter)]} already has a sparsifier; exclude it here, or detach() the other one first"
                )


class _Listeners(set[HookListener]):
    """Listeners of a module; a copy of the module has none."""

    def __deepcopy__(self, memo: dict[int, Any]) -> _Listeners:
        return _Listeners()

    def __reduce__(self) -> tuple[type[_Listeners], tuple[()]]:
        return _Listeners, ()


class _ModuleHook:
    """Hook on a module for one listener; a copy of the module has one that does nothing."""

    def __init__(
        self, reference: weakref.ref[HookListener] | None = None, module: weakref.ref[nn.Module] | None = None
    ) -> None:
        self._reference = reference
        self._module = module

    def listener(self, module: nn.Module) -> HookListener | None:
        """Return the listener, unless this hook belongs to a copy."""
        original = self._module is not None and self._module() is module
        return self._reference() if original and self._reference is not None else None

    def __deepcopy__(self, memo: dict[int, Any]) -> _ModuleHook:
        return type(self)()

    def __reduce__(self) -> tuple[type[_ModuleHook], tuple[()]]:
        return type(self), ()


class _AfterLoading(_ModuleHook):
    """Hook that announces a loaded state_dict."""

    def __call__(self, module: nn.Module, incompatible_keys: Any) -> None:
        listener = self.listener(module)
        if listener is not None:
            listener.on_load()


class _BeforeForward(_ModuleHook):
    """Hook that announces a forward pass, except inside a compiled model."""

    def __call__(self, module: nn.Module, inputs: Any) -> None:
        if torch.compiler.is_compiling():
            return
        listener = self.listener(module)
        if listener is not None:
            listener.on_forward()


# A model that is saved whole contains these classes; torch.load(weights_only=True) opens it once they are registered.
torch.serialization.add_safe_globals([_Listeners, _AfterLoading, _BeforeForward])


def _computed(reference: weakref.ref[HookListener], index: int, gradient: Tensor) -> Tensor | None:
    listener = reference()
    return None if listener is None else listener.on_gradient(index, gradient)


_numbers = itertools.count()
_active_hooks: weakref.WeakValueDictionary[int, Hooks] = weakref.WeakValueDictionary()
"""Hooks that announce optimizer steps, in the order in which they were made."""


@functools.cache
def _listen_to_steps() -> None:
    """Register one hook on the steps of all optimizers, once per process.

    A hook per listener would be removed when the listener is collected as garbage, which may happen while torch
    iterates over its hooks.
    """
    register_optimizer_step_pre_hook(_before_step)
    register_optimizer_step_post_hook(_after_step)


def _ids(optimizer: Optimizer) -> set[int]:
    return {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}


def _before_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    parameter_ids = _ids(optimizer)
    for hooks in list(_active_hooks.values()):
        hooks.stepping(parameter_ids)


def _after_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    parameter_ids = _ids(optimizer)
    for hooks in list(_active_hooks.values()):
        hooks.stepped(optimizer, parameter_ids)


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
        if self._before is None:
            return False
        before = self._before.to(parameter.device, parameter.dtype)  # the model may have been moved since
        return not torch.equal(before, parameter.detach())
