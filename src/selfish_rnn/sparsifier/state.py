"""State of a sparsifier as it is saved, and checks of it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from selfish_rnn.errors import short_repr
from selfish_rnn.sparsifier.base import check_keys
from selfish_rnn.sparsifier.budgets import WeightBudget
from selfish_rnn.sparsifier.weights import SparseWeight
from selfish_rnn.topology import Method, Topology
from selfish_rnn.topology.layout import read_topology, stored_keys, topology_tensors

STATE_KEYS = (
    "rewirings",
    "rewirings_done",
    "steps_done",
    "last_rewired_fraction",
    "parts",
    "pool",
    "generator",
    "shapes",
    "topologies",
)


def saved_topologies_of(weights: Sequence[SparseWeight]) -> dict[str, Tensor]:
    """Return the topologies of weights in the layout of files; a weight without zeros has no entry."""
    sparse = (weight for weight in weights if weight.count < weight.size)
    return {
        name: tensor for weight in sparse for name, tensor in topology_tensors(weight.name, weight.topology).items()
    }


def checked_topologies(
    state: Mapping[str, Any],
    weights: Sequence[SparseWeight],
    method: Method,
    parts: Mapping[str, Any],
    budgets: Sequence[WeightBudget],
) -> list[Topology]:
    """Return the topologies of a saved state; raise an error unless it is of these weights and this method."""
    check_keys(state, STATE_KEYS, "a sparsifier")
    if state["parts"].keys() != parts.keys():
        raise ValueError(f"the state was saved by a different method than {method.name!r}: its parts have other state")
    check_saved_pool(state, method)
    topologies = saved_topologies(weights, state["topologies"], state["shapes"])
    for budget, saved in zip(budgets, topologies, strict=False):
        if budget.stays_dense and saved.count < saved.size:
            raise ValueError(
                f"sparsity= leaves {budget.chosen.name} dense, and in the saved topology it is sparse: bind the "
                "model with the sparsity that the saved run had"
            )
    return topologies


def saved_rewirings(state: Mapping[str, Any], current: int | None) -> int | None:
    """Return the number of rewirings of a saved state; warn if it is not the ``current`` one."""
    saved = state["rewirings"]
    if saved is not None and (not isinstance(saved, int) or saved < 1):
        raise ValueError(f"the saved rewirings must be a whole number of at least 1, got {short_repr(saved)}")
    if saved != current:
        warnings.warn(
            f"the saved sparsifier was made with rewirings={saved}, this one with rewirings={current}: it goes on with "
            f"{saved}; set sparsifier.rewirings afterwards to lengthen or shorten the run",
            stacklevel=3,
        )
    return saved


def check_saved_pool(state: Mapping[str, Any], method: Method) -> None:
    """Raise an error if a state was saved with another pool, unless one of the methods removes nothing."""
    saved = state["pool"]
    if method.removal is not None and saved not in (None, method.pool.name):
        pool = method.pool.name
        raise ValueError(
            f"the saved state ranks weights in pool {saved!r}, this sparsifier's method {method.name!r} in {pool!r}: "
            f"bind with {saved!r}, as in method.replace(pool={saved!r})"
        )


def saved_topologies(
    weights: Sequence[SparseWeight], saved: Mapping[str, Tensor], shapes: Mapping[str, Sequence[int]]
) -> list[Topology]:
    """Return the topologies of a saved state, which must be of these weights."""
    differing = sorted(set(shapes) ^ {weight.name for weight in weights})
    if differing:
        raise ValueError(
            f"the saved topology is of other weights than this model's; they differ in {differing}: bind with the "
            "include=, exclude= and min_side= of the saved sparsifier"
        )
    for weight in weights:
        if tuple(shapes[weight.name]) != weight.shape:
            raise ValueError(
                f"{weight.name}: the saved topology is of shape {tuple(shapes[weight.name])}, "
                f"the matrix of shape {weight.shape}"
            )
    return [_saved_topology(weight, saved) for weight in weights]


def _saved_topology(weight: SparseWeight, saved: Mapping[str, Tensor]) -> Topology:
    """Return the saved topology of a weight; without positions or bits all its weights exist."""
    if not stored_keys(saved, weight.name):
        return Topology(weight.shape, weight.gates, torch.arange(weight.size))
    return read_topology(saved, weight.name, weight.shape, weight.gates)


def weight_gradients(weights: Sequence[SparseWeight]) -> dict[str, Tensor]:
    """Return the gradients of existing weights by name, in the order of their positions."""
    gradients = ((weight, weight.parameter.grad) for weight in weights)
    return {weight.name: weight.gather(gradient) for weight, gradient in gradients if gradient is not None}


def load_gradients(weights: Sequence[SparseWeight], state: Mapping[str, Any]) -> None:
    """Load the dense gradients and the gradients of existing weights that wait for a rewiring."""
    for weight in weights:
        weight.drop_gradient()
        if weight.name in state.get("gradients", {}):
            weight.load_gradient(state["gradients"][weight.name])
        if weight.name in state.get("weight_gradients", {}):
            gradient = weight.scatter(state["weight_gradients"][weight.name])
            weight.parameter.grad = gradient.to(weight.parameter.device, weight.parameter.dtype)
