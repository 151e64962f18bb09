from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from topology_cases import golden_cases, positions, seeded, seeds, topologies

from selfish_rnn.topology import GateLayout, Topology
from selfish_rnn.topology.growth import at_random, by_score
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
