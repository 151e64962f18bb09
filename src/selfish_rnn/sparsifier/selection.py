"""Choosing the weights of a model that are made sparse, and the topology each begins with."""

from __future__ import annotations

import fnmatch
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from selfish_rnn.sparsifier.deferred import is_deferred
from selfish_rnn.sparsifier.deferred.weight import DeferredWeight
from selfish_rnn.sparsifier.registry import gate_layouts, joined_gates, matrices
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
    for prefix, module in model.named_modules(remove_duplicate=False):
        layouts = gate_layouts(module)
        unknown = [local for local in layouts if not hasattr(module, local)]
        if unknown:
            raise ValueError(f"{type(module).__name__} has no parameter {unknown[0]!r}, which its registration names")
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


def _nothing_chosen(model: nn.Module, excluded: set[int]) -> str:
    """Why nothing is made sparse, and how it would be."""
    sentence = "the model has no weight matrix to make sparse"
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.ndim > 1 and parameter.requires_grad and "bias" not in name and id(parameter) not in excluded:
                kind = type(module)
                path = f"nn.{kind.__name__}" if getattr(nn, kind.__name__, None) is kind else kind.__name__
                return f"{sentence} that is one by default; to make {kind.__name__} sparse say include={path}"
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
    parts = name.split(".")
    return any(fnmatch.fnmatchcase(".".join(parts[:count]), selector) for count in range(1, len(parts) + 1))


def unpackable(method: Method) -> str | None:
    """Why the weights of a method cannot be packed, if they cannot."""
    if method.signal == "momentum":
        return f"method {method.name} goes by the momentum of all positions, which a packed weight lacks"
    return None


def check_topology(topology: str, masks: Mapping[str, Tensor] | None) -> None:
    """Refuse two ways of giving a topology, and others than there are."""
    if topology not in ("random", "nonzero"):
        raise ValueError(f'topology is "random" or "nonzero", got {topology!r}; masks go into masks=')
    if masks is not None and topology == "nonzero":
        raise ValueError('masks= gives a topology, and so does topology="nonzero": leave one of them out')


def topology_given(
    chosen: Sequence[Chosen],
    topology: str,
    masks: Mapping[str, Tensor] | None,
    method: Method,
    sparsity: float | None,
) -> bool:
    """Whether the topology is given, by masks or by the model, and not drawn."""
    stored = [each.name for each in chosen if each.stored]
    if stored and method.signal == "momentum":
        raise ValueError(f"{stored[0]} is packed, but {unpackable(method)}")
    if stored and masks is not None:
        raise ValueError(f"{stored[0]} is packed and has its topology already: leave masks= out")
    if stored and len(stored) < len(chosen) and topology == "random":
        other = next(each.name for each in chosen if not each.stored)
        raise ValueError(
            f"{stored[0]} is packed and has a topology, {other} has none: exclude one of them, or bind with "
            'topology="nonzero"'
        )
    existing = masks is not None or topology == "nonzero" or bool(stored)
    if existing and method.prunes:
        raise ValueError(f"method {method.name!r} starts with a dense network and takes no existing topology")
    if not existing and sparsity is None:
        raise ValueError('sparsity= is needed, or topology="nonzero" or masks=, which have one already')
    return existing


class Joined(NamedTuple):
    """Which of the chosen weights, by their numbers, are one matrix to a method: most are so alone."""

    numbers: tuple[int, ...]
    shape: tuple[int, ...]
    gates: GateLayout


def joined_weights(model: nn.Module, chosen: Sequence[Chosen]) -> list[Joined]:
    """The matrices that a method sees, in the order of their first weights."""
    numbers = {id(each.weight): number for number, each in enumerate(chosen)}
    alone = {number: Joined((number,), each.shape, each.gates) for number, each in enumerate(chosen)}
    for parts in joined_gates(model):
        found = {numbers[each]: gates for each, gates in parts.items() if numbers.get(each) in alone}
        if len(found) > 1:
            gates = GateLayout(
                tuple(name for part in found.values() for name in part.names),
                tuple(size for part in found.values() for size in part.sizes),
            )
            for number in found:
                del alone[number]
            alone[min(found)] = Joined(tuple(found), (gates.rows, *chosen[min(found)].shape[1:]), gates)
    return [alone[number] for number in sorted(alone)]


def random_topologies(
    chosen: Sequence[Chosen], joined: Sequence[Joined], counts: Sequence[int], generator: torch.Generator
) -> list[Topology]:
    """For every weight a topology; so many positions are drawn from every whole matrix."""
    topologies: dict[int, Topology] = {}
    for (numbers, shape, gates), count in zip(joined, counts, strict=True):
        whole = Topology.random(shape, gates, count, generator)
        parts = whole.divided([chosen[number].shape[0] for number in numbers])
        for number, part in zip(numbers, parts, strict=True):
            topologies[number] = replace(part, gates=chosen[number].gates)
    return [topologies[number] for number in range(len(chosen))]


def existing_topologies(
    chosen: Sequence[Chosen], masks: Mapping[str, Tensor] | None, sparsity: float | None
) -> list[Topology]:
    """The topologies that masks give, or without them the weights that are not zero; of about this sparsity."""
    topologies = []
    for name, weight, gates in chosen:
        if isinstance(weight, StoredWeight):
            topologies.append(weight.sparse_weight(name, gates).topology)
            continue
        if masks is not None and name not in masks:
            raise ValueError(f"masks= has the names of weights, such as {name}, not those of modules or patterns")
        mask = weight.detach() if masks is None else masks[name]
        if mask.shape != weight.shape:
            raise ValueError(
                f"the mask of {name} is of shape {tuple(mask.shape)}, the weight of shape {tuple(weight.shape)}"
            )
        topologies.append(Topology.from_mask(mask, gates))
        if topologies[-1].count == 0:
            raise ValueError(f"no weight of {name} exists: all of it is zero; exclude it, or leave one at least")
    found = 1 - sum(each.count for each in topologies) / sum(each.size for each in topologies)
    if sparsity is not None and abs(found - sparsity) > 0.01:
        raise ValueError(f"the existing topology has sparsity {found:.4g}, not {sparsity:g}: leave sparsity= out")
    return topologies


def saved_topologies(
    weights: Sequence[SparseWeight], masks: Mapping[str, Tensor], shapes: Mapping[str, Sequence[int]]
) -> list[Topology]:
    """The topologies of a saved state, which must be of these weights."""
    differing = sorted(set(masks) ^ {weight.name for weight in weights})
    if differing:
        raise ValueError(f"the saved topology is of other weights than this model's; they differ in {differing}")
    for weight in weights:
        if tuple(shapes[weight.name]) != weight.shape:
            raise ValueError(
                f"{weight.name}: the saved topology is of shape {tuple(shapes[weight.name])}, "
                f"the matrix of shape {weight.shape}"
            )
    return [Topology.from_saved(masks[weight.name], weight.shape, weight.gates) for weight in weights]


def warn_of_zeros(chosen: Sequence[Chosen]) -> None:
    """Warn if a topology is drawn for a model that seems to have one; a matrix of zeros only is a way to begin."""
    parameters = [each.weight for each in chosen if isinstance(each.weight, nn.Parameter)]
    begun = [each for each in parameters if not (each.is_meta or is_deferred(each)) and bool(each.any())]
    existing, size = sum(int(each.count_nonzero()) for each in begun), sum(each.numel() for each in begun)
    if existing < size / 2:
        warnings.warn(
            f"only {existing:,} of the model's {size:,} weights are not zero: it seems to be sparse already, and a new "
            'topology is drawn, which deletes most of them. To keep them bind it with topology="nonzero"',
            stacklevel=3,
        )
