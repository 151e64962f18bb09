"""SRigL: RigL with the same number of weights in every row, and rows that are ablated.

Lasby et al.: *Dynamic sparse training with structured sparsity*, ICLR 2024. A row of a gate that has few salient
weights loses all of them for good, and the other rows of its matrix share them.

The publication leaves open, and this file decides: the budget is exact, so the rows of a matrix may differ by one
weight. Only rows of gates are ablated, because a row of an embedding or a decoder is a word. An ablated row stays
ablated. A row that is not ablated keeps its largest weight.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from selfish_rnn.topology.allocation import Allocation, Shape, erdos_renyi_kernel
from selfish_rnn.topology.gates import WHOLE, GateLayout
from selfish_rnn.topology.methods import Method, register_method
from selfish_rnn.topology.redistribution import AfterRemoval, Quota, Redistribution
from selfish_rnn.topology.removal import Removal, Signal, by_magnitude
from selfish_rnn.topology.sampling import Numbers, sample
from selfish_rnn.topology.topology import Span, Topology

SALIENT = 0.3
"""Fraction of the fan-in that must be salient in a row, as in the publication."""


def with_even_rows(shape: Shape, gates: GateLayout, count: int, generator: torch.Generator) -> Topology:
    """Draw positions so that the numbers of weights in the rows of a matrix differ by at most one."""
    rows, columns = gates.matrix_shape(shape)
    fan_ins = np.full(rows, count // rows)
    fan_ins[sample(rows, count % rows, generator).numpy()] += 1
    positions = [sample(columns, fan_in, generator) + row * columns for row, fan_in in enumerate(fan_ins.tolist())]
    return Topology(shape, gates, torch.cat(positions))


def ablating(values: Tensor, rate: float, topology: Topology, score: Tensor) -> Tensor:
    """Mark the smallest weights of a matrix, and all weights of the rows of gates with few salient ones.

    The salient positions are the weights that are not the smallest, and as many positions with the largest gradients as
    there are smallest weights. A row is ablated if it has fewer of them than :data:`SALIENT` times its fan-in.
    """
    rows, columns = topology.gates.matrix_shape(topology.shape)
    removed = by_magnitude(values, rate)
    row_of = topology.positions.numpy() // columns
    fan_in = np.bincount(row_of, minlength=rows)
    survivors = np.bincount(row_of[~removed.numpy()], minlength=rows)
    ablated = np.zeros(rows, dtype=np.bool_)
    if topology.gates.names != (WHOLE,) and len(values):
        largest = torch.topk(score.abs().flatten().cpu(), int(removed.sum())).indices.numpy()
        remaining = topology.positions.numpy()[~removed.numpy()]
        salient = survivors + np.bincount(np.setdiff1d(largest, remaining) // columns, minlength=rows)
        ablated = (fan_in > 0) & (salient < SALIENT * len(values) / np.count_nonzero(fan_in))
        # The other rows must have room for all weights.
        most = int(np.count_nonzero(fan_in)) - -(-len(values) // columns)
        by_salience = sorted(np.flatnonzero(ablated).tolist(), key=lambda row: int(salient[row]))
        ablated[by_salience[max(most, 0) :]] = False
    marks = removed | torch.from_numpy(ablated[row_of])
    for row in np.flatnonzero((fan_in > 0) & (survivors == 0) & ~ablated):
        entries = topology.within(Span(int(row) * columns, (int(row) + 1) * columns))
        marks[entries.start + int(values[entries].abs().argmax())] = False
    return marks


def even_rows(freed: AfterRemoval) -> list[Quota]:
    """Fill the rows of each matrix that have weights to the same number, as far as their weights allow.

    Rows without weights grow some only if the others have no room.
    """
    quotas: list[Quota] = []
    matrices = zip(freed.topology.matrices(), freed.losses(freed.topology.matrix_spans), strict=True)
    for matrix, (span, count) in matrices:
        rows, columns = matrix.gates.matrix_shape(matrix.shape)
        survivors = np.bincount(matrix.positions.numpy() // columns, minlength=rows)
        capacity = columns - survivors
        occupied = np.where(survivors > 0, capacity, 0)
        growing = _levelled(survivors, occupied if occupied.sum() >= count else capacity, count)
        quotas += [
            (Span(span.start + row * columns, span.start + (row + 1) * columns), int(growing[row]))
            for row in np.flatnonzero(growing).tolist()
        ]
    return quotas or [(freed.topology.whole, 0)]


def _levelled(heights: Numbers, capacity: Numbers, total: int) -> Numbers:
    """Divide ``total`` so that the lowest entries with capacity rise to a common height; the first win ties."""
    low, high = 0, int(heights.max(initial=0)) + total
    while low < high:  # the largest common height that does not take more than the total
        middle = (low + high + 1) // 2
        if np.clip(middle - heights, 0, capacity).sum() <= total:
            low = middle
        else:
            high = middle - 1
    rises = np.clip(low - heights, 0, capacity)
    remaining = total - int(rises.sum())
    rises[np.flatnonzero((heights + rises == low) & (rises < capacity))[:remaining]] += 1
    return rises


SRIGL = register_method(
    Method(
        name="srigl",
        reference="Lasby et al.: Dynamic sparse training with structured sparsity, ICLR 2024",
        allocation=Allocation("erk-even-rows", erdos_renyi_kernel, draw=with_even_rows),
        removal=Removal(
            "magnitude-and-ablation", ablating, ("matrix",), elementwise=True, whole=True, signal=Signal.GRADIENT
        ),
        redistribution=Redistribution("even-rows", even_rows),
        growth="gradient",  # type: ignore[arg-type]
    )
)
