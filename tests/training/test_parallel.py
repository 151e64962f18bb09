"""Two ranks train as one process does with twice the sub-batches, and any number of them can go on."""

from __future__ import annotations

import math
import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from parallel_cases import BASE, CASES, finished, runnable, saved, shared_evaluation, work
from torch import distributed, multiprocessing

from selfish_rnn.errors import UserError
from selfish_rnn.models import State
from selfish_rnn.training.ranks import BatchParts, Ranks, agree_on_name
from tiny_runs import tiny_experiment

Outcomes = list[dict[str, Any]]

ROUNDING = 1e-5
"""Of the losses; two epochs of updates make more of a rounding error than one sum does."""


@pytest.fixture(scope="module")
def outcomes(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What both ranks found, in all cases one after the other."""
    context = multiprocessing.get_context("spawn")
    cases = {name: changes for name, changes in CASES.items() if runnable(texts, changes)}
    state = pickle.dumps(saved(texts, sub_batches=2, **BASE))
    with context.Manager() as manager:
        found = manager.dict()
        arguments = (str(tmp_path_factory.mktemp("store") / "store"), texts, state, cases, found)
        processes = [context.Process(target=work, args=(rank, *arguments)) for rank in range(2)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(300)
        return {key: pickle.loads(value) if isinstance(value, bytes) else value for key, value in found.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_two_ranks_train_as_one_does_with_twice_the_sub_batches(texts: Path, outcomes: Any, name: str) -> None:
    if name not in outcomes[0]:
        pytest.skip("the packed engine does not do this method")
    assert outcomes[0][name] == outcomes[1][name]
    alone, together = finished(texts, sub_batches=2, **CASES[name]), outcomes[0][name]
    assert together["losses"] == pytest.approx(alone["losses"], rel=ROUNDING)
    assert together["weights"] == together["budget"] == alone["budget"]
    assert together["masks"] == alone["masks"]


@pytest.mark.slow
def test_one_rank_goes_on_with_what_two_have_left(texts: Path, outcomes: Any) -> None:
    continued, undisturbed = finished(texts, outcomes[0]["saved"], **BASE), finished(texts, sub_batches=2, **BASE)
    assert continued["losses"] == pytest.approx(undisturbed["losses"][2:], rel=ROUNDING)


@pytest.mark.slow
def test_two_ranks_go_on_with_what_one_has_left(texts: Path, outcomes: Any) -> None:
    undisturbed = finished(texts, sub_batches=2, **BASE)
    assert outcomes[0]["continued"] == outcomes[1]["continued"]
    assert outcomes[0]["continued"]["losses"] == pytest.approx(undisturbed["losses"][2:], rel=ROUNDING)


@pytest.mark.slow
def test_ranks_share_an_evaluation_also_where_there_are_fewer_columns_than_ranks(outcomes: Any) -> None:
    assert outcomes[0]["evaluations"] == outcomes[1]["evaluations"]
    assert outcomes[0]["evaluations"] == pytest.approx([shared_evaluation(columns) for columns in (1, 2, 3)], rel=1e-6)


@pytest.mark.slow
def test_what_the_first_rank_makes_or_refuses_the_others_get_too(outcomes: Any) -> None:
    made, refused = zip(outcomes[0]["told"], outcomes[1]["told"], strict=True)
    assert made[0] == made[1]
    assert made[0].startswith("made by")
    assert refused == (("UserError", "no such corpus"), ("ReportedByRankZero", "no such corpus"))


@pytest.mark.slow
def test_a_flag_of_any_rank_is_one_of_all(outcomes: Any) -> None:
    assert outcomes[0]["flags"] == outcomes[1]["flags"] == [False, True, True]


@pytest.mark.slow
def test_gradients_of_all_ranks_are_added_up_whatever_their_shapes(outcomes: Any) -> None:
    for rank in (0, 1):
        assert [gradient.tolist() for gradient in outcomes[rank]["sums"]] == [
            [3.0] * 5,
            [[1.0, 5.0, 9.0], [3.0, 7.0, 11.0]],
        ]


@pytest.mark.slow
def test_ranks_stop_together_where_one_has_a_weight_that_is_no_number(outcomes: Any) -> None:
    for rank in range(2):
        assert outcomes[rank]["spoilt"] == "decoder.bias contains NaN or infinity after update 4"


@pytest.mark.slow
def test_a_rank_that_vanishes_is_one_clear_error(outcomes: Any) -> None:
    assert outcomes["lost"].startswith("a rank that trains together with rank 0 is gone (")
    assert "\n" not in outcomes["lost"]
    assert "/gloo/" not in outcomes["lost"]


def test_ranks_that_are_started_again_take_no_notice_of_those_before() -> None:
    store, seconds = distributed.HashStore(), timedelta(seconds=30)

    def start(*order: int) -> set[str]:
        """The names that ranks agree on, of which each one comes a little later."""
        with ThreadPoolExecutor(len(order)) as pool:
            found = []
            for rank in order:
                found.append(pool.submit(agree_on_name, store, rank, len(order), seconds))
                time.sleep(0.05)
            return {each.result() for each in found}

    names = [start(0, 1, 2), start(2, 1, 0), start(1, 0)]
    assert [len(name) for name in names] == [1, 1, 1]
    assert len(set.union(*names)) == 3


def test_a_rank_that_does_not_come_is_not_waited_for_without_end() -> None:
    with pytest.raises(RuntimeError, match="not all ranks joined in time"):
        agree_on_name(distributed.HashStore(), 1, 2, timedelta(seconds=0.05))


# Parts of a batch, without processes

COLUMNS = 12


def states(columns: int) -> State:
    return torch.zeros(2, columns, 3), torch.zeros(columns, 4)


def parts_of(texts: Path, rank: int, size: int, sub_batches: int = 1) -> BatchParts:
    experiment = tiny_experiment(texts, batch_size=COLUMNS, sub_batches=sub_batches)
    return BatchParts(experiment, Ranks(rank, size), states)


@given(saved_parts=st.sampled_from([1, 2, 3, 4, 6]), ranks=st.sampled_from([1, 2, 3, 4, 6, 12]))
def test_columns_and_states_are_divided_over_any_number_of_ranks(texts: Path, saved_parts: int, ranks: int) -> None:
    whole = torch.arange(2.0 * COLUMNS * 3).view(2, COLUMNS, 3), torch.arange(COLUMNS * 4.0).view(COLUMNS, 4)
    hidden = [[tensor.chunk(saved_parts, -2)[index] for tensor in whole] for index in range(saved_parts)]
    random = parts_of(texts, 0, 1, saved_parts).state_dict()["random"]
    found, columns, streams = [], [], set()
    for rank in range(ranks):
        parts = parts_of(texts, rank, ranks)
        parts.load_state_dict({"hidden": hidden, "random": random})
        assert parts.count % math.lcm(ranks, saved_parts) == 0
        found += [part.hidden for part in parts.mine]
        columns += [column for part in parts.mine for column in range(COLUMNS)[part.columns]]
        streams |= {part.random["cpu"].numpy().tobytes() for part in parts.mine}
    assert columns == list(range(COLUMNS))
    assert len(streams) == parts.count, "each part draws numbers of its own"
    for place, tensor in enumerate(whole):
        assert torch.equal(torch.cat([hidden[place] for hidden in found], -2), tensor)


@given(count=st.integers(0, 50), size=st.integers(1, 9))
def test_shares_are_all_there_is_each_once_and_as_equal_as_can_be(count: int, size: int) -> None:
    shares = [range(count)[Ranks(rank, size).share(count)] for rank in range(size)]
    assert [item for share in shares for item in share] == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_a_batch_that_ranks_cannot_share_evenly_is_refused(texts: Path) -> None:
    with pytest.raises(UserError, match="batch_size 12 cannot be divided into 10 equal parts, 2 for each of 5 ranks"):
        parts_of(texts, 0, 5, sub_batches=2).check_even()


def test_parts_draw_what_they_draw_whoever_computes_them(texts: Path) -> None:
    def drawn(parts: BatchParts) -> list[float]:
        numbers = []
        for _ in range(2):
            for part in parts.mine:
                with part.drawing():
                    numbers.append(float(torch.rand(())))
        return numbers

    torch.manual_seed(1)
    alone = drawn(parts_of(texts, 0, 1, sub_batches=2))
    torch.manual_seed(1)
    together = [drawn(parts_of(texts, rank, 2)) for rank in range(2)]
    assert alone == [together[0][0], together[1][0], together[0][1], together[1][1]]
