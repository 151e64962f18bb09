"""Which module takes the place of which when a model is packed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar, cast

from torch import nn

from selfish_rnn.engine.packed_weight import PackedWeight
from selfish_rnn.sparsifier.registry import same_gates

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

_counterparts: dict[type[nn.Module], _Counterpart] = {}


def register_packed(
    dense: type[nn.Module],
    packed: type[nn.Module],
    obstacle: Callable[[Any], str | None] = lambda _: None,
    quantized: type[nn.Module] | None = None,
) -> None:
    """Teach :func:`~selfish_rnn.engine.pack` the packed counterpart of your own cell.

    The weights that :func:`~selfish_rnn.register_cell` names become :class:`~selfish_rnn.engine.PackedWeight` modules
    of the same names; everything else stays. So the counterpart is a subclass that overrides ``forward``:

    >>> class PackedCell(Cell):
    ...     def forward(self, x):
    ...         return functional.linear(x, self.weight).tanh()
    >>> register_packed(Cell, PackedCell)

    A counterpart that is not a subclass has a class method ``from_dense(module, **weights)`` that makes it and
    a method ``to_dense()`` that makes the other again.
    ``obstacle`` says what an instance has that the packed one has not, if anything. Only instances of the very class
    are packed: a subclass may compute something else. ``quantized`` is a subclass of the packed one that it becomes in
    :func:`~selfish_rnn.engine.quantize`; without, the packed one works with int8 weights as it is.
    """
    if not (issubclass(packed, dense) or (hasattr(packed, "from_dense") and hasattr(packed, "to_dense"))):
        raise TypeError(
            f"{packed.__name__} is neither a subclass of {dense.__name__} nor does it have from_dense and to_dense"
        )
    if quantized is None:
        quantized = packed
    elif not issubclass(quantized, packed):
        raise TypeError(f"{quantized.__name__} is no subclass of {packed.__name__}, which is to become it")
    _counterparts[dense] = _Counterpart(packed, obstacle, quantized)
    for kind in (packed, quantized):
        same_gates(kind, dense)


def obstacle(module: nn.Module) -> str | None:
    """Why a module has no packed counterpart; nothing if it has one."""
    kind = type(module)
    if kind in _counterparts:
        if "forward" in module.__dict__:
            return "its forward was replaced by another function"
        return _counterparts[kind].obstacle(module)
    for base in kind.__mro__:
        if base in _counterparts:
            return (
                f"{kind.__name__} is a subclass of {base.__name__} and may compute something else: register_packed "
                "says what takes its place"
            )
    return f"{kind.__name__} has no packed counterpart"


def counterpart(module: nn.Module, weights: Mapping[str, PackedWeight]) -> nn.Module:
    """What takes the place of a module, with these weights in place of the parameters of their names."""
    packed: Any = _counterparts[type(module)].packed
    if hasattr(packed, "from_dense"):
        made: nn.Module = packed.from_dense(module, **weights)
        carry_hooks(module, made)
        return made
    swapped: nn.Module = packed.__new__(packed)
    swapped.__dict__.update(module.__dict__)
    swapped._parameters = {name: value for name, value in module._parameters.items() if name not in weights}
    swapped._buffers, swapped._modules = dict(module._buffers), {**module._modules, **weights}
    return swapped


def original(module: nn.Module, matrices: Mapping[str, nn.Parameter]) -> nn.Module:
    """Undo :func:`counterpart`, with these parameters in place of the packed weights of their names."""
    packed: Any = module
    if hasattr(packed, "to_dense"):
        made: nn.Module = packed.to_dense()
        for name, parameter in {**module._parameters, **matrices}.items():
            if parameter is not None:
                setattr(made, name, parameter)
        carry_hooks(module, made)
        return made
    kind = next(dense for dense, counterpart in _counterparts.items() if counterpart.packed is type(module))
    swapped: nn.Module = kind.__new__(kind)
    swapped.__dict__.update(module.__dict__)
    swapped._parameters, swapped._buffers = {**module._parameters, **matrices}, dict(module._buffers)
    swapped._modules = {name: child for name, child in module._modules.items() if name not in matrices}
    return swapped


def carry_hooks(before: nn.Module, after: nn.Module) -> None:
    """Let the hooks of a module, and the handles that remove them, work on what takes its place."""
    for name in _HOOKS:
        if name in before.__dict__:
            after.__dict__[name] = before.__dict__[name]


def replace_modules(model: Model, wanted: Callable[[nn.Module], bool], make: Callable[[Any], nn.Module]) -> Model:
    """Put what ``make`` gives in the place of every module that is ``wanted``, once for each however often it is used.

    The model is changed in place, and returned; one that is itself wanted gives way as a whole.
    """
    made: dict[int, nn.Module] = {}

    def replaced(module: nn.Module) -> nn.Module:
        if id(module) not in made:
            made[id(module)] = make(module)
        return made[id(module)]

    if wanted(model):
        return cast(Model, replaced(model))
    for module in list(model.modules()):
        for name, child in list(module._modules.items()):
            if child is not None and wanted(child):
                setattr(module, name, replaced(child))
    return model


def put_quantized(model: Model, make: Callable[[PackedWeight], nn.Module]) -> Model:
    """Put what ``make`` gives, int8, in the place of every packed weight; the model is for inference from then on."""
    kinds = {each.packed: each.quantized for each in _counterparts.values()}
    holders = list(filter(holds_packed, model.modules()))
    model = replace_modules(model, lambda module: isinstance(module, PackedWeight), make)
    for holder in holders:
        holder.__class__ = kinds.get(type(holder), type(holder))
    return model.eval().requires_grad_(False)


def holds_packed(module: nn.Module) -> bool:
    """Whether weights of the module itself are packed."""
    return any(isinstance(child, PackedWeight) for child in module._modules.values())
