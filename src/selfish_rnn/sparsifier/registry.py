"""Which weights of which modules can be made sparse, and how their rows divide into gates."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from torch import nn

from selfish_rnn.sparsifier.weights import StoredWeight
from selfish_rnn.topology.gates import GRU_GATES, LSTM_GATES, RNN_GATES, GateLayout

Layouts = Mapping[str, GateLayout]
"""The weights of one module by their name in it, each with its gate layout."""

RegisteredLayouts = Mapping[Any, GateLayout]
"""The same, and under tuples of names the gate layout of several weights, the rows of one below those of the other."""

_known_cells: dict[type[nn.Module], Callable[[Any], RegisteredLayouts]] = {}
_stands_for: dict[type[nn.Module], type[nn.Module]] = {}


def register_cell(cell: type[nn.Module], layouts: Callable[[Any], RegisteredLayouts]) -> None:
    """Teach the package the weights and gates of your own cell.

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

    Subclasses of a registered class are known too.
    """
    _known_cells[cell] = layouts


def same_gates(cell: type[nn.Module], known: type[nn.Module]) -> None:
    """Let a class have the weights and gates of another, under the same names: that of which it is the packed form."""
    _stands_for[cell] = known


def gate_layouts(module: nn.Module) -> Layouts:
    """The weights of a known module itself with their gate layouts; nothing for an unknown one."""
    own: dict[str, GateLayout] = {}
    for names, layout in _layouts(module, type(module)).items():
        if isinstance(names, str):
            own[names] = layout
        else:
            own.update((name, part) for name, part in _divided(module, names, layout).items() if "." not in name)
    return own


def joined_gates(model: nn.Module) -> Iterator[dict[int, GateLayout]]:
    """The weights, by their ids, of which several are one matrix to a method, with the gates in the rows of each."""
    for module in model.modules():
        for names, layout in _layouts(module, type(module)).items():
            if not isinstance(names, str):
                parts = _divided(module, names, layout)
                yield {id(operator.attrgetter(name)(module)): part for name, part in parts.items()}


def _divided(module: nn.Module, names: tuple[str, ...], layout: GateLayout) -> dict[str, GateLayout]:
    """Of a layout over several weights, what each has of it."""
    kind = type(module).__name__
    shapes = {}
    for name in names:
        try:
            shapes[name] = operator.attrgetter(name)(module).shape
        except AttributeError:
            raise ValueError(f"{kind} has no parameter {name!r}, which its registration names") from None
    if len({tuple(shape[1:]) for shape in shapes.values()}) > 1:
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


def _layouts(module: nn.Module, like: type[nn.Module]) -> RegisteredLayouts:
    for kind in like.__mro__:
        if kind in _known_cells:
            return _known_cells[kind](module)
        if kind in _stands_for:
            return _layouts(module, _stands_for[kind])
    return {}


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


def _plain(module: nn.Linear | nn.Embedding) -> Layouts:
    return {"weight": GateLayout.single(module.weight.shape[0])}


for _kinds, _gates in (
    ((nn.LSTM, nn.LSTMCell), LSTM_GATES),
    ((nn.GRU, nn.GRUCell), GRU_GATES),
    ((nn.RNN, nn.RNNCell), RNN_GATES),
):
    for _kind in _kinds:
        register_cell(_kind, partial(_stacked, _gates))
register_cell(nn.Linear, _plain)
register_cell(nn.Embedding, _plain)
