"""Which module takes the place of which when a model is packed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import nn

from selfish_rnn.engine.packed_weight import PackedWeight


class _Counterpart(NamedTuple):
    packed: type[nn.Module]
    suits: Callable[[Any], bool]


_counterparts: dict[type[nn.Module], _Counterpart] = {}


def register_packed(
    dense: type[nn.Module], packed: type[nn.Module], suits: Callable[[Any], bool] = lambda _: True
) -> None:
    """Teach :func:`~selfish_rnn.engine.pack` the packed counterpart of your own cell.

    The weights that :func:`~selfish_rnn.register_cell` names become :class:`~selfish_rnn.engine.PackedWeight` modules
    of the same names; everything else stays. So the counterpart is a subclass that overrides ``forward``:

    >>> class PackedCell(Cell):
    ...     def forward(self, x):
    ...         return functional.linear(x, self.weight).tanh()
    >>> register_packed(Cell, PackedCell)

    A counterpart that is not a subclass has a class method ``from_dense(module, **weights)`` that makes it. ``suits``
    tells which instances can be packed, all by default. Only instances of the very class are packed: a subclass may
    compute something else.
    """
    if not (issubclass(packed, dense) or hasattr(packed, "from_dense")):
        raise TypeError(f"{packed.__name__} is neither a subclass of {dense.__name__} nor does it have from_dense")
    _counterparts[dense] = _Counterpart(packed, suits)


def has_counterpart(module: nn.Module) -> bool:
    """Whether a module can be packed."""
    counterpart = _counterparts.get(type(module))
    return counterpart is not None and counterpart.suits(module)


def counterpart(module: nn.Module, weights: Mapping[str, PackedWeight]) -> nn.Module:
    """What takes the place of a module, with these weights in place of the parameters of their names."""
    packed: Any = _counterparts[type(module)].packed
    if hasattr(packed, "from_dense"):
        made: nn.Module = packed.from_dense(module, **weights)
        return made
    swapped: nn.Module = packed.__new__(packed)
    swapped.__dict__.update(module.__dict__)
    swapped._parameters = {name: value for name, value in module._parameters.items() if name not in weights}
    swapped._buffers, swapped._modules = dict(module._buffers), {**module._modules, **weights}
    return swapped
