from __future__ import annotations

import warnings
from collections.abc import Iterable

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adadelta, Adagrad, AdamW, Optimizer, Rprop

from selfish_rnn import Sparsifier, engine
from selfish_rnn.optim import NTASGD, SNTASGD
from selfish_rnn.sparsifier.optimizer_state import move_state, reset_state


def stepped(optimizer: Optimizer, *parameters: nn.Parameter) -> None:
    for _ in range(3):
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()


def test_only_the_given_positions_of_the_given_parameter_start_afresh() -> None:
    one, other = nn.Parameter(torch.ones(3, 4)), nn.Parameter(torch.ones(3, 4))
    optimizer = AdamW([one, other], amsgrad=True)
    stepped(optimizer, one, other)
    reset_state(optimizer, one, torch.tensor([1, 6]))
    for key in ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"):
        assert (optimizer.state[one][key].flatten() == 0).nonzero().flatten().tolist() == [1, 6]
        assert optimizer.state[other][key].all()
    assert optimizer.state[one]["step"] == 3  # counts steps of the whole tensor


def test_state_starts_at_what_the_optimizer_starts_it_with() -> None:
    parameter = nn.Parameter(torch.ones(2, 2))
    everything = torch.arange(4)
    adagrad = Adagrad([parameter], initial_accumulator_value=0.25)
    stepped(adagrad, parameter)
    reset_state(adagrad, parameter, everything)
    assert adagrad.state[parameter]["sum"].unique().tolist() == [0.25]
    rprop = Rprop([{"params": [nn.Parameter(torch.ones(1))]}, {"params": [parameter], "lr": 0.5}], lr=9.0)
    stepped(rprop, parameter)
    reset_state(rprop, parameter, everything)
    assert rprop.state[parameter]["step_size"].unique().tolist() == [0.5]
    assert rprop.state[parameter]["prev"].unique().tolist() == [0.0]


def test_second_moments_start_at_the_mean_of_those_that_stay() -> None:
    parameter = nn.Parameter(torch.ones(2, 3))
    optimizer = AdamW([parameter], amsgrad=True)
    stepped(optimizer, parameter)
    before = {key: tensor.clone().flatten() for key, tensor in optimizer.state[parameter].items()}
    reset_state(optimizer, parameter, torch.tensor([1, 4]), survivors=torch.tensor([0, 2, 5]))
    for key in ("exp_avg_sq", "max_exp_avg_sq"):
        after = optimizer.state[parameter][key].flatten()
        assert after[[1, 4]].tolist() == pytest.approx([float(before[key][[0, 2, 5]].mean())] * 2)
        assert torch.equal(after[[0, 2, 3, 5]], before[key][[0, 2, 3, 5]])
    assert optimizer.state[parameter]["exp_avg"].flatten()[[1, 4]].tolist() == [0, 0]


def test_where_no_weight_stays_second_moments_start_as_the_optimizer_starts_them() -> None:
    parameter = nn.Parameter(torch.ones(2))
    optimizer = Adagrad([parameter], initial_accumulator_value=0.25)
    stepped(optimizer, parameter)
    reset_state(optimizer, parameter, torch.arange(2), survivors=torch.empty(0, dtype=torch.int64))
    assert optimizer.state[parameter]["sum"].tolist() == [0.25, 0.25]
    stepped(optimizer, parameter)
    move_state(optimizer, parameter, torch.tensor([0, 0]), torch.arange(2))
    assert optimizer.state[parameter]["sum"].tolist() == [0.25, 0.25]


@pytest.mark.parametrize("kind", [SNTASGD, NTASGD])
def test_averages_and_ages(kind: type[SNTASGD] | type[NTASGD]) -> None:
    """The common age of NT-ASGD is not of one weight and stays."""
    parameter = nn.Parameter(torch.ones(2, 2))
    optimizer = kind([parameter], lr=0.1)
    optimizer.start_averaging()
    stepped(optimizer, parameter)
    reset_state(optimizer, parameter, torch.tensor([3]))
    state = optimizer.state[parameter]
    assert state["average"][1, 1] == 0
    assert state["age"].flatten().tolist() == ([3, 3, 3, 0] if kind is SNTASGD else [3])


def test_a_parameter_that_is_not_contiguous_in_memory() -> None:
    """Positions are row-major in the matrix, however it lies in memory."""
    parameter = nn.Parameter(torch.ones(4, 3).t())
    optimizer = Adadelta([parameter])
    stepped(optimizer, parameter)
    reset_state(optimizer, parameter, torch.tensor([1]))
    assert (optimizer.state[parameter]["square_avg"] == 0).nonzero().tolist() == [[0, 1]]


class Remembering(SGD):
    """Keeps copies of the weights as Prodigy does: flat, and only every ``slice_p``-th; and statistics of rows."""

    def __init__(self, parameters: Iterable[nn.Parameter], slice_p: int = 1) -> None:
        super().__init__(parameters, lr=0.1, momentum=0.9)
        self.slice_p = slice_p

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        super().step()
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            state.setdefault("p0", parameter.detach().flatten()[:: self.slice_p].clone())
            state["rows"] = parameter.detach().square().sum(-1)


def test_flat_state_is_of_single_weights() -> None:
    parameter = nn.Parameter(torch.arange(1.0, 13.0).view(3, 4))
    optimizer = Remembering([parameter])
    stepped(optimizer, parameter)
    optimizer.state[parameter]["codes"] = torch.full((3, 4), 3, dtype=torch.uint8)  # as 8-bit optimizers have them
    before = {key: value.clone() for key, value in optimizer.state[parameter].items()}
    with pytest.warns(UserWarning, match="keeps 'codes'"):
        reset_state(optimizer, parameter, torch.tensor([1, 6]), survivors=torch.tensor([0]))
    after = optimizer.state[parameter]
    assert (after["p0"] == 0).nonzero().flatten().tolist() == [1, 6]
    assert (after["momentum_buffer"].flatten() == 0).nonzero().flatten().tolist() == [1, 6]
    assert torch.equal(after["rows"], before["rows"])
    assert torch.equal(after["codes"], before["codes"])


@pytest.mark.skipif(not engine.available(), reason="the kernels are not built")
def test_both_engines_keep_flat_state_alike() -> None:
    results = []
    for packed in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(12, 9, bias=False)
        sparsifier = Sparsifier(model, sparsity=0.5, prune_rate=0.4, schedule="constant", seed=3)
        model = engine.pack(model) if packed else model
        optimizer = Remembering(model.parameters())
        for _ in range(2):
            model(torch.ones(2, 12)).square().sum().backward()
            optimizer.step()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            sparsifier.rewire()
        (weight,) = sparsifier.weights
        state = optimizer.state[weight.parameter]["p0"]
        results.append(weight.gather(state.view(weight.parameter.shape)))
    torch.testing.assert_close(*results)
    assert not results[0].all()  # grown weights


def test_state_without_a_known_layout_is_named_once() -> None:
    parameter, other = nn.Parameter(torch.ones(7, 20)), nn.Parameter(torch.ones(7, 20))
    optimizer = Remembering([parameter, other], slice_p=11)
    stepped(optimizer, parameter, other)
    before = optimizer.state[parameter]["p0"].clone()
    message = r"Remembering keeps 'p0' of shape \(13,\) for a weight of shape \(7, 20\): .*\(slice_p=1 for Prodigy"
    with pytest.warns(UserWarning, match=message):
        reset_state(optimizer, parameter, torch.tensor([11]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for each in (parameter, other):
            reset_state(optimizer, each, torch.tensor([11]))
    assert torch.equal(optimizer.state[parameter]["p0"], before)


def test_thinned_state_of_a_packed_weight_is_named() -> None:
    parameter = nn.Parameter(torch.ones(70))
    optimizer = Remembering([parameter], slice_p=11)
    stepped(optimizer, parameter)
    with pytest.warns(UserWarning, match=r"keeps 'p0' of shape \(7,\) for a weight of shape \(70,\)"):
        move_state(optimizer, parameter, torch.arange(70, dtype=torch.int32), torch.tensor([3]))


def test_nothing_remembered_is_nothing_to_forget() -> None:
    parameter = nn.Parameter(torch.ones(2, 2))
    optimizer = AdamW([parameter])
    reset_state(optimizer, parameter, torch.tensor([0]))
    assert not optimizer.state


def test_state_moves_with_the_weights() -> None:
    parameter, other = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4))
    optimizer = AdamW([parameter, other], amsgrad=True)
    stepped(optimizer, parameter, other)
    before = {key: tensor.clone() for key, tensor in optimizer.state[parameter].items()}
    untouched = {key: tensor.clone() for key, tensor in optimizer.state[other].items()}
    move_state(optimizer, parameter, torch.tensor([3, 0, 0, 1], dtype=torch.int32), torch.tensor([2]))
    after = optimizer.state[parameter]
    for key in ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"):
        expected = before[key][[3, 0, 0, 1]]
        expected[2] = 0 if key == "exp_avg" else before[key][[3, 0, 1]].mean()
        torch.testing.assert_close(after[key], expected)
        assert torch.equal(optimizer.state[other][key], untouched[key])
    assert after["step"] == 3


@pytest.mark.parametrize(("origin", "fresh"), [([2, 0], []), ([0, 1, 2, 0, 0], [3, 4]), ([0], [0]), ([], [])])
def test_state_of_more_or_fewer_weights(origin: list[int], fresh: list[int]) -> None:
    parameter = nn.Parameter(torch.ones(3))
    optimizer = SNTASGD([parameter], lr=0.1)
    optimizer.start_averaging()
    stepped(optimizer, parameter)
    average = optimizer.state[parameter]["average"].clone()
    move_state(optimizer, parameter, torch.tensor(origin, dtype=torch.int32), torch.tensor(fresh, dtype=torch.int64))
    kept = [place for place in range(len(origin)) if place not in fresh]
    state = optimizer.state[parameter]
    assert state["age"].dtype == torch.int32
    assert state["age"].tolist() == [3 if place in kept else 0 for place in range(len(origin))]
    assert state["average"].tolist() == [float(average[origin[p]]) if p in kept else 0.0 for p in range(len(origin))]


def test_fresh_state_of_the_first_weights() -> None:
    """There is nothing to take it from."""
    parameter = nn.Parameter(torch.ones(0))
    optimizer = Adagrad([parameter], initial_accumulator_value=0.25)
    move_state(optimizer, parameter, torch.zeros(2, dtype=torch.int32), torch.tensor([0, 1]))
    assert optimizer.state[parameter]["sum"].tolist() == [0.25, 0.25]


def test_an_optimizer_that_does_not_hold_the_parameter_has_nothing_to_carry() -> None:
    held, parameter = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = Adagrad([held])
    move_state(optimizer, parameter, torch.tensor([1]), torch.tensor([0]))
    assert list(optimizer.state) == [held]
