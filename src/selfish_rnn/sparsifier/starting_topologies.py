"""The topologies that the chosen weights of a model begin with."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from selfish_rnn.sparsifier.deferred import is_deferred
from selfish_rnn.sparsifier.rewiring.matrices import Matrices
from selfish_rnn.sparsifier.selection import Chosen, unpackable
from selfish_rnn.sparsifier.weights import SparseWeight, StoredWeight
from selfish_rnn.topology import Method, Topology


def check_start(sparsity: float | None, topology: str, masks: Mapping[str, Tensor] | None) -> None:
    """Refuse a sparsity that is none, two ways of giving a topology, and others than there are."""
    if sparsity is not None and not 0 <= sparsity < 1:
        raise ValueError(f"sparsity is the fraction of zeros, from 0 up to, not including, 1; got {sparsity}")
    if topology not in ("random", "nonzero"):
        raise ValueError(f'topology is "random" or "nonzero", got {topology!r}; masks go into masks=')
    if masks is not None and topology == "nonzero":
        raise ValueError('masks= gives a topology, and so does topology="nonzero": leave one of them out')


def starting_topologies(
    chosen: Sequence[Chosen],
    matrices: Matrices,
    method: Method,
    sparsity: float | None,
    topology: str,
    masks: Mapping[str, Tensor] | None,
    generator: torch.Generator,
) -> tuple[list[Topology], bool]:
    """The topology of every weight, and whether they are given, by masks or by the model, and not drawn."""
    if _given(chosen, topology, masks, method):
        return _existing(chosen, masks, sparsity), True
    if sparsity is None:
        raise ValueError('sparsity= is needed, or topology="nonzero" or masks=, which have one already')
    _warn_of_zeros(chosen)
    counts = method.allocation.counts(matrices.shapes, 1 - sparsity)
    return matrices.random_topologies(chosen, counts, generator), False


def _given(chosen: Sequence[Chosen], topology: str, masks: Mapping[str, Tensor] | None, method: Method) -> bool:
    stored = [each.name for each in chosen if each.stored]
    obstacle = unpackable(method)
    if stored and obstacle is not None:
        raise ValueError(f"{stored[0]} is packed, but {obstacle}")
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
    return existing


def _existing(chosen: Sequence[Chosen], masks: Mapping[str, Tensor] | None, sparsity: float | None) -> list[Topology]:
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


def _warn_of_zeros(chosen: Sequence[Chosen]) -> None:
    """Warn if a topology is drawn for a model that seems to have one; a matrix of zeros only is a way to begin."""
    parameters = [each.weight for each in chosen if isinstance(each.weight, nn.Parameter)]
    begun = [each for each in parameters if not (each.is_meta or is_deferred(each)) and bool(each.any())]
    existing, size = sum(int(each.count_nonzero()) for each in begun), sum(each.numel() for each in begun)
    if existing < size / 2:
        warnings.warn(
            f"only {existing:,} of the model's {size:,} weights are not zero: it seems to be sparse already, and a new "
            'topology is drawn, which deletes most of them. To keep them bind it with topology="nonzero"',
            stacklevel=4,
        )


def check_saved_pool(state: Mapping[str, Any], method: Method) -> None:
    """Raise if a saved state is of a method with another pool, unless one of both removes nothing.

    States of earlier versions do not name their pool, and none was the layer.
    """
    if method.removal is None:
        return
    pool, saved = method.pool.name, state.get("pool")
    if "pool" not in state and method.pool.layer:
        raise ValueError(
            f"the saved state comes from an earlier version, in which {method.name!r} ranked each matrix by itself; "
            'continue it with method=SELFISH.replace(pool="matrix"), or bind without loading to rank by layer'
        )
    if saved not in (None, pool):
        raise ValueError(
            f"the saved state ranks weights in pool {saved!r}, this sparsifier's method {method.name!r} in {pool!r}: "
            f"bind with {saved!r}, as in method.replace(pool={saved!r})"
        )


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
