"""The layer as a pool: the matrices of a recurrent layer are ranked together, and their gates grow together."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from topology_cases import GOLDEN, layers, rates, seeded, seeds, weights_for
from torch import Tensor

from reference import equal_shares, sorted_removal
from selfish_rnn.topology import (
    POOLS,
    REDISTRIBUTIONS,
    SELFISH,
    ActiveWeights,
    GateLayout,
    LayerTopology,
    Method,
    Rewiring,
    Topology,
    rewire,
)


def layer_of(matrices: list[Topology], values: list[Tensor], scores: list[Tensor] | None = None) -> ActiveWeights:
    flat = None if scores is None else torch.cat([score.flatten() for score in scores])
    existing = torch.cat(values)
    return ActiveWeights(LayerTopology.of(matrices), existing, existing.flip(0), None if flat is None else lambda: flat)


def dense_weights(matrices: list[Topology], values: list[Tensor]) -> list[Tensor]:
    weights = [torch.zeros(matrix.size) for matrix in matrices]
    for weight, matrix, value in zip(weights, matrices, values, strict=True):
        weight[matrix.positions] = value
    return [weight.view(matrix.shape) for weight, matrix in zip(weights, matrices, strict=True)]


def gate_masks(masks: list[Tensor], matrices: list[Topology]) -> list[Tensor]:
    """The rows of every gate of every matrix."""
    return [part for mask, matrix in zip(masks, matrices, strict=True) for part in mask.split(list(matrix.gates.sizes))]


def rewired(
    method: Method, matrices: list[Topology], layer: ActiveWeights, rate: float, seed: int
) -> tuple[Rewiring, list[Rewiring]]:
    (rewiring,) = rewire(method, [lambda: layer], rate, seeded(seed))
    shares = list(rewiring.matrices())
    assert [share.before.shape for share in shares] == [matrix.shape for matrix in matrices]
    return rewiring, shares


@pytest.mark.parametrize("growth", ["random", "gradient"])
@given(matrices=layers(), rate=rates, seed=seeds, ties=st.booleans())
def test_a_layer_is_rewired_as_the_plain_loop_says(
    growth: str, matrices: list[Topology], rate: float, seed: int, ties: bool
) -> None:
    values = [weights_for(matrix, seed + i, ties) for i, matrix in enumerate(matrices)]
    scores = [torch.randn(matrix.shape, generator=seeded(seed + i)) for i, matrix in enumerate(matrices)]
    layer = layer_of(matrices, values, scores)
    _, shares = rewired(SELFISH.replace(growth=growth), matrices, layer, rate, seed)

    before = [matrix.to_mask() for matrix in matrices]
    kept = sorted_removal(before, dense_weights(matrices, values), rate)
    for share, mask in zip(shares, kept, strict=True):
        assert torch.equal(share.before.without(share.removed).to_mask(), mask)
    after = [share.topology.to_mask() for share in shares]
    assert sum(int(mask.sum()) for mask in after) == layer.topology.count

    freed = layer.topology.count - sum(int(mask.sum()) for mask in kept)
    kept_gates, after_gates = gate_masks(kept, matrices), gate_masks(after, matrices)
    gains = [int(new.sum()) - int(old.sum()) for new, old in zip(after_gates, kept_gates, strict=True)]
    expected = equal_shares(
        freed,
        [rows for matrix in matrices for rows in matrix.gates.sizes],
        [int((~gate).sum()) for gate in kept_gates],
    )
    assert all((new & old).equal(old) for new, old in zip(after_gates, kept_gates, strict=True))
    assert all(abs(gain - share) < 1 for gain, share in zip(gains, expected, strict=True))
    if growth == "gradient":
        for old, new, score, gain in zip(kept_gates, after_gates, gate_masks(scores, matrices), gains, strict=True):
            empty = [(-abs(float(s)), i) for i, s in enumerate(score.flatten()) if not old.flatten()[i]]
            assert {i for _, i in sorted(empty)[:gain]} == set((new & ~old).flatten().nonzero().flatten().tolist())


def test_weights_of_a_golden_run_are_removed_by_layer() -> None:
    """A trained LSTM of an independent implementation, by the sort of numpy."""
    with np.load(GOLDEN / "train_selfish.npz") as arrays:
        trace = {key: arrays[key] for key in arrays.files if key.startswith(("w_e1", "mask_init"))}
    for number in range(2):
        names = [f"W_in_l{number}", f"W_rec_l{number}"]
        masks = [trace[f"mask_init_{each}"].astype(bool) for each in names]
        weights = [trace[f"w_e1_{each}"] for each in names]
        matrices = [Topology.from_mask(torch.from_numpy(mask), GateLayout.even("ifgo", 40)) for mask in masks]
        values = [torch.from_numpy(weight[mask]) for weight, mask in zip(weights, masks, strict=True)]
        _, shares = rewired(SELFISH, matrices, layer_of(matrices, values), 0.6, 1)
        magnitudes = np.abs(np.concatenate([value.numpy() for value in values]))
        count = round(0.6 * len(magnitudes))
        threshold = np.sort(magnitudes)[count]
        for share, weight, mask in zip(shares, weights, masks, strict=True):
            kept = mask & (np.abs(weight) >= threshold)
            assert np.array_equal(share.before.without(share.removed).to_mask().numpy(), kept)
        assert sum(int(share.removed.sum()) for share in shares) == count


INSIDE = [part.name for part in REDISTRIBUTIONS.values() if part.quotas is not None]


@pytest.mark.parametrize(("removal", "redistribution"), list(itertools.product(["magnitude", "signed"], INSIDE)))
@settings(max_examples=25)
@given(matrices=layers(), rate=rates, seed=seeds)
def test_every_redistribution_keeps_the_budget_of_the_layer(
    removal: str, redistribution: str, matrices: list[Topology], rate: float, seed: int
) -> None:
    method = SELFISH.replace(removal=removal, redistribution=redistribution)
    values = [weights_for(matrix, seed + i) for i, matrix in enumerate(matrices)]
    rewiring, shares = rewired(method, matrices, layer_of(matrices, values), rate, seed)
    assert rewiring.topology.count == sum(matrix.count for matrix in matrices)
    assert sum(share.topology.count for share in shares) == rewiring.topology.count
    for share, matrix in zip(shares, matrices, strict=True):
        kept = set(share.kept_positions.tolist())
        assert kept
        assert not kept & set(share.grown.tolist())
        assert share.topology.positions.tolist() == sorted(kept | set(share.grown.tolist()))
        assert (share.topology.shape, share.topology.gates) == (matrix.shape, matrix.gates)
        if redistribution == "matrix":
            assert share.topology.count == matrix.count
        if redistribution == "gate":
            assert share.topology.gate_densities() == matrix.gate_densities()


@given(matrix=layers(), rate=rates, seed=seeds)
def test_a_layer_of_one_matrix_is_rewired_as_the_matrix(matrix: list[Topology], rate: float, seed: int) -> None:
    values = [weights_for(matrix[0], seed)]
    alone = ActiveWeights(matrix[0], values[0])
    _, (share,) = rewired(SELFISH, matrix[:1], layer_of(matrix[:1], values), rate, seed)
    (expected,) = rewire(SELFISH.replace(pool="matrix"), [lambda: alone], rate, seeded(seed))
    assert torch.equal(share.topology.positions, expected.topology.positions)
    assert torch.equal(share.removed, expected.removed)


@given(matrices=layers())
def test_a_layer_is_the_matrices_one_after_the_other(matrices: list[Topology]) -> None:
    layer = LayerTopology.of(matrices)
    assert layer.count == sum(matrix.count for matrix in matrices)
    assert torch.equal(layer.to_mask(), torch.cat([matrix.to_mask().flatten() for matrix in matrices]))
    assert [span.size for _, span in layer.gate_spans()] == [
        span.size for matrix in matrices for _, span in matrix.gate_spans()
    ]
    assert layer.gate_rows == tuple(rows for matrix in matrices for rows in matrix.gates.sizes)
    assert layer.matrix_spans[-1].stop == layer.size
    for own, matrix in zip(layer.matrices(), matrices, strict=True):
        assert (own.shape, own.gates, own.positions.tolist()) == (matrix.shape, matrix.gates, matrix.positions.tolist())


def test_weights_move_to_the_matrix_with_larger_weights_and_every_gate_grows_as_many() -> None:
    gates = GateLayout.even("ifgo", 40)
    matrices = [Topology.random((40, columns), gates, 10 * columns, seeded(columns)) for columns in (10, 30)]
    values = [torch.full((100,), 2.0), torch.linspace(0.1, 1, 300)]
    _, (entering, recurrent) = rewired(SELFISH, matrices, layer_of(matrices, values), 0.4, 1)
    assert (int(entering.removed.sum()), int(recurrent.removed.sum())) == (0, 160)
    for share in (entering, recurrent):
        columns = share.before.shape[1]
        assert [int((share.grown // (10 * columns) == gate).sum()) for gate in range(4)] == [20] * 4
    assert (entering.topology.count, recurrent.topology.count) == (180, 220)


def test_gates_of_fewer_rows_grow_in_proportion_to_their_rows() -> None:
    """As in ON-LSTM, whose master gates have a row for every chunk; the columns of the two matrices do not count."""
    gates = GateLayout(("master", "output"), (2, 20))
    matrices = [Topology.random((22, columns), gates, 200, seeded(columns)) for columns in (20, 60)]
    values = [weights_for(matrix, seed) for seed, matrix in enumerate(matrices)]
    _, shares = rewired(SELFISH, matrices, layer_of(matrices, values), 0.55, 1)
    for share in shares:
        grown = share.grown // share.before.shape[1]
        assert [int((grown < 2).sum()), int((grown >= 2).sum())] == [10, 100]


@pytest.mark.parametrize("redistribution", ["layers-by-survivors"])
def test_redistribution_over_the_network_works_on_layers(redistribution: str) -> None:
    method = SELFISH.replace(redistribution=redistribution)
    networks = []
    for seed in range(2):
        gates = GateLayout.even("ab", 8)
        matrices = [Topology.random((8, columns), gates, 20, seeded(columns)) for columns in (6, 9)]
        networks.append(layer_of(matrices, [weights_for(matrix, seed) * (1 + 9 * seed) for matrix in matrices]))
    rewirings = list(rewire(method, [lambda layer=layer: layer for layer in networks], 0.5, seeded(1)))
    assert sum(rewiring.topology.count for rewiring in rewirings) == 80
    assert [len(list(rewiring.matrices())) for rewiring in rewirings] == [2, 2]


def test_the_layer_is_a_pool_by_name() -> None:
    assert POOLS["layer"].layer
    assert SELFISH.pool is POOLS["layer"]
