from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim import Adadelta, Adagrad, AdamW, Optimizer, Rprop

from selfish_rnn.optim import NTASGD, SNTASGD
from selfish_rnn.optimizer_state import forget


def stepped(optimizer: Optimizer, *parameters: nn.Parameter) -> None:
    for _ in range(3):
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()


def test_only_the_given_positions_of_the_given_parameter_start_afresh() -> None:
    one, other = nn.Parameter(torch.ones(3, 4)), nn.Parameter(torch.ones(3, 4))
    optimizer = AdamW([one, other], amsgrad=True)
    stepped(optimizer, one, other)
    forget(optimizer, one, torch.tensor([1, 6]))
    for key in ("exp_avg", "exp_avg_sq", "max_exp_avg_sq"):
        assert (optimizer.state[one][key].flatten() == 0).nonzero().flatten().tolist() == [1, 6]
        assert optimizer.state[other][key].all()
    assert optimizer.state[one]["step"] == 3  # counts steps of the whole tensor


def test_state_starts_at_what_the_optimizer_starts_it_with() -> None:
    parameter = nn.Parameter(torch.ones(2, 2))
    everything = torch.arange(4)
    adagrad = Adagrad([parameter], initial_accumulator_value=0.25)
    stepped(adagrad, parameter)
    forget(adagrad, parameter, everything)
    assert adagrad.state[parameter]["sum"].unique().tolist() == [0.25]
    rprop = Rprop([{"params": [nn.Parameter(torch.ones(1))]}, {"params": [parameter], "lr": 0.5}], lr=9.0)
    stepped(rprop, parameter)
    forget(rprop, parameter, everything)
    assert rprop.state[parameter]["step_size"].unique().tolist() == [0.5]
    assert rprop.state[parameter]["prev"].unique().tolist() == [0.0]


@pytest.mark.parametrize("kind", [SNTASGD, NTASGD])
def test_averages_and_ages(kind: type[SNTASGD] | type[NTASGD]) -> None:
    """The common age of NT-ASGD is not of one weight and stays."""
    parameter = nn.Parameter(torch.ones(2, 2))
    optimizer = kind([parameter], lr=0.1)
    optimizer.start_averaging()
    stepped(optimizer, parameter)
    forget(optimizer, parameter, torch.tensor([3]))
    state = optimizer.state[parameter]
    assert state["average"][1, 1] == 0
    assert state["age"].flatten().tolist() == ([3, 3, 3, 0] if kind is SNTASGD else [3])


def test_a_parameter_that_is_not_contiguous_in_memory() -> None:
    """Positions are row-major in the matrix, however it lies in memory."""
    parameter = nn.Parameter(torch.ones(4, 3).t())
    optimizer = Adadelta([parameter])
    stepped(optimizer, parameter)
    forget(optimizer, parameter, torch.tensor([1]))
    assert (optimizer.state[parameter]["square_avg"] == 0).nonzero().tolist() == [[0, 1]]


def test_nothing_remembered_is_nothing_to_forget() -> None:
    parameter = nn.Parameter(torch.ones(2, 2))
    optimizer = AdamW([parameter])
    forget(optimizer, parameter, torch.tensor([0]))
    assert not optimizer.state
