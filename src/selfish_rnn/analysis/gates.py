"""The density of each gate of each matrix: of a model, and over the epochs of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from selfish_rnn.analysis.networks import weight_matrices
from selfish_rnn.topology.gates import WHOLE

Densities = dict[str, dict[str, float]]
"""By matrix and gate."""


def gate_densities(model: nn.Module) -> Densities:
    """The density of every weight matrix of a model, under ``"all"``, and of each of its gates.

    >>> from selfish_rnn import Sparsifier
    >>> model = nn.GRU(8, 16)
    >>> sparsifier = Sparsifier(model, sparsity=0.75, rewirings=10)
    >>> densities = gate_densities(model)
    >>> list(densities["weight_hh_l0"])
    ['reset', 'update', 'candidate', 'all']
    >>> densities["weight_hh_l0"]["all"]
    0.25

    What exists is what the model's sparsifier says, what is packed, or without either what is not zero.
    """
    return {name: matrix.topology.densities() for name, matrix in weight_matrices(model).items()}


def with_gates(densities: Mapping[str, Mapping[str, float]]) -> dict[str, Mapping[str, float]]:
    """Those of some matrices that have gates: with one gate besides the whole, that gate is the whole."""
    return {name: gates for name, gates in densities.items() if len(gates) > 2}


def densities_over_time(records: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """The density of each gate of each matrix after every epoch of a run, from the records in its ``metrics.jsonl``.

    >>> records = [{"density": {"rnn.weight_hh_l0": {"forget": 0.3, "all": 0.33}}},
    ...            {"density": {"rnn.weight_hh_l0": {"forget": 0.2, "all": 0.33}}}]
    >>> densities_over_time(records)["rnn.weight_hh_l0"]["forget"]
    [0.3, 0.2]
    """
    series: dict[str, dict[str, list[float]]] = {}
    for record in records:
        for matrix, gates in record["density"].items():
            for gate, density in gates.items():
                series.setdefault(matrix, {}).setdefault(gate, []).append(density)
    return series


def gate_deviations(densities: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """How much denser than its matrix each gate is, as a mean over the matrices that have it.

    Below zero a gate is sparser than the average: in the paper the forget gates, while the candidate and output gates
    are denser.

    >>> gate_deviations({"rnn.weight_hh_l0": {"forget": 0.25, "output": 0.5, "all": 0.375}})
    {'forget': -0.125, 'output': 0.125}
    """
    found: dict[str, list[float]] = {}
    for gates in with_gates(densities).values():
        for gate, density in gates.items():
            if gate != WHOLE:
                found.setdefault(gate, []).append(density - gates[WHOLE])
    return {gate: sum(each) / len(each) for gate, each in found.items()}
