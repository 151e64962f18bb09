from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from topology_cases import seeded, seeds

from selfish_rnn.topology.sampling import SMALL_POPULATION, bernoulli_positions, false_indices, merge, sample


@given(st.one_of(st.integers(0, 60), st.integers(SMALL_POPULATION - 1, 5 * SMALL_POPULATION)), st.data())
def test_sample_is_distinct_sorted_and_in_range(population: int, data: st.DataObject) -> None:
    count, seed = data.draw(st.integers(0, population)), data.draw(seeds)
    drawn = sample(population, count, seeded(seed))
    assert len(drawn) == count
    assert drawn.tolist() == sorted(set(drawn.tolist()))
    assert drawn.dtype == torch.int64
    assert all(0 <= number < population for number in drawn.tolist())
    assert torch.equal(drawn, sample(population, count, seeded(seed)))


@pytest.mark.parametrize("count", [2, 4])
def test_every_sample_is_equally_likely(count: int) -> None:
    """All 15 subsets of 2 (and of 4) out of 6; the statistic exceeds 36 once in a thousand seeds."""
    generator = seeded(1)
    rounds = 6000
    seen = dict.fromkeys(itertools.combinations(range(6), count), 0)
    for _ in range(rounds):
        seen[tuple(sample(6, count, generator).tolist())] += 1
    expected = rounds / len(seen)
    assert sum((observed - expected) ** 2 / expected for observed in seen.values()) < 36


def test_every_pair_of_a_large_population_is_equally_likely() -> None:
    """Pairs by the quarters they lie in: 10 kinds; the statistic exceeds 28 once in a thousand seeds."""
    population, rounds = 4 * SMALL_POPULATION, 4000
    quarter = population // 4
    same, differing = math.comb(quarter, 2), quarter**2
    generator = seeded(3)
    seen = dict.fromkeys(itertools.combinations_with_replacement(range(4), 2), 0)
    for _ in range(rounds):
        first, second = (sample(population, 2, generator) // quarter).tolist()
        seen[first, second] += 1
    statistic = 0.0
    for (first, second), observed in seen.items():
        expected = rounds * (same if first == second else differing) / math.comb(population, 2)
        statistic += (observed - expected) ** 2 / expected
    assert statistic < 28


@pytest.mark.parametrize("share", [0.02, 0.3, 0.5, 0.8])
def test_every_number_and_neighbour_of_a_large_population_is_equally_likely(share: float) -> None:
    """Hits of each number: chi-square; pairs of neighbours, ``c (c - 1) / n`` of them expected: within 4 deviations."""
    population, rounds = 2 * SMALL_POPULATION, 400
    count = round(share * population)
    generator = seeded(4)
    hits, neighbours = torch.zeros(population), []
    for _ in range(rounds):
        drawn = sample(population, count, generator)
        hits[drawn] += 1
        neighbours.append(float((drawn.diff() == 1).sum()))
    expected = rounds * share
    statistic = float(((hits - expected) ** 2).sum() / (expected * (1 - share)))
    assert abs(statistic - population) < 4 * math.sqrt(2 * population)
    found = torch.tensor(neighbours)
    assert abs(found.mean() - count * (count - 1) / population) < 4 * found.std() / math.sqrt(rounds)


def test_a_sample_costs_what_is_drawn_not_what_it_is_drawn_from() -> None:
    drawn = sample(10**15, 100, seeded(0))
    assert len(drawn.unique()) == 100
    assert drawn.max() < 10**15


@pytest.mark.parametrize("probability", [0.001, 0.3, 0.999, 1.0])
def test_bernoulli_positions_are_sorted_distinct_and_as_many_as_to_be_expected(probability: float) -> None:
    """Within 4 standard deviations in all, and those of two neighbours as independent ones."""
    drawn = bernoulli_positions(1_000_000, probability, seeded(5))
    gaps = drawn.diff()
    assert drawn[0] >= 0
    assert drawn[-1] < 1_000_000
    assert (gaps > 0).all()
    deviation = math.sqrt(1_000_000 * probability * (1 - probability))
    assert abs(len(drawn) - 1_000_000 * probability) <= 4 * deviation
    assert abs(int((gaps == 1).sum()) - len(gaps) * probability) <= 5 * math.sqrt(len(drawn) * (1 - probability))


@pytest.mark.parametrize("count", [10_000, 90_000])
def test_large_samples_are_spread_evenly(count: int) -> None:
    """Ten slices of a range that is sampled many at a time; 28 is exceeded once in a thousand seeds."""
    observed = torch.histc(sample(100_000, count, seeded(2)).float(), bins=10, min=0, max=100_000)
    assert ((observed - count / 10) ** 2 / (count / 10)).sum() < 28


@given(st.sets(st.integers(0, 10**12)), st.data())
def test_merge_equals_sort(numbers: set[int], data: st.DataObject) -> None:
    some = data.draw(st.sets(st.sampled_from(sorted(numbers)))) if numbers else set()
    first, second = (torch.tensor(sorted(part), dtype=torch.int64) for part in (some, numbers - some))
    assert merge(first, second).tolist() == sorted(numbers)
    assert merge(first, first).tolist() == sorted([*some, *some])


@given(st.lists(st.booleans()))
def test_false_indices(marks: list[bool]) -> None:
    places = false_indices(torch.tensor(marks, dtype=torch.bool))
    assert places.tolist() == [place for place, mark in enumerate(marks) if not mark]
