"""Listening to the gradients of a model's weights and to the steps of whatever optimizers hold them."""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from selfish_rnn.sparsifier.weights import StoredWeight

ATTRIBUTE = "_selfish_rnn_bound"
"""Under this name a module keeps alive what listens to its weights."""


class HookListener:
    """What hooks tell of some parameters of a model; a subclass overrides what it wants to hear."""

    @property
    def hooked_parameters(self) -> Sequence[nn.Parameter]:
        """The parameters it listens to."""
        raise NotImplementedError

    def on_gradient(self, index: int, gradient: Tensor) -> None:
        """A backward pass has computed the gradient of a parameter; it is not yet added to ``.grad``."""

    def on_accumulated(self, index: int) -> None:
        """The gradient of a parameter has been added to its ``.grad``."""

    def on_step(self, optimizer: Optimizer, held: Sequence[int]) -> None:
        """An optimizer that holds some of the parameters, ``held``, has made a step."""

    def on_load(self) -> None:
        """A module that owns some of the parameters has loaded a state_dict."""

    def on_lost(self, index: int) -> None:
        """An optimizer has made a step with what now is in the place of a parameter in its module."""


class Hooks:
    """The hooks of one listener on one model.

    Hooks refer to the listener weakly (a strong reference from a tensor's hook is a leak the garbage collector does not
    see); the modules that own the parameters keep it alive, whether or not the user does.
    """

    def __init__(self, listener: HookListener, model: nn.Module, before: nn.Module | None = None) -> None:
        reference = weakref.ref(listener)
        self._listener = reference
        self._before = None if before is None or before is model else weakref.ref(before)
        self._owners: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        handles: list[Any] = []
        for index, parameter in enumerate(listener.hooked_parameters):
            frozen = not parameter.requires_grad
            parameter.requires_grad_(True)  # a frozen one takes no hooks, and may be thawed later
            computed, accumulated = (functools.partial(hook, reference, index) for hook in (_computed, _accumulated))
            handles.append(parameter.register_hook(computed))  # type: ignore[no-untyped-call]
            handles.append(parameter.register_post_accumulate_grad_hook(accumulated))  # type: ignore[no-untyped-call]
            parameter.requires_grad_(not frozen)
        self._number = next(_numbers)
        _listen_to_steps()
        _hear_steps[self._number] = self
        own = {id(parameter): index for index, parameter in enumerate(listener.hooked_parameters)}
        self._places: dict[int, tuple[weakref.ref[nn.Module], str, weakref.ref[object]]] = {}
        for module in model.modules():
            for name, held, parameter in _held(module):
                if id(parameter) in own:
                    place = weakref.ref(module), name, weakref.ref(held)
                    self._places.setdefault(own[id(parameter)], place)
            if any(id(parameter) in own for parameter in module.parameters(recurse=False)):
                module.__dict__.setdefault(ATTRIBUTE, _Listeners()).add(listener)
                self._owners.add(module)
                handles.append(module.register_load_state_dict_post_hook(_AfterLoading(reference, weakref.ref(module))))  # type: ignore[no-untyped-call]

        for handle in handles:
            weakref.finalize(listener, handle.remove)
        self._handles = handles

    def lost(self) -> Iterator[tuple[int, nn.Module | None]]:
        """The parameters that are no longer at their places in the model, with the modules if those still live."""
        for index, (reference, name, held) in self._places.items():
            module = reference()
            if module is None or module._parameters.get(name, module._modules.get(name)) is not held():
                yield index, module

    @property
    def dropped(self) -> bool:
        """Whether nothing holds what took the place of a module that still lives."""
        return self._before is not None and self._before() is not None

    def stepped(self, optimizer: Optimizer, own: set[int]) -> None:
        """Tell the listener of a step of an optimizer that holds the parameters of these ids."""
        listener = self._listener()
        if listener is None:
            return
        for index, module in self.lost():
            if module is not None and any(id(parameter) in own for parameter in module.parameters()):
                listener.on_lost(index)
        held = [index for index, parameter in enumerate(listener.hooked_parameters) if id(parameter) in own]
        if held:
            listener.on_step(optimizer, held)

    def release(self) -> None:
        """Remove the hooks, and let go of the model."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        _hear_steps.pop(self._number, None)
        for module in self._owners:
            module.__dict__[ATTRIBUTE].discard(self._listener())


def _held(module: nn.Module) -> Iterator[tuple[str, object, nn.Parameter]]:
    """What a module holds that is a weight: its name, the object, and the parameter.

    Of a weight that is a module of its own that is the module: whoever has the weight keeps its parameter alive.
    """
    if isinstance(module, StoredWeight):
        return
    for name, parameter in module.named_parameters(recurse=False):
        yield name, parameter, parameter
    for name, child in module.named_children():
        if isinstance(child, StoredWeight):
            yield name, child, child.values


def listeners(model: nn.Module) -> Iterator[HookListener]:
    """What listens to weights of a model, each once."""
    seen: set[int] = set()
    for module in model.modules():
        for listener in module.__dict__.get(ATTRIBUTE, ()):
            if id(listener) not in seen:
                seen.add(id(listener))
                yield listener


def refuse_second_listener(model: nn.Module, names: dict[int, str]) -> None:
    """Raise an error if one of the parameters ``names`` (by id) has a listener: two would undo each other's zeros."""
    for listener in listeners(model):
        for parameter in listener.hooked_parameters:
            if id(parameter) in names:
                raise ValueError(
                    f"{names[id(parameter)]} already has a sparsifier; exclude it here, or detach() the other one first"
                )


class _Listeners(set[HookListener]):
    """The listeners of a module; a copy of the module is an ordinary one that has none."""

    def __deepcopy__(self, memo: dict[int, Any]) -> _Listeners:
        return _Listeners()

    def __reduce__(self) -> tuple[type[_Listeners], tuple[()]]:
        return _Listeners, ()


class _AfterLoading:
    """A hook on a module; copied or pickled with it, it does nothing there."""

    def __init__(
        self, reference: weakref.ref[HookListener] | None = None, module: weakref.ref[nn.Module] | None = None
    ) -> None:
        self._reference = reference
        self._module = module

    def __call__(self, module: nn.Module, incompatible_keys: Any) -> None:
        listener = None if self._reference is None else self._reference()
        if listener is not None and self._module is not None and self._module() is module:
            listener.on_load()

    def __deepcopy__(self, memo: dict[int, Any]) -> _AfterLoading:
        return _AfterLoading()

    def __reduce__(self) -> tuple[type[_AfterLoading], tuple[()]]:
        return _AfterLoading, ()


def _computed(reference: weakref.ref[HookListener], index: int, gradient: Tensor) -> None:
    listener = reference()
    if listener is not None:
        listener.on_gradient(index, gradient)


def _accumulated(reference: weakref.ref[HookListener], index: int, parameter: Tensor) -> None:
    listener = reference()
    if listener is not None and parameter.grad is not None:
        listener.on_accumulated(index)


_numbers = itertools.count()
_hear_steps: weakref.WeakValueDictionary[int, Hooks] = weakref.WeakValueDictionary()
"""The hooks whose listeners are told of optimizer steps, in the order in which they came."""


@functools.cache
def _listen_to_steps() -> None:
    """Hear of the steps of all optimizers: they are many, and may come later.

    One hook for all listeners, which stays: a hook of a listener's own would be removed when the listener is collected
    as garbage, which may be while torch goes through its hooks.
    """
    register_optimizer_step_post_hook(_after_step)


def _after_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    own = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for hooks in list(_hear_steps.values()):
        hooks.stepped(optimizer, own)
