"""Registry of modules and their packed counterparts."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import nn

from selfish_rnn.engine.packed_weight import PackedWeight
from selfish_rnn.sparsifier.hooks import ATTRIBUTE as _BOUND
from selfish_rnn.sparsifier.selection import same_gates

Model = TypeVar("Model", bound=nn.Module)


class _Counterpart(NamedTuple):
    packed: type[nn.Module]
    obstacle: Callable[[Any], str | None]
    quantized: type[nn.Module]


_HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_is_full_backward_hook",
)

_DENSE_FORM = "_dense_form"
"""Attribute of a packed module: the class it had, where that is a subclass, and the names of attributes it keeps."""

_counterparts: dict[type[nn.Module], _Counterpart] = {}
_stands_for: dict[type[nn.Module], type[nn.Module]] = {}


def register_packed(
    dense: type[nn.Module],
    packed: type[nn.Module] | None = None,
    obstacle: Callable[[Any], str | None] = lambda _: None,
    quantized: type[nn.Module] | None = None,
    *,
    like: type[nn.Module] | None = None,
) -> None:
    """Register the packed counterpart of your own cell for :func:`~selfish_rnn.engine.pack`.

    The weights that :func:`~selfish_rnn.register_cell` names become :class:`~selfish_rnn.engine.PackedWeight` modules
    of the same names; everything else stays. So the counterpart is a subclass that overrides ``forward``:

    >>> class PackedCell(Cell):
    ...     def forward(self, x):
    ...         return functional.linear(x, self.weight).tanh()
    >>> register_packed(Cell, PackedCell)

    A counterpart that is not a subclass has a class method ``from_dense(module, **weights)`` that makes it and
    a method ``to_dense()`` that makes the other again.

    Subclasses of known classes are packed without registration if they override no method that takes part in the
    computation. A subclass that overrides ``forward`` harmlessly, to check its input for example, is registered with
    ``like``. It is then packed as that class is, so its own ``forward`` no longer runs, and ``unpack`` restores it:

    >>> class Mine(nn.LSTM):
    ...     def forward(self, inputs, state=None):
    ...         assert inputs.isfinite().all()
    ...         return super().forward(inputs, state)
    >>> register_packed(Mine, like=nn.LSTM)

    Args:
        dense: class whose instances are packed.
        packed: class that takes its place.
        obstacle: returns what an instance has that the packed class lacks, or None.
        quantized: subclass of ``packed`` that takes its place in :func:`~selfish_rnn.engine.quantize`; without it the
            packed class works with int8 weights.
        like: known class that ``dense`` is a subclass of, in place of the other arguments.
    """
    if (packed is None) == (like is None):
        raise TypeError("register_packed takes either a packed class or like=, a class that is packed already")
    if like is not None:
        if like not in _counterparts or not issubclass(dense, like):
            raise TypeError(
                f"like={class_name(like)} must be a class with a packed counterpart that {class_name(dense)} is a "
                "subclass of"
            )
        _counterparts[dense] = _counterparts[like]
        return
    assert packed is not None
    if not (issubclass(packed, dense) or (hasattr(packed, "from_dense") and hasattr(packed, "to_dense"))):
        raise TypeError(
            f"{class_name(packed)} is neither a subclass of {class_name(dense)} nor does it have from_dense and "
            "to_dense"
        )
    if quantized is None:
        quantized = packed
    elif not issubclass(quantized, packed):
        raise TypeError(f"{class_name(quantized)} is no subclass of {class_name(packed)}, which is to become it")
    _counterparts[dense] = _Counterpart(packed, obstacle, quantized)
    _stands_for[packed] = dense
    for kind in (packed, quantized):
        same_gates(kind, dense)
        if kind.__module__.partition(".")[0] == __package__.partition(".")[0]:
            torch.serialization.add_safe_globals([kind])


def class_name(kind: type) -> str:
    """Return the full name of a class: ``torch.nn.LSTM``, ``package.module.LSTM``."""
    room = "torch.nn" if getattr(nn, kind.__name__, None) is kind else kind.__module__
    return f"{room}.{kind.__qualname__}"


def obstacle(module: nn.Module) -> str | None:
    """Return why a module has no packed counterpart, or None if it has one."""
    kind: Any = type(module)
    base: Any = _registered(kind)
    if base is None:
        return f"{class_name(kind)} has no packed counterpart"
    if "forward" in module.__dict__:
        return "its forward was replaced by another function"
    overridden = _overridden(kind, base)
    if overridden:
        return (
            f"{class_name(kind)} is a subclass of {class_name(base)}, overrides {', '.join(overridden)} and may "
            f"compute something else: register_packed({kind.__name__}, like={class_name(base)}) packs it as that "
            f"class, register_packed({kind.__name__}, ...) as one of your own"
        )
    packed = _counterparts[base].packed
    hidden = [name for name in _attributes(module, packed) if hasattr(packed, name)]
    if hidden:
        return f"its attributes {', '.join(hidden)} would hide those of {class_name(packed)}: rename them"
    return _counterparts[base].obstacle(module)


def _registered(kind: type[nn.Module]) -> type[nn.Module] | None:
    """Return the class itself or the nearest base that has a packed counterpart."""
    return next((base for base in kind.__mro__ if base in _counterparts), None)


_HARMLESS = frozenset(
    {
        *("__annotate_func__", "__annotations__", "__annotations_cache__", "__constants__", "__doc__", "__dict__"),
        *("__firstlineno__", "__init__", "__init_subclass__", "__module__", "__orig_bases__", "__parameters__"),
        *("__repr__", "__static_attributes__", "__subclasshook__", "__weakref__", "_get_name", "_reset_parameters"),
        *("extra_repr", "flatten_parameters", "from_pretrained", "reset_parameters"),
    }
)
"""Names that a subclass may define without a change to what its instances compute once they are made."""


@functools.cache
def _overridden(kind: Any, base: Any) -> list[str]:
    """Return what a subclass has in place of attributes of a base that may take part in the computation."""
    fixed, absent = inspect.getattr_static, object()
    names = {name for name in dir(base) if fixed(kind, name, absent) is not fixed(base, name, absent)}
    # A property may stand in the place of what an instance of the base has, its weight for example.
    names |= {name for name in _instance_names(base) if isinstance(fixed(kind, name, None), property)}
    return sorted(names - _HARMLESS)


@functools.cache
def _instance_names(kind: Any) -> frozenset[str]:
    """Return the names of what instances of the nearest class of torch have."""
    ours = next((base for base in kind.__mro__ if base.__module__.startswith("torch.nn.modules")), nn.Module)
    if ours is nn.Module:
        return frozenset(vars(nn.Module()))
    with torch.device("meta"):
        instance: Any = ours(1, 1)
    return frozenset({*vars(instance), *instance._parameters})


def _attributes(module: nn.Module, packed: Any) -> list[str]:
    """Return the names of the attributes of an instance that its packed counterpart takes over as they are."""
    kind: Any = type(module)
    if not hasattr(packed, "from_dense") or kind is getattr(packed, "kind", None):
        return []
    return [name for name in vars(module) if name not in _instance_names(kind) and name != _BOUND]


def counterpart(module: nn.Module, weights: Mapping[str, PackedWeight]) -> nn.Module:
    """Return what takes the place of a module, with these weights in place of the parameters of their names."""
    base = _registered(type(module))
    assert base is not None
    packed: Any = _counterparts[base].packed
    if hasattr(packed, "from_dense"):
        replacement: nn.Module = packed.from_dense(module, **weights)
        carry_hooks(module, replacement)
        attributes = _attributes(module, packed)
        _carry(module, replacement, attributes, skip=weights)
    else:
        replacement, attributes = packed.__new__(packed), []
        replacement.__dict__.update(module.__dict__)
        replacement._parameters = {name: value for name, value in module._parameters.items() if name not in weights}
        replacement._buffers, replacement._modules = dict(module._buffers), {**module._modules, **weights}
    if attributes or type(module) is not _stands_for[packed]:
        replacement.__dict__[_DENSE_FORM] = (type(module), tuple(attributes))
    return replacement


def original(module: nn.Module, matrices: Mapping[str, nn.Parameter]) -> nn.Module:
    """Undo :func:`counterpart`, with these parameters in place of the packed weights of their names."""
    packed: Any = module
    kind, attributes = module.__dict__.get(_DENSE_FORM, (None, ()))
    if hasattr(packed, "to_dense"):
        dense: nn.Module = packed.to_dense()
        for name, parameter in {**module._parameters, **matrices}.items():
            if parameter is not None:
                setattr(dense, name, parameter)
        carry_hooks(module, dense)
        _carry(module, dense, attributes, skip=matrices)
        if kind is not None:
            dense.__class__ = kind
        return dense
    kind = kind or _stands_for[type(module)]
    swapped: nn.Module = kind.__new__(kind)
    swapped.__dict__.update(module.__dict__)
    swapped.__dict__.pop(_DENSE_FORM, None)
    swapped._parameters, swapped._buffers = {**module._parameters, **matrices}, dict(module._buffers)
    swapped._modules = {name: child for name, child in module._modules.items() if name not in matrices}
    return swapped


def _carry(before: nn.Module, after: nn.Module, attributes: Sequence[str], skip: Collection[str]) -> None:
    """Take over what a subclass has beyond its base: attributes, modules, buffers and parameters."""
    after.__dict__.update({name: before.__dict__[name] for name in attributes if name in before.__dict__})
    for kind in ("_modules", "_buffers", "_parameters"):
        entries = getattr(after, kind)
        entries.update(
            {name: entry for name, entry in getattr(before, kind).items() if name not in entries and name not in skip}
        )
    after._non_persistent_buffers_set |= before._non_persistent_buffers_set


class StandIn(nn.Module):
    """Packed module. In place of an instance of a subclass it offers the other methods of that class."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            kind, _ = self.__dict__.get(_DENSE_FORM, (None, ()))
            for base in () if kind is None else kind.__mro__:
                if base in _counterparts and base is not kind:
                    break
                if name in vars(base):
                    attribute = vars(base)[name]
                    return attribute.__get__(self, kind) if hasattr(attribute, "__get__") else attribute
            raise


def carry_hooks(before: nn.Module, after: nn.Module) -> None:
    """Let the hooks of a module, and the handles that remove them, work on what takes its place."""
    for name in _HOOKS:
        if name in before.__dict__:
            after.__dict__[name] = before.__dict__[name]


def replace_modules(model: Model, matches: Callable[[nn.Module], bool], make: Callable[[Any], nn.Module]) -> Model:
    """Put what ``make`` gives in the place of every module that is ``wanted``, once for each however often it is used.

    The model is changed in place, and returned; one that is itself wanted gives way as a whole.
    """
    replacements: dict[int, nn.Module] = {}

    def replaced(module: nn.Module) -> nn.Module:
        if id(module) not in replacements:
            replacements[id(module)] = make(module)
        return replacements[id(module)]

    if matches(model):
        return cast(Model, replaced(model))
    for module in list(model.modules()):
        for name, child in list(module._modules.items()):
            if child is not None and matches(child):
                setattr(module, name, replaced(child))
    return model


def put_quantized(model: Model, make: Callable[[PackedWeight], nn.Module]) -> Model:
    """Put what ``make`` gives, int8, in the place of every packed weight; the model is for inference from then on."""
    kinds = {registered.packed: registered.quantized for registered in _counterparts.values()}
    holders = list(filter(holds_packed, model.modules()))
    model = replace_modules(model, lambda module: isinstance(module, PackedWeight), make)
    for holder in holders:
        holder.__class__ = kinds.get(type(holder), type(holder))
    return model.eval().requires_grad_(False)


def holds_packed(module: nn.Module) -> bool:
    """Return whether weights of the module itself are packed."""
    return any(isinstance(child, PackedWeight) for child in module._modules.values())
