"""Choosing the weights of a model that are made sparse."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Sequence

from torch import nn

from selfish_rnn.cells import gate_layouts
from selfish_rnn.topology import GateLayout

Selector = str | type[nn.Module]
"""A pattern of parameter names (``"rnn.weight_*"``) or a type of module."""


def choose_weights(
    model: nn.Module, include: Sequence[Selector] | None, exclude: Sequence[Selector]
) -> Iterator[tuple[str, nn.Parameter, GateLayout]]:
    """The weights to make sparse, each once under its first name; an excluded one is excluded under all its names.

    Weights that are frozen (``requires_grad=False``) are left as they are.
    """
    matched: set[Selector] = set()

    def selected(selectors: Sequence[Selector], name: str, module: nn.Module) -> bool:
        hits = {
            selector
            for selector in selectors
            if (fnmatch.fnmatchcase(name, selector) if isinstance(selector, str) else isinstance(module, selector))
        }
        matched.update(hits)
        return bool(hits)

    chosen: dict[int, tuple[str, nn.Parameter, GateLayout]] = {}
    excluded: set[int] = set()
    for prefix, module in model.named_modules(remove_duplicate=False):
        layouts = gate_layouts(module)
        for local, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            name = f"{prefix}.{local}" if prefix else local
            if parameter.ndim < 2 or "bias" in local:
                continue
            if selected(exclude, name, module):
                excluded.add(id(parameter))
            wanted = local in layouts if include is None else selected(include, name, module)
            if wanted and parameter.requires_grad:
                gates = layouts.get(local, GateLayout.single(parameter.shape[0]))
                chosen.setdefault(id(parameter), (name, parameter, gates))
    unmatched = [str(selector) for selector in [*(include or ()), *exclude] if selector not in matched]
    if unmatched:
        raise ValueError(f"no weight matrix of the model matches {', '.join(unmatched)}")
    if not chosen.keys() - excluded:
        raise ValueError("the model has no weight matrix to make sparse")
    return (weight for identity, weight in chosen.items() if identity not in excluded)
