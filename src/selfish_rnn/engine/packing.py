"""From a model with dense weights, most of them zero, to one that stores and multiplies only the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar, cast

import torch
from torch import nn

from selfish_rnn.engine import library
from selfish_rnn.engine.packed_sparse_weight import PackedSparseWeight
from selfish_rnn.engine.packed_weight import PackedWeight
from selfish_rnn.engine.registry import counterpart, has_counterpart
from selfish_rnn.sparsifier import Sparsifier
from selfish_rnn.sparsifier.registry import gate_layouts
from selfish_rnn.sparsifier.weights import MaskedWeight
from selfish_rnn.topology import GateLayout, Method

Model = TypeVar("Model", bound=nn.Module)
Maker = Callable[[Sequence[int]], PackedWeight]
"""Makes a packed weight, given how many rows each of its gates has."""


def pack(model: Model) -> Model:
    """Store and multiply only the weights that exist; the model is changed in place, and returned.

    ::

        sparsifier = Sparsifier(model, sparsity=0.9, rewirings=epochs)
        pack(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)   # after packing: the parameters are other ones

    What exists is what the model's sparsifier says, or without one what is not zero. ``nn.Linear``, ``nn.Embedding``,
    ``nn.LSTM``, ``nn.GRU``, ``nn.RNN``, the cells of this package and those that
    :func:`~selfish_rnn.engine.register_packed` was told of give way to their packed counterparts. Modules and weights
    that are used more than once stay shared. A module that has a hook, has no zeros, or uses what the packed one does
    not have (``bidirectional``, ``padding_idx`` and the like) stays as it is.
    """
    packing = _Packing(model)
    packed = packing.run(model)
    packing.replace_weights(packed)
    return packed


def put_packed(model: Model, weights: Mapping[str, Maker]) -> Model:
    """Put packed weights into a model in place of dense ones of these names, which may be on the meta device.

    Each is made by a function of the rows of its gates. What else is on the meta device stays there.
    """
    names = dict(weights)
    makers = {id(parameter): names.pop(name) for name, parameter in model.named_parameters() if name in names}
    return _Packing(model, makers).run(model)


def unpackable(method: Method) -> str | None:
    """Why the weights of a method cannot be packed, if they cannot."""
    if method.signal == "momentum":
        return f"method {method.name} goes by the momentum of all positions, which a packed weight lacks"
    return None


class _Packing:
    """One call of :func:`pack`."""

    def __init__(self, model: nn.Module, makers: dict[int, Maker] | None = None) -> None:
        library.kernels()
        self._sparsifiers = list(_sparsifiers(model))
        for sparsifier in self._sparsifiers:
            reason = unpackable(sparsifier.method)
            if reason is not None:
                raise ValueError(f"{reason}: it uses the masked engine")
            if sparsifier._optimizers:
                raise RuntimeError("pack a model before its optimizer is made: packing replaces its parameters")
        self._makers: dict[int, Maker] = makers or {
            id(weight.parameter): partial(PackedWeight.from_dense, weight.parameter, weight.mask)
            for sparsifier in self._sparsifiers
            if sparsifier.sparsity > 0
            for weight in sparsifier.weights
            if isinstance(weight, MaskedWeight)
        }
        self._packed: dict[int, PackedWeight] = {}
        self._swapped: dict[int, nn.Module] = {}
        self._staying = self._shared_with_others(model)

    def run(self, model: Model) -> Model:
        if self._packable(model):
            return cast(Model, self._module(model))
        for module in list(model.modules()):
            for name, child in list(module._modules.items()):
                if child is not None and self._packable(child):
                    setattr(module, name, self._module(child))
        return model

    def replace_weights(self, model: nn.Module) -> None:
        """Tell the sparsifiers."""
        for sparsifier in self._sparsifiers:
            sparsifier.replace_weights(
                model,
                [
                    PackedSparseWeight(weight.name, self._packed[id(weight.parameter)], weight.gates)
                    if id(weight.parameter) in self._packed
                    else weight
                    for weight in sparsifier.weights
                ],
            )

    def _shared_with_others(self, model: nn.Module) -> set[int]:
        """Weights that a module also uses that stays as it is: those of all their modules stay too."""
        staying: set[int] = set()
        while True:
            more = {
                id(parameter)
                for module in model.modules()
                if not self._packable(module, staying)
                for parameter in module.parameters(recurse=False)
            }
            if more <= staying:
                return staying
            staying |= more

    def _packable(self, module: nn.Module, staying: set[int] | None = None) -> bool:
        staying = self._staying if staying is None else staying
        weights = dict(_weights(module))
        return (
            bool(weights)
            and has_counterpart(module)
            and not (module._forward_hooks or module._forward_pre_hooks or module._backward_hooks)
            and all(self._suits(parameter) and id(parameter) not in staying for parameter, _ in weights.values())
            and any(self._has_zeros(parameter) for parameter, _ in weights.values())
        )

    def _suits(self, parameter: nn.Parameter) -> bool:
        if id(parameter) in self._makers:
            return parameter.ndim == 2
        return parameter.ndim == 2 and parameter.dtype == torch.float32 and parameter.device.type == "cpu"

    def _has_zeros(self, parameter: nn.Parameter) -> bool:
        # A weight under a sparsifier may have none yet: gradual pruning starts dense.
        return id(parameter) in self._makers or (not parameter.is_meta and bool((parameter == 0).any()))

    def _module(self, module: nn.Module) -> nn.Module:
        """What takes the place of a module."""
        if id(module) not in self._swapped:
            weights = {name: self._weight(parameter, gates) for name, (parameter, gates) in _weights(module)}
            self._swapped[id(module)] = counterpart(module, weights)
        return self._swapped[id(module)]

    def _weight(self, parameter: nn.Parameter, gates: GateLayout) -> PackedWeight:
        if id(parameter) not in self._packed:
            make = self._makers.get(id(parameter), partial(PackedWeight.from_dense, parameter, None))
            weight = make([stop - first for _, first, stop in gates.row_ranges()])
            weight.values.requires_grad_(parameter.requires_grad)
            self._packed[id(parameter)] = weight
        return self._packed[id(parameter)]


def _sparsifiers(model: nn.Module) -> Iterator[Sparsifier]:
    seen: set[int] = set()
    for module in model.modules():
        for bound in module.__dict__.get("_selfish_rnn_bound", ()):
            if isinstance(bound, Sparsifier) and id(bound) not in seen:
                seen.add(id(bound))
                yield bound


def _weights(module: nn.Module) -> Iterator[tuple[str, tuple[nn.Parameter, GateLayout]]]:
    for name, gates in gate_layouts(module).items():
        parameter = module._parameters.get(name)
        if parameter is not None:
            yield name, (parameter, gates)
