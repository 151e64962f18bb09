"""The history of a run's topologies: what goes in comes out, whatever happens to the end of the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from selfish_rnn.errors import UserError
from selfish_rnn.runs.topologies import (
    MARK,
    Moment,
    TopologyHistory,
    TopologyRecord,
    decode_subset,
    encode_subset,
    places_of_ranks,
    ranks_of_places,
)
from selfish_rnn.topology import GateLayout, Rewiring, Topology
from selfish_rnn.topology.sampling import sample

SHAPES = {"rnn.weight_ih_l0": (12, 5), "decoder.weight": (30, 3)}


def random_topologies(generator: torch.Generator, density: float = 0.4) -> dict[str, Topology]:
    return {
        name: Topology.random(shape, GateLayout.even(("a", "b", "c"), shape[0]), round(density * 60), generator)
        for name, shape in SHAPES.items()
    }


def random_rewiring(before: Topology, removed: int, grown: int, generator: torch.Generator) -> Rewiring:
    marks = torch.zeros(before.count, dtype=torch.bool)
    marks[sample(before.count, removed, generator)] = True
    kept = before.without(marks).positions.numpy()
    ranks = sample(before.size - len(kept), grown, generator).numpy()
    return Rewiring(before, marks, torch.from_numpy(places_of_ranks(ranks, kept)))


def fill(history: TopologyHistory, rewirings: int, seed: int = 0) -> list[dict[str, Topology]]:
    """A start and so many rewirings, ten updates apart; what there was at each moment."""
    generator = torch.Generator().manual_seed(seed)
    states = [random_topologies(generator)]
    history.start(states[0])
    for number in range(1, rewirings + 1):
        done = {name: random_rewiring(topology, 9, 8, generator) for name, topology in states[-1].items()}
        history.append(10 * number, number, done)
        states.append({name: rewiring.topology for name, rewiring in done.items()})
    return states


def positions(topologies: dict[str, Topology]) -> dict[str, list[int]]:
    return {name: topology.positions.tolist() for name, topology in topologies.items()}


@given(st.data(), st.integers(1, 2**62))
def test_a_subset_comes_back(data: st.DataObject, population: int) -> None:
    chosen = data.draw(st.sets(st.integers(0, population - 1), max_size=min(population // 2, 60)))
    numbers = np.array(sorted(chosen), dtype=np.int64)
    assert decode_subset(encode_subset(numbers, population), population).tolist() == sorted(chosen)


@given(st.integers(1, 300), st.floats(0, 1), st.integers(0, 1000))
def test_a_subset_of_any_share_comes_back(population: int, share: float, seed: int) -> None:
    numbers = sample(population, round(share * population), torch.Generator().manual_seed(seed)).numpy()
    assert decode_subset(encode_subset(numbers, population), population).tolist() == numbers.tolist()


def test_a_random_subset_takes_hardly_more_than_its_entropy() -> None:
    for share, excess in ((0.03, 1.1), (0.3, 1.1), (0.7, 1.1), (0.97, 1.4)):
        numbers = sample(400_000, round(share * 400_000), torch.Generator().manual_seed(1)).numpy()
        entropy = -share * np.log2(share) - (1 - share) * np.log2(1 - share)
        assert len(encode_subset(numbers, 400_000)) < excess * 400_000 * entropy / 8 + 200


@given(st.sets(st.integers(0, 99)), st.sets(st.integers(0, 99)))
def test_ranks_among_free_places_come_back(taken: set[int], wanted: set[int]) -> None:
    occupied = np.array(sorted(taken), dtype=np.int64)
    places = np.array(sorted(wanted - taken), dtype=np.int64)
    ranks = ranks_of_places(places, occupied)
    free = [place for place in range(100) if place not in taken]
    assert [free[rank] for rank in ranks] == places.tolist()
    assert places_of_ranks(ranks, occupied).tolist() == places.tolist()


@pytest.mark.slow
@given(st.integers(0, 6), st.integers(0, 1000))
def test_every_moment_comes_back(tmp_path_factory: pytest.TempPathFactory, rewirings: int, seed: int) -> None:
    history = TopologyHistory(tmp_path_factory.mktemp("history") / "topologies.bin")
    states = fill(history, rewirings, seed)
    assert history.moments() == [Moment(10 * number, number) for number in range(rewirings + 1)]
    assert [positions(dict(record.topologies)) for record in history] == [positions(state) for state in states]
    for number, state in enumerate(states):
        assert positions(history.topologies(epoch=number)) == positions(state)
        assert positions(history.topologies(step=10 * number + 9)) == positions(state)
    counts = [{name: topology.count for name, topology in state.items()} for state in states]
    assert list(history.counts()) == list(zip(history.moments(), counts, strict=True))
    last = history.topology("decoder.weight")
    assert (last.shape, last.gates) == (SHAPES["decoder.weight"], states[-1]["decoder.weight"].gates)


def test_a_record_says_what_went_and_what_came(tmp_path: Path) -> None:
    history = TopologyHistory(tmp_path / "topologies.bin")
    before = Topology((2, 3), GateLayout.single(2), torch.tensor([0, 2, 4]))
    history.start({"weight": before})
    # Position 2 goes and comes again.
    history.append(7, 1, {"weight": Rewiring(before, torch.tensor([False, True, True]), torch.tensor([1, 2]))})
    whole, rewired = history
    assert not whole.removed
    assert rewired.removed["weight"].tolist() == [2, 4]
    assert rewired.grown["weight"].tolist() == [1, 2]
    assert rewired.topologies["weight"].positions.tolist() == [0, 1, 2]


def test_positions_beyond_32_bits(tmp_path: Path) -> None:
    shape = (2**20, 2**20)
    before = Topology(shape, GateLayout.single(shape[0]), torch.tensor([5, 2**31 + 1, 2**33, 2**39 + 17]))
    rewiring = Rewiring(before, torch.tensor([False, True, False, True]), torch.tensor([2**32, 2**40 - 1]))
    history = TopologyHistory(tmp_path / "topologies.bin")
    history.start({"weight": before})
    history.append(1, 1, {"weight": rewiring})
    assert history.topology("weight", step=0).positions.tolist() == before.positions.tolist()
    assert history.topology("weight").positions.tolist() == [5, 2**32, 2**33, 2**40 - 1]


@pytest.mark.slow
@given(st.integers(1, 4), st.data())
def test_whatever_a_crash_cuts_off_is_only_the_last_record(
    tmp_path_factory: pytest.TempPathFactory, rewirings: int, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("history") / "topologies.bin"
    states = fill(TopologyHistory(path), rewirings - 1)
    whole = path.stat().st_size
    states.append(add_one(TopologyHistory(path), states[-1], rewirings))
    content = path.read_bytes()
    left = data.draw(st.integers(whole, len(content) - 1), label="bytes left")
    zeros = data.draw(st.integers(0, 40), label="zeros after them")
    path.write_bytes(content[:left] + bytes(zeros))

    history = TopologyHistory(path)
    assert positions(history.topologies()) == positions(states[rewirings - 1])
    again = add_one(history, states[rewirings - 1], rewirings)
    assert len(history) == rewirings + 1
    assert positions(history.topologies()) == positions(again)
    assert path.read_bytes() == content


def add_one(history: TopologyHistory, before: dict[str, Topology], number: int) -> dict[str, Topology]:
    generator = torch.Generator().manual_seed(99)
    done = {name: random_rewiring(topology, 3, 3, generator) for name, topology in before.items()}
    history.append(10 * number, number, done)
    return {name: rewiring.topology for name, rewiring in done.items()}


@pytest.mark.parametrize("left", range(len(MARK) + 1))
def test_a_file_torn_in_its_first_bytes_starts_anew(tmp_path: Path, left: int) -> None:
    path = tmp_path / "topologies.bin"
    path.write_bytes(MARK[:left])
    history = TopologyHistory(path)
    assert len(history) == 0
    states = fill(history, 1)
    assert positions(history.topologies()) == positions(states[-1])


@pytest.mark.parametrize("keep", range(5))
def test_truncation_drops_what_a_resumed_run_makes_again(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "topologies.bin"
    states = fill(TopologyHistory(path), 4)
    content = path.read_bytes()
    path.write_bytes(content + b"torn")
    history = TopologyHistory(path)
    assert history.truncate_after(10 * keep + 5) == 4 - keep
    assert positions(history.topologies()) == positions(states[keep])
    for number in range(keep, 4):
        after = {}
        for name, topology in states[number].items():
            record = states[number + 1][name]
            marks = ~torch.isin(topology.positions, record.positions)
            grown = record.positions[~torch.isin(record.positions, topology.positions)]
            after[name] = Rewiring(topology, marks, grown)
        history.append(10 * number + 10, number + 1, after)
    assert [positions(dict(record.topologies)) for record in history] == [positions(state) for state in states]


def test_damage_before_the_end_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "topologies.bin"
    fill(TopologyHistory(path), 3)
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match="damaged at byte 8, and complete records follow"):
        list(TopologyHistory(path))
    with pytest.raises(UserError, match="damaged"):
        add_one(TopologyHistory(path), random_topologies(torch.Generator().manual_seed(0)), 4)
    assert path.read_bytes() == bytes(content)


def test_another_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "topologies.bin"
    path.write_text("something else entirely")
    with pytest.raises(UserError, match="is not a history of topologies"):
        fill(TopologyHistory(path), 1)
    assert path.read_text() == "something else entirely"


def test_a_recording_that_fails_or_stays_empty_leaves_nothing(tmp_path: Path) -> None:
    history = TopologyHistory(tmp_path / "topologies.bin")
    with history.recording(1, 1):
        pass
    assert not history.path.exists()
    states = fill(history, 0)
    with pytest.raises(AttributeError), history.recording(1, 1) as recording:
        recording.add("decoder.weight", states[0]["decoder.weight"])  # type: ignore[arg-type]
    assert len(history) == 1


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    history = TopologyHistory(tmp_path / "topologies.bin")
    with pytest.raises(ValueError, match="did not save its topologies"):
        history.topologies()
    fill(history, 1)
    with pytest.raises(ValueError, match=r"no matrix 'rnn'; known are rnn\.weight_ih_l0"):
        history.topology("rnn")
    with pytest.raises(ValueError, match="no record that early"):
        history.topologies(step=-1)


def test_going_on_writes_only_what_is_missing(tmp_path: Path) -> None:
    history = TopologyHistory(tmp_path / "topologies.bin")
    states = fill(history, 3)
    content = history.path.read_bytes()
    history.continue_from(states[3], step=30, epoch=3)
    assert history.path.read_bytes() == content
    history.continue_from(states[2], step=20, epoch=2)
    assert len(history) == 3
    # The machine crashed, and the record of a rewiring that the checkpoint knows is lost.
    history.continue_from(states[3], step=30, epoch=3)
    assert history.moments()[-1] == Moment(30, 3)
    assert positions(history.topologies()) == positions(states[3])
    fresh = TopologyHistory(tmp_path / "fresh.bin")
    fresh.continue_from(states[0], step=0, epoch=0)
    assert positions(fresh.topologies()) == positions(states[0])


def test_records_of_another_past_are_noticed(tmp_path: Path) -> None:
    history = TopologyHistory(tmp_path / "topologies.bin")
    fill(history, 0)
    other = random_topologies(torch.Generator().manual_seed(8))
    done = {name: random_rewiring(topology, 2, 2, torch.Generator()) for name, topology in other.items()}
    history.append(20, 2, done)
    with pytest.raises(UserError, match="does not fit the records before it"):
        list(history)


def test_a_record_can_be_a_whole_topology_again(tmp_path: Path) -> None:
    history = TopologyHistory(tmp_path / "topologies.bin")
    states = fill(history, 2)
    other = random_topologies(torch.Generator().manual_seed(7), density=0.9)
    history.start(other, step=25, epoch=3)
    records: list[TopologyRecord] = list(history)
    assert positions(dict(records[-1].topologies)) == positions(other)
    assert positions(dict(records[-2].topologies)) == positions(states[-1])
