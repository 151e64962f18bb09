from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from topology_cases import golden_cases, positions, seeded, seeds, topologies
from torch import Tensor

from selfish_rnn.topology import METHODS, SELFISH, ActiveWeights, GateLayout, Method, Topology, rewire
from selfish_rnn.topology.growth import Growth, at_random, by_score
from selfish_rnn.topology.topology import Span


@st.composite
def quotas_of(draw: st.DrawFn, topology: Topology) -> list[tuple[Span, int]]:
    return [
        (span, draw(st.integers(0, span.size - topology.count_in(span)), label="quota"))
        for _, span in topology.gate_spans()
    ]


@given(topologies(), st.data(), seeds)
def test_random_growth_fills_the_quotas_with_empty_places(topology: Topology, data: st.DataObject, seed: int) -> None:
    quotas = data.draw(quotas_of(topology))
    grown = at_random(topology, quotas, seeded(seed))
    assert not positions(topology) & set(grown.tolist())
    assert grown.tolist() == sorted(set(grown.tolist()))
    for span, count in quotas:
        assert int(((grown >= span.start) & (grown < span.stop)).sum()) == count
    assert torch.equal(grown, at_random(topology, quotas, seeded(seed)))


def test_random_growth_is_uniform_over_the_empty_places() -> None:
    """30 empty places, 3 grown 2000 times; the statistic exceeds 59 once in a thousand seeds."""
    topology = Topology.random((8, 5), GateLayout.single(8), 10, seeded(0))
    generator = seeded(1)
    hits = torch.zeros(topology.size)
    for _ in range(2000):
        hits[at_random(topology, [(topology.whole, 3)], generator)] += 1
    empty = hits[~topology.to_mask().flatten()]
    assert ((empty - 200) ** 2 / 200).sum() < 59


@pytest.mark.slow
@pytest.mark.parametrize("count", [40, 2000, 9000])
@given(seed=seeds, data=st.data())
def test_one_weight_more_or_less_changes_random_growth_in_as_few_places(
    count: int, seed: int, data: st.DataObject
) -> None:
    """Two runs that differ in which of two weights of the same size goes still grow the same."""
    topology = Topology.random((60, 500), GateLayout.even("ab", 60), 10_000, seeded(3))
    quotas = [(span, count // 2) for _, span in topology.gate_spans()]
    other = topology.positions.clone()
    other[data.draw(st.integers(0, 9999))] = data.draw(st.integers(0, 29_999).filter(lambda place: place not in other))
    grown = set(at_random(topology, quotas, seeded(seed)).tolist())
    changed = Topology(topology.shape, topology.gates, other.sort().values)
    assert len(grown ^ set(at_random(changed, quotas, seeded(seed)).tolist())) <= 4


@given(topologies(), st.data(), seeds)
def test_growth_by_score_takes_the_largest_of_each_span(topology: Topology, data: st.DataObject, seed: int) -> None:
    quotas = data.draw(quotas_of(topology))
    score = torch.randn(topology.shape, generator=seeded(seed))
    grown = set(by_score(topology, quotas, score).tolist())
    assert not positions(topology) & grown
    for span, count in quotas:
        empty = [place for place in range(span.start, span.stop) if place not in positions(topology)]
        ranked = sorted(empty, key=lambda place: -abs(float(score.flatten()[place])))
        assert {place for place in grown if span.start <= place < span.stop} == set(ranked[:count])


def test_of_equal_scores_the_first_grow() -> None:
    topology = Topology((1, 6), GateLayout.single(1), torch.tensor([1]))
    assert by_score(topology, [(topology.whole, 3)], torch.ones(1, 6)).tolist() == [0, 2, 3]


def test_scores_in_double_precision_are_compared_in_double_precision() -> None:
    topology = Topology((1, 3), GateLayout.single(1), torch.tensor([0]))
    score = torch.tensor([[9.0, 1.0, 1 + 1e-12]], dtype=torch.float64)
    assert by_score(topology, [(topology.whole, 1)], score).tolist() == [2]


@pytest.mark.parametrize("case", golden_cases("prune_grow", 4))
def test_golden_growth_by_gradient(case: dict[str, np.ndarray]) -> None:
    kept = Topology.from_mask(torch.from_numpy(case["kept_magnitude"]), GateLayout.single(len(case["mask"])))
    grown = by_score(kept, [(kept.whole, int(case["n_regrow"]))], torch.from_numpy(case["grad"]))
    assert np.array_equal(kept.joined(grown).to_mask().numpy(), case["grown_gradient"].astype(bool))


def regrown(method: Method, count: int, seed: int, at: float = 1.0) -> tuple[int, int]:
    """The number of removed weights of a 4 x 10 matrix that grow again in the same rewiring, and of all that grow.

    ``at`` is the score where a weight is removed, elsewhere it is 0.5.
    """
    topology = Topology.random((4, 10), GateLayout.even("ab", 4), count, seeded(seed))
    values = torch.rand(count, generator=seeded(seed + 1)) * (1e-4 if method.name == "dsr" else 1)
    values[::2] += 1  # the others go: half of every matrix, and below the threshold of DSR
    score = torch.full((4, 10), 0.5)
    score.view(-1)[topology.positions[1::2]] = at
    weights = ActiveWeights(
        topology, values, torch.zeros(count), lambda: score, lambda positions: score.flatten()[positions]
    )
    counts = [count] if method.prunes else None  # prunes nothing
    (rewiring,) = rewire(method, [lambda: weights], 0.5, seeded(seed), counts=counts)
    return len(set(rewiring.removed_positions.tolist()) & set(rewiring.grown.tolist())), len(rewiring.grown)


REWIRING = [method for method in METHODS.values() if method.rewires]


@pytest.mark.parametrize("method", REWIRING, ids=lambda method: method.name)
def test_whether_growth_may_reuse_a_position_just_removed(method: Method) -> None:
    """All methods but DSR may: RigL and SNFS where the score says so, Selfish-RNN and SET by chance."""
    again, grown = map(sum, zip(*(regrown(method, 16, seed) for seed in range(30)), strict=True))
    assert grown >= 30 * 7
    if method.name in ("gse", "chts", "chtss", "srigl"):
        assert 0.1 < again / grown < 0.9  # among a sample, by the topology, or where a row needs weights
    elif method.growth is not None and method.growth.random:
        # 8 of 32 empty positions were removed just now
        assert again == 0 if method.name == "dsr" else 0.15 < again / grown < 0.35
    else:
        assert again == grown


@pytest.mark.parametrize("name", ["rigl", "snfs"])
def test_growth_by_score_leaves_removed_positions_where_their_score_is_low(name: str) -> None:
    assert regrown(METHODS[name], 16, 0, at=0.1)[0] == 0


@pytest.mark.parametrize("method", REWIRING, ids=lambda method: method.name)
def test_removed_positions_grow_again_where_no_other_is_empty(method: Method) -> None:
    again, grown = regrown(method, 40, 0)
    assert again == grown > 0


def test_growth_elsewhere_leaves_the_removed_positions_empty() -> None:
    method = SELFISH.replace(growth="random-elsewhere")
    assert sum(regrown(method, 16, seed)[0] for seed in range(30)) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda drawn: drawn[:-1], r"growth 'broken' returned \d+ positions, but its quotas are \d+"),
        (lambda drawn: torch.cat([drawn, drawn[:1] + 1]), r"growth 'broken' returned \d+ positions, but"),
        (lambda drawn: torch.cat([drawn[:1], drawn[:-1]]), r"growth 'broken' must return empty positions"),
        (lambda drawn: torch.cat([drawn[1:], drawn[:1] + 10**6]), r"must return empty positions from 0 to"),
    ],
)
def test_a_growth_that_breaks_the_budget_is_refused(change: Callable[[Tensor], Tensor], message: str) -> None:
    def broken(occupied: Topology, quotas: object, generator: object) -> Tensor:
        return change(at_random(occupied, quotas, generator))  # type: ignore[arg-type]

    method = SELFISH.replace(name="broken", pool="matrix", growth=Growth("broken", broken, random=True))
    topology = Topology.random((8, 10), GateLayout.single(8), 30, seeded(0))
    weights = ActiveWeights(topology, torch.randn(30), None, None)
    with pytest.raises(ValueError, match=message):
        list(rewire(method, [lambda: weights], 0.5, seeded(0)))
