"""The newer methods agree with plain loops over positions."""

from __future__ import annotations

import collections
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from topology_cases import seeded, seeds, topologies
from torch import Tensor

from selfish_rnn.topology import (
    CHTS,
    CHTSS,
    GRANET,
    GSE,
    MEST,
    SRIGL,
    ActiveWeights,
    GateLayout,
    LayerTopology,
    Topology,
    rewire,
)
from selfish_rnn.topology.newer.cannistraci_hebb import (
    by_cannistraci_hebb,
    by_soft_magnitude,
    ch2_l3n,
    sigmoid_from_half,
)
from selfish_rnn.topology.newer.constant_fan_in import with_even_rows
from selfish_rnn.topology.newer.granet import from_half
from selfish_rnn.topology.newer.mest import by_weight_and_gradient
from selfish_rnn.topology.newer.stochastic_exploration import by_sampled_gradient
from selfish_rnn.topology.sampling import sample_empty
from selfish_rnn.topology.schedules import steps


def weights_on(topology: Topology, seed: int) -> tuple[ActiveWeights, Tensor]:
    """Random weights and gradients of a matrix."""
    gradient = torch.randn(topology.shape, generator=seeded(seed + 1))
    values = torch.randn(topology.count, generator=seeded(seed))
    flat = gradient.flatten()
    return ActiveWeights(topology, values, flat[topology.positions], lambda: gradient, lambda at: flat[at]), gradient


@given(seeds, st.integers(1, 30), st.floats(0, 1))
def test_mest_removes_small_weights_with_small_gradients(seed: int, count: int, rate: float) -> None:
    values, gradients = torch.randn(2, count, generator=seeded(seed))
    removed = by_weight_and_gradient(values, rate, gradients, strength=0.5)
    ranked = sorted(range(count), key=lambda i: abs(float(values[i])) + 0.5 * abs(float(gradients[i])))
    assert set(removed.nonzero().flatten().tolist()) == set(ranked[: round(rate * count)])
    assert MEST.uses_gradients
    assert MEST.sparse_backward


def test_the_rate_of_mest_falls_in_four_steps() -> None:
    assert [steps(progress, 0.4) for progress in (0.0, 0.24, 0.25, 0.6, 0.8, 1.0)] == pytest.approx(
        [0.4, 0.4, 0.3, 0.2, 0.1, 0.0]
    )


def test_granet_prunes_over_the_network_and_regrows_by_gradient_in_each_matrix() -> None:
    matrices = [Topology.random((6, 8), GateLayout.single(6), 24, seeded(n)) for n in range(2)]
    network = [weights_on(topology, 10 + n) for n, topology in enumerate(matrices)]
    makers = [lambda weights=weights: weights for weights, _ in network]  # type: ignore[misc]
    rewirings = list(rewire(GRANET, makers, 0.25, seeded(0), counts=[16, 16]))

    # A loop: the 16 smallest of all 48 go, then a quarter of what is left of each matrix, for the largest gradients.
    all_weights = [
        (abs(float(value)), n, int(position))
        for n, (weights, _) in enumerate(network)
        for value, position in zip(weights.values, weights.topology.positions, strict=True)
    ]
    left = sorted(all_weights)[16:]
    for n, (_, gradient) in enumerate(network):
        mine = sorted(entry for entry in left if entry[1] == n)
        survivors = {position for _, _, position in mine[round(0.25 * len(mine)) :]}
        empty = sorted(set(range(48)) - survivors, key=lambda position: -abs(float(gradient.flatten()[position])))
        expected = survivors | set(empty[: round(0.25 * len(mine))])
        assert set(rewirings[n].topology.positions.tolist()) == expected
    assert sum(rewiring.topology.count for rewiring in rewirings) == 32


def test_the_sparsity_of_granet_and_chtss_over_a_run() -> None:
    assert [from_half(progress, 0.9) for progress in (0.0, 0.25, 0.5, 1.0)] == pytest.approx(
        [0.5, 0.5 + 0.4 * (1 - 0.5**3), 0.9, 0.9]
    )
    assert from_half(0.0, 0.3) == from_half(1.0, 0.3) == 0.3
    assert [sigmoid_from_half(progress, 0.9) for progress in (0.0, 0.5, 1.0)] == pytest.approx([0.5, 0.7, 0.9])
    for method in (GRANET, CHTSS):
        shapes = [(40, 30), (20, 10)]
        sums = [sum(method.counts(shapes, 0.9, done, 10)) for done in range(11)]
        assert sums[0] == 700
        assert sums[-1] == 140
        assert sums == sorted(sums, reverse=True)


def ch2_l3n_by_paths(mask: Tensor) -> Tensor:
    """The score of every position from its paths of length three, node after node."""
    rows, columns = mask.shape
    links: dict[tuple[str, int], set[tuple[str, int]]] = collections.defaultdict(set)
    for row in range(rows):
        for column in range(columns):
            if mask[row, column]:
                links["row", row].add(("column", column))
                links["column", column].add(("row", row))
    score = torch.zeros(rows, columns)
    for row in range(rows):
        for column in range(columns):
            first, last = ("row", row), ("column", column)
            community = {
                node
                for near in links[first]
                for far in links[near] - {first}
                if last in links[far] and near != last
                for node in (near, far)
            }
            for node in community:
                others = links[node] - {first, last}
                score[row, column] += (1 + len(others & community)) / (1 + len(others - community))
    return score


@given(seeds, st.integers(2, 7), st.integers(2, 7), st.floats(0.1, 0.9))
def test_the_score_of_chts_counts_paths_of_length_three(seed: int, rows: int, columns: int, density: float) -> None:
    mask = (torch.rand(rows, columns, generator=seeded(seed)) < density).float()
    empty = mask == 0
    torch.testing.assert_close(ch2_l3n(mask)[empty], ch2_l3n_by_paths(mask)[empty])


@given(topologies(), seeds)
def test_growth_of_chts_takes_linked_positions_first(topology: Topology, seed: int) -> None:
    free = topology.size - topology.count
    quotas = [(topology.whole, free // 2)]
    grown = by_cannistraci_hebb(topology, quotas, seeded(seed))
    assert torch.equal(grown, by_cannistraci_hebb(topology, quotas, seeded(seed)))
    assert len(set(grown.tolist())) == free // 2
    assert not set(grown.tolist()) & set(topology.positions.tolist())
    score = ch2_l3n(topology.to_mask(torch.float32)).flatten()
    linked = [place for place in range(topology.size) if score[place] > 0 and not topology.to_mask().flatten()[place]]
    assert sum(place in linked for place in grown.tolist()) == min(len(linked), free // 2)


def test_growth_of_chts_is_in_proportion_to_the_score() -> None:
    mask = (torch.rand(6, 5, generator=seeded(4)) < 0.5).float()
    topology = Topology.from_mask(mask, GateLayout.single(6))
    score = ch2_l3n(mask).flatten().index_fill(0, topology.positions, 0.0)
    generator, hits = seeded(1), torch.zeros(30)
    for _ in range(3000):
        hits[by_cannistraci_hebb(topology, [(topology.whole, 1)], generator)] += 1
    expected = 3000 * score / score.sum()
    some = expected > 0
    assert ((hits - expected)[some].square() / expected[some]).sum() < 45
    assert hits[~some].sum() == 0


def test_growth_of_chts_scores_the_matrices_of_a_layer_apart() -> None:
    matrices = [
        Topology.random((4, 5), GateLayout.single(4), 8, seeded(0)),
        Topology.random((4, 4), GateLayout.single(4), 7, seeded(1)),
    ]
    layer = LayerTopology.of(matrices)
    grown = by_cannistraci_hebb(layer, [(span, 3) for span in layer.matrix_spans], seeded(2))
    assert int((grown < 20).sum()) == 3


def test_soft_removal_prefers_large_weights_more_and_more() -> None:
    values, generator = torch.tensor([1.0, 2.0, 4.0]), seeded(0)
    for progress, power in ((0.0, 1.0), (1.0, 3.0)):
        stays = torch.zeros(3)
        for _ in range(4000):
            stays += ~by_soft_magnitude(values, 2 / 3, generator, progress)
        assert (stays / 4000).tolist() == pytest.approx((values**power / (values**power).sum()).tolist(), abs=0.03)
    assert CHTS.sparse_backward
    assert not CHTS.uses_gradients


@given(topologies(), seeds, st.sampled_from([0.5, 1.0, 3.0]))
def test_guided_exploration_takes_the_largest_gradients_of_a_sample(
    topology: Topology, seed: int, subset: float
) -> None:
    gradient = torch.randn(topology.size, generator=seeded(seed))
    asked = []

    def gradient_at(positions: Tensor) -> Tensor:
        asked.append(positions.tolist())
        return gradient[positions]

    quotas = [(span, (span.size - topology.count_in(span)) // 2) for _, span in topology.gate_spans()]
    grown = by_sampled_gradient(topology, quotas, seeded(seed), gradient_at, subset)
    expected: list[int] = []
    span_seeds = torch.randint(2**62, (len(quotas),), generator=seeded(seed)).tolist()
    for (span, count), span_seed, candidates in zip(quotas, span_seeds, asked, strict=True):
        occupied = topology.positions[topology.within(span)].numpy() - span.start
        size = min(max(round(subset * len(occupied)), count), span.size - len(occupied)) if count else 0
        assert candidates == (sample_empty(occupied, span.size, size, span_seed) + span.start).tolist()
        expected += sorted(candidates, key=lambda position: -abs(float(gradient[position])))[:count]
    assert grown.tolist() == sorted(expected)
    assert GSE.sparse_backward
    assert GSE.uses_gradients


@given(seeds, st.integers(1, 9), st.integers(1, 9), st.floats(0.05, 1))
def test_srigl_starts_with_the_same_number_in_every_row(seed: int, rows: int, columns: int, density: float) -> None:
    count = max(1, round(density * rows * columns))
    topology = with_even_rows((rows, columns), GateLayout.single(rows), count, seeded(seed))
    fan_ins = topology.to_mask().sum(1)
    assert topology.count == count == len(set(topology.positions.tolist()))
    assert int(fan_ins.max() - fan_ins.min()) <= 1


def srigl_by_loops(mask: Tensor, weight: Tensor, gradient: Tensor, rate: float) -> tuple[set[int], dict[int, int]]:
    """The weights that stay, and how many weights every row then has, in the words of the publication."""
    rows, columns = mask.shape
    existing = [(row, column) for row in range(rows) for column in range(columns) if mask[row, column]]
    count = round(rate * len(existing))
    ranked = sorted(existing, key=lambda place: abs(float(weight[place])))
    kept = set(ranked[count:])
    everywhere = [(row, column) for row in range(rows) for column in range(columns)]
    largest = set(sorted(everywhere, key=lambda place: -abs(float(gradient[place])))[:count])
    active = {row for row, _ in existing}
    salient = {row: sum(place[0] == row for place in kept | largest) for row in active}
    few = [
        row for row in sorted(active, key=lambda row: salient[row]) if salient[row] < 0.3 * len(existing) / len(active)
    ]
    ablated = set(few[: max(len(active) - math.ceil(len(existing) / columns), 0)])
    kept = {place for place in kept if place[0] not in ablated}
    for row in active - ablated - {row for row, _ in kept}:
        kept.add(max((place for place in existing if place[0] == row), key=lambda place: abs(float(weight[place]))))
    fan_in = {row: sum(place[0] == row for place in kept) for row in active - ablated}
    for _ in range(len(existing) - len(kept)):
        row = min((row for row in fan_in if fan_in[row] < columns), key=lambda row: (fan_in[row], row))
        fan_in[row] += 1
    return {row * columns + column for row, column in kept}, fan_in


@given(seeds, st.integers(2, 6), st.integers(2, 8), st.floats(0.1, 0.9), st.floats(0, 0.95))
def test_srigl_ablates_rows_and_fills_the_others_evenly(
    seed: int, rows: int, columns: int, density: float, rate: float
) -> None:
    topology = with_even_rows(
        (2 * rows, columns), GateLayout.even("ab", 2 * rows), max(1, round(density * 2 * rows * columns)), seeded(seed)
    )
    weights, gradient = weights_on(topology, seed)
    weights.values[topology.positions // columns < rows] /= 20  # so that some rows are ablated
    (rewiring,) = rewire(SRIGL, [lambda: weights], rate, seeded(0))
    weight = torch.zeros(topology.size).index_copy_(0, topology.positions, weights.values).view(topology.shape)
    kept, fan_in = srigl_by_loops(topology.to_mask(), weight, gradient, rate)
    assert set(rewiring.kept_positions.tolist()) == kept
    after = rewiring.topology.to_mask().sum(1)
    assert {row: int(count) for row, count in enumerate(after) if count} == fan_in
    assert rewiring.topology.count == topology.count
    for row in fan_in:
        empty = sorted(
            (place for place in range(row * columns, (row + 1) * columns) if place not in kept),
            key=lambda place: -abs(float(gradient.flatten()[place])),
        )
        grown = {place for place in rewiring.grown.tolist() if place // columns == row}
        assert grown == set(empty[: len(grown)])


def test_srigl_ablates_no_row_of_a_matrix_without_gates() -> None:
    topology = with_even_rows((8, 10), GateLayout.single(8), 32, seeded(0))
    weights, _ = weights_on(topology, 0)
    weights.values[topology.positions // 10 < 4] *= 1e-6
    (rewiring,) = rewire(SRIGL, [lambda: weights], 0.5, seeded(0))
    assert rewiring.topology.to_mask().sum(1).tolist() == [4] * 8


@pytest.mark.parametrize("changes", [{"pool": "network"}, {"pool": "gate"}])
def test_ablation_judges_whole_matrices(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="pool must be matrix"):
        SRIGL.replace(**changes)
