"""Choosing the weights of a model that are made sparse."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Sequence

from torch import nn

from selfish_rnn.sparsifier.registry import gate_layouts
from selfish_rnn.topology import GateLayout

Selector = str | type[nn.Module]
"""A pattern of names, of a parameter (``"rnn.weight_*"``) or a module (``"rnn"``), or a type of module."""


def choose_weights(
    model: nn.Module, include: Selector | Sequence[Selector] | None, exclude: Selector | Sequence[Selector]
) -> Iterator[tuple[str, nn.Parameter, GateLayout]]:
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

    chosen: dict[int, tuple[str, nn.Parameter, GateLayout]] = {}
    excluded: set[int] = set()
    names: list[str] = []
    for prefix, module in model.named_modules(remove_duplicate=False):
        layouts = gate_layouts(module)
        unknown = [local for local in layouts if not hasattr(module, local)]
        if unknown:
            raise ValueError(f"{type(module).__name__} has no parameter {unknown[0]!r}, which its registration names")
        for local, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            name = f"{prefix}.{local}" if prefix else local
            if parameter.ndim < 2 or "bias" in local:
                continue
            names.append(name)
            if selected(excluding, name, module):
                excluded.add(id(parameter))
            wanted = local in layouts if included is None else selected(included, name, module)
            if wanted and parameter.requires_grad:
                gates = layouts.get(local, GateLayout.single(parameter.shape[0]))
                chosen.setdefault(id(parameter), (name, parameter, gates))
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
