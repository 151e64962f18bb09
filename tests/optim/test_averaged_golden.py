"""SNT-ASGD against the traces of the averaging arithmetic, in float64."""

from __future__ import annotations

import pytest
import torch
from optim_cases import Arrays, assert_golden, golden
from torch import Tensor, nn

from selfish_rnn.optim import SNTASGD
from selfish_rnn.sparsifier.optimizer_state import reset_state

MASKED = (0, 2)


def replay(trace: Arrays, rates: list[float]) -> tuple[list[list[Tensor]], list[list[Tensor]], list[list[Tensor]]]:
    """Iterates, averages and ages after every step, each by step and then parameter.

    What a sparsifier does is done here by hand: gradients and weights are masked, what changes is forgotten.
    """
    parameters = [nn.Parameter(trace[f"p{i}_init"].clone()) for i in range(4)]
    optimizer = SNTASGD(parameters, lr=float(trace["lr"]), weight_decay=float(trace["weight_decay"]))
    optimizer.start_averaging()
    iterates, averages, ages = [], [], []
    masks = {i: trace[f"mask{i}"][0] for i in MASKED}
    for step, lr in enumerate(rates):
        optimizer.param_groups[0]["lr"] = lr
        for i in MASKED:
            mask = trace[f"mask{i}"][step]
            reset_state(optimizer, parameters[i], (mask != masks[i]).flatten().nonzero().flatten())
            parameters[i].data.mul_(mask)
            masks[i] = mask
        for i, parameter in enumerate(parameters):
            parameter.grad = trace[f"grad{i}"][step] * masks.get(i, 1)
        optimizer.step()
        iterates.append([parameter.detach().clone() for parameter in parameters])
        averages.append([optimizer.state[parameter]["average"].clone() for parameter in parameters])
        ages.append([optimizer.state[parameter]["age"].clone() for parameter in parameters])
    return iterates, averages, ages


@pytest.mark.parametrize("name", ["sparse_asgd_const", "sparse_asgd_wd"])
def test_iterates_averages_and_ages(name: str) -> None:
    trace = golden(name)
    steps = len(trace["grad0"])
    iterates, averages, ages = replay(trace, [float(trace["lr"])] * steps)
    for i in range(4):
        assert_golden(torch.stack([step[i] for step in iterates]), trace[f"param{i}"])
        assert_golden(torch.stack([step[i] for step in averages]), trace[f"avg_formula{i}"])
    for i in MASKED:
        active = trace[f"mask{i}"].bool()
        # Outside the mask our age goes on counting (over zeros); it starts anew when the weight grows.
        assert torch.equal(torch.stack([step[i] for step in ages])[active], trace[f"age{i}"][active].int())


def test_varying_learning_rate() -> None:
    """Our reading is the current rate; the golden iterates show an accident of the released code, so the averages
    are checked against our own iterates, with the golden ages."""
    trace = golden("sparse_asgd_varlr")
    rates = trace["lr_per_step"].tolist()
    iterates, averages, _ = replay(trace, rates)
    first = trace["p3_init"] - rates[0] * trace["grad3"][0]
    assert_golden(iterates[1][3], first - rates[1] * trace["grad3"][1])
    for i in MASKED:
        history = torch.stack([step[i] for step in iterates])
        for step in range(len(rates)):
            ages = trace[f"age{i}"][step]
            for position in ages.nonzero().tolist():
                age = int(ages[tuple(position)])
                mean = history[(slice(step + 1 - age, step + 1), *position)].mean()
                assert averages[step][i][tuple(position)] == pytest.approx(float(mean), abs=1e-12)
