"""What is measured of a sparse network after every epoch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from selfish_rnn.sparsifier import SparseTraining

LARGE = 0.1
"""Above this magnitude a weight counts as large in the paper's figure on NT-ASGD."""


def gate_densities(sparsifier: SparseTraining) -> dict[str, dict[str, float]]:
    """The density of every matrix, under ``all``, and of each of its gates."""
    densities = {}
    for weight in sparsifier.weights:
        topology = weight.topology
        densities[weight.name] = {**topology.gate_densities(), "all": topology.density}
    return densities


def large_weights(sparsifier: SparseTraining) -> dict[str, int]:
    """How many weights of every matrix are larger than 0.1 in magnitude."""
    return {
        weight.name: int((weight.parameter.detach().abs() > LARGE).count_nonzero()) for weight in sparsifier.weights
    }


def describe(sparsifier: SparseTraining) -> dict[str, Any]:
    """The network as it is now: how many weights, and where."""
    return {
        "sparsity": 1 - sparsifier.active_weights / sparsifier.total_weights,
        "active_weights": sparsifier.active_weights,
        "total_weights": sparsifier.total_weights,
        "density": gate_densities(sparsifier),
        **sparsifier.measures(),
    }


def event_scalars(record: Mapping[str, Any]) -> dict[str, float]:
    """The record of an epoch as TensorBoard's flat names."""
    scalars: dict[str, float] = {
        "loss/train": record["train_loss"],
        "loss/valid": record["valid_loss"],
        "perplexity/train": record["train_perplexity"],
        "perplexity/valid": record["valid_perplexity"],
        "rewiring/prune_rate": record["prune_rate"],
        "rewiring/active_weights": record["active_weights"],
        "learning_rate": record["learning_rate"],
    }
    for name, count in record["weights_above_0.1"].items():
        scalars[f"weights_above_0.1/{name}"] = count
    for name, gates in record["density"].items():
        for gate, density in gates.items():
            scalars[f"density/{name}/{gate}"] = density
    return scalars
