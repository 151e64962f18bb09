"""Which weights of which modules can be made sparse, and how their rows divide into gates."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from torch import nn

from selfish_rnn.sparsifier.weights import StoredWeight
from selfish_rnn.topology.gates import GRU_GATES, LSTM_GATES, RNN_GATES, GateLayout

Layouts = Mapping[str, GateLayout]
"""The weights of one module by their name in it, each with its gate layout."""

RegisteredLayouts = Mapping[Any, GateLayout]
"""The same, and under tuples of names the gate layout of several weights, the rows of one below those of the other.

Names are relative to the module and may lead into its submodules: ``"forget.weight"``.
"""

Layers = Iterable[Sequence[str]]
"""The names of the weights of one module that make up each of its recurrent layers."""


class _Registration(NamedTuple):
    layouts: Callable[[Any], RegisteredLayouts]
    layers: Callable[[Any], Layers] | None


_known_cells: dict[type[nn.Module], _Registration] = {}
_stands_for: dict[type[nn.Module], type[nn.Module]] = {}


def register_cell(
    cell: type[nn.Module],
    layouts: Callable[[Any], RegisteredLayouts],
    layers: Callable[[Any], Layers] | None = None,
) -> None:
    """Register the weights, gates and layers of your own cell.

    ``layouts`` takes an instance and names the weights that may be sparse, with the gates in their rows:

    >>> class MinimalGatedCell(nn.Module):
    ...     def __init__(self, inputs: int, hidden: int) -> None:
    ...         super().__init__()
    ...         self.weight = nn.Parameter(torch.empty(2 * hidden, inputs + hidden))
    >>> register_cell(
    ...     MinimalGatedCell,
    ...     lambda cell: {"weight": GateLayout.even(("forget", "candidate"), cell.weight.shape[0])},
    ... )

    Gates that have a parameter each compete as those of one matrix if their names are given together:

    >>> class TwoMatrices(nn.Module):
    ...     def __init__(self, inputs: int, hidden: int) -> None:
    ...         super().__init__()
    ...         self.forget = nn.Linear(inputs + hidden, hidden)
    ...         self.candidate = nn.Linear(inputs + hidden, hidden)
    >>> register_cell(
    ...     TwoMatrices,
    ...     lambda cell: {
    ...         ("forget.weight", "candidate.weight"): GateLayout.even(
    ...             ("forget", "candidate"), 2 * cell.forget.out_features
    ...         )
    ...     },
    ... )

    The gates of one ``nn.Linear`` are registered by its name in the cell:

    >>> class MinGRU(nn.Module):
    ...     def __init__(self, inputs: int, hidden: int) -> None:
    ...         super().__init__()
    ...         self.to_hidden_and_gate = nn.Linear(inputs, 2 * hidden)
    >>> register_cell(
    ...     MinGRU,
    ...     lambda cell: {
    ...         "to_hidden_and_gate.weight": GateLayout.even(("hidden", "gate"), cell.to_hidden_and_gate.out_features)
    ...     },
    ... )

    Methods with pool ``layer``, such as ``selfish``, rank the weights of a recurrent layer together. By default all
    weights of the registration are one layer. ``layers`` divides them, for a module with several layers for example: it
    takes an instance and returns groups of names. A weight outside all groups is a layer of its own.

    Subclasses of a registered class are registered with it.
    """
    _known_cells[cell] = _Registration(layouts, layers)


def same_gates(cell: type[nn.Module], known: type[nn.Module]) -> None:
    """Let a class have the weights and gates of another, under the same names: that of which it is the packed form."""
    _stands_for[cell] = known


def gate_layouts(module: nn.Module) -> Layouts:
    """Return the gate layouts of the weights of a module itself, by name; empty for an unknown module."""
    return {name: layout for name, layout in _divided_layouts(module).items() if "." not in name}


def model_layouts(model: nn.Module) -> dict[nn.Module, dict[str, GateLayout]]:
    """Return the gate layouts of the weights of every module of a model.

    A registration that names weights of a submodule takes precedence over that of the submodule.
    """
    layouts: dict[nn.Module, dict[str, GateLayout]] = {}
    for module in model.modules():  # a module comes before its submodules
        for name, layout in _divided_layouts(module).items():
            owner, _, local = name.rpartition(".")
            layouts.setdefault(operator.attrgetter(owner)(module) if owner else module, {}).setdefault(local, layout)
    return layouts


def joined_gates(model: nn.Module) -> Iterator[dict[int, GateLayout]]:
    """The weights, by their ids, of which several are one matrix to a method, with the gates in the rows of each."""
    for module in model.modules():
        for names, layout in _layouts(module).items():
            if not isinstance(names, str):
                yield {id(_weight(module, name)): part for name, part in _divided(module, names, layout).items()}


def layer_weights(model: nn.Module) -> Iterator[list[int]]:
    """Yield the ids of the weights of every recurrent layer; that of a module comes before those of its submodules."""
    for module in model.modules():
        registration = _registration(type(module))
        if registration is None:
            continue
        groups = [list(_divided_layouts(module))] if registration.layers is None else registration.layers(module)
        for names in groups:
            if isinstance(names, str):
                raise ValueError(
                    f"{type(module).__name__}: layers= returns groups of names, not the single name {names!r}: return "
                    f"[({names!r}, ...), ...]"
                )
            yield [id(_weight(module, name)) for name in names]


def _divided_layouts(module: nn.Module) -> dict[str, GateLayout]:
    """Return the gate layout of every weight in the registration of a module, by its name."""
    return {
        name: part
        for names, layout in _layouts(module).items()
        for name, part in _divided(module, (names,) if isinstance(names, str) else names, layout).items()
    }


def _divided(module: nn.Module, names: tuple[str, ...], layout: GateLayout) -> dict[str, GateLayout]:
    """Of a layout over several weights, what each has of it."""
    kind = type(module).__name__
    shapes = {name: tuple(_weight(module, name).shape) for name in names}
    if len({shape[1:] for shape in shapes.values()}) > 1:
        raise ValueError(f"{kind}: {', '.join(names)} have different numbers of columns and are no parts of one matrix")
    remaining = list(zip(layout.names, layout.sizes, strict=True))
    parts = {}
    for name, shape in shapes.items():
        gates: list[tuple[str, int]] = []
        while remaining and sum(size for _, size in gates) < shape[0]:
            gates.append(remaining.pop(0))
        if sum(size for _, size in gates) != shape[0]:
            raise ValueError(f"{kind}: {name} has {shape[0]} rows, which are no whole gates of {layout}")
        parts[name] = GateLayout(*(tuple(each) for each in zip(*gates, strict=True)))
    if remaining:
        raise ValueError(f"{kind}: {', '.join(names)} have fewer rows than {layout}")
    return parts


def _weight(module: nn.Module, name: str) -> nn.Parameter | StoredWeight:
    """Return a weight of a module or of its submodules, which its registration names."""
    try:
        weight: nn.Parameter | StoredWeight = operator.attrgetter(name)(module)
    except AttributeError:
        available = [
            f"{prefix}.{local}".lstrip(".")
            for prefix, owner in module.named_modules()
            for local, weight in matrices(owner)
            if len(weight.shape) > 1
        ]
        raise ValueError(
            f"{type(module).__name__} has no parameter {name!r}, which its registration names; its weight matrices are "
            f"{', '.join(available) or 'none'}"
        ) from None
    return weight


def _registration(kind: type[nn.Module]) -> _Registration | None:
    for base in kind.__mro__:
        if base in _known_cells:
            return _known_cells[base]
        if base in _stands_for:
            return _registration(_stands_for[base])
    return None


def _layouts(module: nn.Module) -> RegisteredLayouts:
    registration = _registration(type(module))
    return {} if registration is None else registration.layouts(module)


def matrices(module: nn.Module) -> Iterator[tuple[str, nn.Parameter | StoredWeight]]:
    """What a module holds itself of parameters, and of matrices that are stored in a form of their own."""
    yield from module.named_parameters(recurse=False, remove_duplicate=False)
    for name, child in module._modules.items():
        if isinstance(child, StoredWeight):
            yield name, child


def _stacked(gates: tuple[str, ...], module: nn.Module) -> Layouts:
    """Layouts of torch's recurrent modules and cells, whose gates have equal sizes.

    The projection of an LSTM (``weight_hr``) makes no gate, so it is one matrix of its own.
    """
    return {
        name: GateLayout.single(weight.shape[0])
        if name.startswith("weight_hr")
        else GateLayout.even(gates, weight.shape[0])
        for name, weight in matrices(module)
        if name.startswith("weight")
    }


def _torch_layers(module: nn.Module) -> Layers:
    """Group the weights of torch's recurrent modules by layer and direction; projections are apart."""
    layers: dict[str, list[str]] = {}
    for name, _ in matrices(module):
        if name.startswith(("weight_ih", "weight_hh")):
            layers.setdefault(name[len("weight_ih") :], []).append(name)
    return layers.values()


def _plain(module: nn.Linear | nn.Embedding) -> Layouts:
    return {"weight": GateLayout.single(module.weight.shape[0])}


for _kinds, _gates in (
    ((nn.LSTM, nn.LSTMCell), LSTM_GATES),
    ((nn.GRU, nn.GRUCell), GRU_GATES),
    ((nn.RNN, nn.RNNCell), RNN_GATES),
):
    for _kind in _kinds:
        register_cell(_kind, partial(_stacked, _gates), _torch_layers)
register_cell(nn.Linear, _plain)
register_cell(nn.Embedding, _plain)
