"""Choosing the weights of a model that are made sparse, and the topology each begins with."""

from __future__ import annotations

import fnmatch
import math
import warnings
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.utils.parametrize import ParametrizationList

from selfish_rnn.sparsifier.deferred import is_deferred
from selfish_rnn.sparsifier.deferred.weight import DeferredWeight
from selfish_rnn.sparsifier.registry import matrices, model_layouts
from selfish_rnn.sparsifier.weights import MaskedWeight, SparseWeight, StoredWeight
from selfish_rnn.topology import GateLayout, Method, Topology

Selector = str | type[nn.Module]
"""A pattern of names, of a parameter (``"rnn.weight_*"``) or a module (``"rnn"``), or a type of module."""


class Chosen(NamedTuple):
    """A weight that is made sparse, or is stored so that it is."""

    name: str
    weight: nn.Parameter | StoredWeight
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
        return self.weight.values if isinstance(self.weight, StoredWeight) else self.weight

    @property
    def stored(self) -> bool:
        """Whether it has a topology already."""
        return isinstance(self.weight, StoredWeight)

    def bind(self, topology: Topology) -> SparseWeight:
        """The weight under a sparsifier, with this topology: its own, if it has one."""
        name, weight, gates = self
        if isinstance(weight, StoredWeight):
            return weight.sparse_weight(name, gates)
        kind = DeferredWeight if is_deferred(weight) else MaskedWeight
        bound = kind(name, weight, gates, topology)
        bound.bind()
        return bound


def choose_weights(
    model: nn.Module, include: Selector | Sequence[Selector] | None, exclude: Selector | Sequence[Selector]
) -> Iterator[Chosen]:
    """The weights to make sparse, each once under its first name; an excluded one is excluded under all its names.

    Weights that are frozen (``requires_grad=False``) are left as they are.
    """
    included = None if include is None else _as_sequence(include)
    excluding = _as_sequence(exclude)
    matched: set[Selector] = set()

    def selected(selectors: Sequence[Selector], name: str, module: nn.Module) -> bool:
        hits = {selector for selector in selectors if _matches(selector, name, module)}
        matched.update(hits)
        return bool(hits)

    chosen: dict[int, Chosen] = {}
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
            wanted = local in layouts if included is None else selected(included, name, module)
            if wanted and isinstance(module, torch.jit.ScriptModule):
                raise ValueError(f"{name} belongs to {_SCRIPTED}")
            if wanted and hasattr(weight, "device_mesh"):  # a DTensor
                raise ValueError(
                    f"{name} is divided over processes (fully_shard() and the like), and its parts cannot be rewired "
                    "by themselves: train with DistributedDataParallel, which keeps it whole"
                )
            if wanted and weight.requires_grad:
                gates = layouts.get(local, GateLayout.single(weight.shape[0]))
                chosen.setdefault(id(weight), Chosen(name, weight, gates))
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
    """Why nothing is made sparse, and how it would be."""
    sentence = "the model has no weight matrix to make sparse"
    for module in model.modules():
        if isinstance(module, torch.jit.ScriptModule):
            return f"{sentence}: {class_name(type(module))} is {_SCRIPTED}"
        if isinstance(module, ParametrizationList):
            return (
                f"{sentence}: parametrizations, such as weight norm, make its weights of others; "
                "torch.nn.utils.parametrize.remove_parametrizations() takes them away"
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
    """Why the weights of a method cannot be packed, if they cannot."""
    if method.signal is not None and method.signal.kept_by_optimizer:
        return f"method {method.name} goes by the {method.signal.value} of all positions, which a packed weight lacks"
    return None


def warn_of_dense(model: nn.Module, chosen: Sequence[Chosen], exclude: Selector | Sequence[Selector]) -> None:
    """Warn if of a model's weights more stay dense than become sparse, without anyone having said so."""
    own, excluding = {id(each.parameter) for each in chosen}, _as_sequence(exclude)
    left: dict[str, int] = {}
    for prefix, module in model.named_modules():
        for local, parameter in module.named_parameters(recurse=False):
            asked = any(_matches(selector, f"{prefix}.{local}".lstrip("."), module) for selector in excluding)
            if parameter.ndim > 1 and parameter.requires_grad and id(parameter) not in own and not asked:
                kind = class_name(type(module))
                left[kind] = left.get(kind, 0) + parameter.numel()
    dense, sparse = sum(left.values()), sum(each.size for each in chosen)
    if dense > sparse:
        warnings.warn(
            f"{dense:,} weights of the model stay dense, those of {', '.join(sorted(left))}; only {sparse:,} positions "
            "become sparse: include= names the weights to make sparse, exclude= those that are to stay dense",
            stacklevel=3,
        )
