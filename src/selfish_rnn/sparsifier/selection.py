"""Selection of the weights to make sparse, and the registry of cells with their gates and layers."""

from __future__ import annotations

import fnmatch
import math
import operator
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.utils.parametrize import ParametrizationList

from selfish_rnn.sparsifier.deferred import DeferredWeight, is_deferred
from selfish_rnn.sparsifier.weights import MaskedWeight, SparseWeight
from selfish_rnn.topology import GateLayout, Method, Topology
from selfish_rnn.topology.gates import GRU_GATES, LSTM_GATES, RNN_GATES

Layouts = Mapping[str, GateLayout]
"""Gate layouts of the weights of one module, by their names in it."""

RegisteredLayouts = Mapping[Any, GateLayout]
"""Layouts of one module, in which a tuple of names has the gate layout of several stacked weights.

Names are relative to the module and may lead into its submodules: ``"forget.weight"``.
"""

Layers = Iterable[Sequence[str]]
"""Names of the weights of each recurrent layer of one module."""


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
    """Register ``cell`` (a packed class) with the gate layouts of ``known`` (its dense class)."""
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
    """Yield the weights (by id) that form one matrix together, with the gates of each."""
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
    """Split a layout of several stacked weights into one layout per weight."""
    kind = type(module).__name__
    shapes = {name: tuple(_weight(module, name).shape) for name in names}
    if layout.axes != (0,):
        if len(names) > 1:
            raise ValueError(f"{kind}: {', '.join(names)} share a gate layout, so the gates must divide axis 0")
        try:
            layout.matrix_shape(shapes[names[0]])
        except ValueError as error:
            raise ValueError(f"{kind}: {names[0]}: {error}") from None
        return {names[0]: layout}
    if len({shape[1:] for shape in shapes.values()}) > 1:
        raise ValueError(f"{kind}: {', '.join(names)} have different numbers of columns and do not form one matrix")
    remaining = list(zip(layout.names, layout.sizes, strict=True))
    parts = {}
    for name, shape in shapes.items():
        gates: list[tuple[str, int]] = []
        while remaining and sum(size for _, size in gates) < shape[0]:
            gates.append(remaining.pop(0))
        if sum(size for _, size in gates) != shape[0]:
            raise ValueError(f"{kind}: {name} has {shape[0]} rows, which do not end at a gate of {layout}")
        parts[name] = GateLayout(*(tuple(column) for column in zip(*gates, strict=True)))
    if remaining:
        raise ValueError(f"{kind}: {', '.join(names)} have fewer rows than {layout}")
    return parts


def _weight(module: nn.Module, name: str) -> nn.Parameter | SparseWeight:
    """Return a weight of a module or its submodules by its registered name."""
    try:
        weight: nn.Parameter | SparseWeight = operator.attrgetter(name)(module)
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


def matrices(module: nn.Module) -> Iterator[tuple[str, nn.Parameter | SparseWeight]]:
    """Yield the parameters and packed weights of a module itself."""
    yield from module.named_parameters(recurse=False, remove_duplicate=False)
    for name, child in module._modules.items():
        if isinstance(child, SparseWeight):
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


Selector = str | type[nn.Module]
"""A pattern of names, of a parameter (``"rnn.weight_*"``) or a module (``"rnn"``), or a type of module."""


class Candidate(NamedTuple):
    """Weight that becomes sparse, or is packed already."""

    name: str
    weight: nn.Parameter | SparseWeight
    gates: GateLayout

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.weight.shape)

    @property
    def size(self) -> int:
        """Number of positions."""
        return math.prod(self.shape)

    @property
    def parameter(self) -> nn.Parameter:
        return self.weight.parameter if isinstance(self.weight, SparseWeight) else self.weight

    @property
    def stored(self) -> bool:
        """True if the weight is packed and has a topology."""
        return isinstance(self.weight, SparseWeight)

    def bind(self, topology: Topology) -> SparseWeight:
        """Return the sparse weight, with this topology unless it has one."""
        name, weight, gates = self
        if isinstance(weight, SparseWeight):
            return weight.bind(name, gates)
        kind = DeferredWeight if is_deferred(weight) else MaskedWeight
        bound = kind(name, weight, gates, topology)
        bound.delete_outside()
        return bound


def choose_weights(
    model: nn.Module, include: Selector | Sequence[Selector] | None, exclude: Selector | Sequence[Selector]
) -> Iterator[Candidate]:
    """Yield the weights to make sparse, each once under its first name.

    An excluded weight is excluded under all its names. Frozen weights (``requires_grad=False``) are skipped.
    """
    included = None if include is None else _as_sequence(include)
    excluding = _as_sequence(exclude)
    matched: set[Selector] = set()

    def selected(selectors: Sequence[Selector], name: str, module: nn.Module) -> bool:
        hits = {selector for selector in selectors if _matches(selector, name, module)}
        matched.update(hits)
        return bool(hits)

    chosen: dict[int, Candidate] = {}
    excluded: set[int] = set()
    names: list[str] = []
    layouts_by_module = model_layouts(model)
    for prefix, module in model.named_modules(remove_duplicate=False):
        layouts = layouts_by_module.get(module, {})
        for local, weight in matrices(module):
            name = f"{prefix}.{local}" if prefix else local
            if len(weight.shape) < 2 or "bias" in local:
                continue
            pruned = local.removesuffix("_orig")
            if pruned in layouts and pruned != local and f"{pruned}_mask" in module._buffers:
                raise ValueError(
                    f"{name.removesuffix('_orig')} is pruned by torch.nn.utils.prune, which multiplies it by a mask of "
                    f"its own: call prune.remove(module, {pruned!r}) first, which keeps its zeros, and bind with "
                    'topology="nonzero"'
                )
            names.append(name)
            if selected(excluding, name, module):
                excluded.add(id(weight))
            included_here = local in layouts if included is None else selected(included, name, module)
            if included_here and isinstance(module, torch.jit.ScriptModule):
                raise ValueError(f"{name} belongs to {_SCRIPTED}")
            if included_here and hasattr(weight, "device_mesh"):  # a DTensor
                raise ValueError(
                    f"{name} is divided over processes (fully_shard() and the like), and its parts cannot be rewired "
                    "by themselves: train with DistributedDataParallel, which keeps it whole"
                )
            if included_here and weight.requires_grad:
                gates = layouts.get(local, GateLayout.single(weight.shape[0]))
                chosen.setdefault(id(weight), Candidate(name, weight, gates))
    unmatched = [str(selector) for selector in [*(included or ()), *excluding] if selector not in matched]
    if unmatched:
        raise ValueError(f"no weight matrix of the model matches {', '.join(unmatched)}; there are {', '.join(names)}")
    if not chosen.keys() - excluded:
        raise ValueError(_nothing_chosen(model, excluded))
    return (weight for identity, weight in chosen.items() if identity not in excluded)


_SCRIPTED = (
    "a torch.jit model, whose parameters cannot be made sparse: bind the nn.Module it was made of, and script or trace "
    "that after training"
)


def class_name(kind: type[nn.Module]) -> str:
    """Return the name of a class of modules, ``nn.GRU`` for torch's own and with its module for others."""
    if getattr(nn, kind.__name__, None) is kind:
        return f"nn.{kind.__name__}"
    return f"{kind.__module__}.{kind.__qualname__}"


def _nothing_chosen(model: nn.Module, excluded: set[int]) -> str:
    """Return why no weight becomes sparse, and the remedy."""
    sentence = "the model has no weight matrix to make sparse"
    for module in model.modules():
        if isinstance(module, torch.jit.ScriptModule):
            return f"{sentence}: {class_name(type(module))} is {_SCRIPTED}"
        if isinstance(module, ParametrizationList):
            return (
                f"{sentence}: its weights are parametrized (for example by weight norm) and computed from other "
                "tensors; torch.nn.utils.parametrize.remove_parametrizations() undoes this"
            )
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.ndim > 1 and parameter.requires_grad and "bias" not in name and id(parameter) not in excluded:
                kind = type(module)
                return (
                    f"{sentence} that is one by default; to make {kind.__name__} sparse say include={class_name(kind)}"
                )
    return sentence


def _as_sequence(selectors: Selector | Sequence[Selector]) -> Sequence[Selector]:
    several: Sequence[Selector] = [selectors] if isinstance(selectors, (str, type)) else selectors
    for selector in several:
        if not isinstance(selector, (str, type)):
            raise TypeError(f"weights are chosen by a pattern of names or a type of module, not by {selector!r}")
    return several


def _matches(selector: Selector, name: str, module: nn.Module) -> bool:
    if isinstance(selector, type):
        return isinstance(module, selector)
    return matches_name(selector, name)


def matches_name(pattern: str, name: str) -> bool:
    """Return whether a pattern matches the name of a parameter, or of a module that holds it."""
    parts = name.split(".")
    return any(fnmatch.fnmatchcase(".".join(parts[:count]), pattern) for count in range(1, len(parts) + 1))


def unpackable(method: Method) -> str | None:
    """Return why the weights of a method cannot be packed, or None."""
    if method.signal is not None and method.signal.kept_by_optimizer:
        return f"method {method.name} uses the {method.signal.value} of all positions, which a packed weight lacks"
    return None


def warn_of_dense(model: nn.Module, chosen: Sequence[Candidate], exclude: Selector | Sequence[Selector]) -> None:
    """Warn if more weights stay dense than become sparse, and the user has not excluded them."""
    sparse_ids, excluding = {id(candidate.parameter) for candidate in chosen}, _as_sequence(exclude)
    left: dict[str, int] = {}
    for prefix, module in model.named_modules():
        for local, parameter in module.named_parameters(recurse=False):
            asked = any(_matches(selector, f"{prefix}.{local}".lstrip("."), module) for selector in excluding)
            if parameter.ndim > 1 and parameter.requires_grad and id(parameter) not in sparse_ids and not asked:
                kind = class_name(type(module))
                left[kind] = left.get(kind, 0) + parameter.numel()
    dense, sparse = sum(left.values()), sum(candidate.size for candidate in chosen)
    if dense > sparse:
        warnings.warn(
            f"{dense:,} weights of the model stay dense, those of {', '.join(sorted(left))}; only {sparse:,} positions "
            "become sparse: include= names the weights to make sparse, exclude= those that are to stay dense",
            stacklevel=3,
        )


def dense_matrices(model: nn.Module, sparse: Iterable[nn.Parameter]) -> list[tuple[str, int]]:
    """Return the names and sizes of the matrices of a model that are not sparse."""
    sparse_ids = set(map(id, sparse))
    return [
        (name, parameter.numel())
        for name, parameter in model.named_parameters()
        if parameter.ndim > 1 and id(parameter) not in sparse_ids
    ]
