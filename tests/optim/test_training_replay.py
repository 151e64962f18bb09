"""Whole training traces replayed with the optimizer: dense, and sparse with the given masks."""

from __future__ import annotations

import torch
from optim_cases import GOLDEN_NAMES, Arrays, TraceModel, assert_golden, golden
from torch import Tensor, nn

from selfish_rnn.optim import NTASGD, SNTASGD
from selfish_rnn.sparsifier.optimizer_state import reset_state


def test_train_dense() -> None:
    trace = golden("train_dense")
    model = TraceModel(trace)
    optimizer = NTASGD(model.parameters(), lr=float(trace["lr"]), weight_decay=float(trace["weight_decay"]))
    state, losses, norms = None, [], []
    for window, targets in model.windows(trace["stream"], int(trace["bptt"])):
        optimizer.zero_grad()
        loss, state = model.loss(window, targets, state)
        loss.backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), float(trace["clip"])))
        optimizer.step()
        losses.append(loss.detach())
    assert_golden(torch.stack(losses), trace["step_losses"])
    assert_golden(torch.stack(norms), trace["grad_norms"])
    assert_golden(state[0], trace["hT"])
    assert_golden(state[1], trace["cT"])
    for name, parameter in model.named_parameters():
        assert_golden(parameter.detach(), trace[f"final_{GOLDEN_NAMES[name]}"])


class SelfishReplay:
    """The loop in miniature. The golden run clips by the norm of DENSE gradients, so masks come after clipping here."""

    def __init__(self, trace: Arrays) -> None:
        self.trace = trace
        self.model = TraceModel(trace)
        self.parameters = {GOLDEN_NAMES[name]: weight for name, weight in self.model.named_parameters()}
        self.masks = {name: trace[f"mask_init_{name}"] for name in self.parameters if f"mask_init_{name}" in trace}
        self.optimizer = SNTASGD(
            self.model.parameters(), lr=float(trace["lr"]), weight_decay=float(trace["weight_decay"])
        )
        self.losses: list[Tensor] = []
        self.iterates: list[dict[str, Tensor]] = []

    def train_epoch(self) -> None:
        state = None
        for window, targets in self.model.windows(self.trace["train_stream"], int(self.trace["bptt"])):
            self.optimizer.zero_grad()
            loss, state = self.model.loss(window, targets, state)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), float(self.trace["clip"]))
            for name, mask in self.masks.items():
                self.parameters[name].grad.mul_(mask)
            self.optimizer.step()
            self.losses.append(loss.detach())
            if self.optimizer.averaging:
                self.iterates.append({name: weight.detach().clone() for name, weight in self.parameters.items()})

    @torch.no_grad()
    def valid_loss(self) -> Tensor:
        state, total, stream = None, torch.zeros(()).double(), self.trace["valid_stream"]
        for window, targets in self.model.windows(stream, int(self.trace["bptt"])):
            loss, state = self.model.loss(window, targets, state)
            total += loss * len(window)
        return total / (len(stream) - 1)

    def rewire(self, epoch: int) -> None:
        """Take the masks of the trace. As in the released code, a weight removed and grown at once keeps its value."""
        for name, old in self.masks.items():
            new = self.trace[f"mask_e{epoch}_{name}"]
            self.parameters[name].data.mul_(new)
            reset_state(self.optimizer, self.parameters[name], (old != new).flatten().nonzero().flatten())
            self.masks[name] = new
            assert_golden(self.parameters[name].detach(), self.trace[f"w_e{epoch}_{name}"])

    def mean_of_iterates(self, name: str, leave_out: int) -> Tensor:
        """The mean of each weight's iterates since it grew, without the first ones, from the recorded iterates."""
        history = torch.stack([iterate[name] for iterate in self.iterates])
        ages = self.optimizer.state[self.parameters[name]]["age"]
        counted = (ages - leave_out).clamp(min=1)
        newest_first = torch.arange(len(history)).flip(0).view(-1, *[1] * ages.ndim)
        return (history * (newest_first < counted)).sum(0) / counted

    def check_averages(self) -> None:
        """Ours is the paper's formula: every iterate since growth counts."""
        for name, parameter in self.parameters.items():
            assert_golden(self.optimizer.state[parameter]["average"], self.mean_of_iterates(name, leave_out=0))

    def valid_loss_of_released_average(self) -> Tensor:
        """The released code leaves out the first iterate; the golden validation losses are of that average."""
        raw = {name: parameter.detach().clone() for name, parameter in self.parameters.items()}
        for name, parameter in self.parameters.items():
            parameter.data.copy_(self.mean_of_iterates(name, leave_out=1))
        loss = self.valid_loss()
        for name, parameter in self.parameters.items():
            parameter.data.copy_(raw[name])
        return loss


def test_train_selfish() -> None:
    trace = golden("train_selfish")
    run = SelfishReplay(trace)
    switch = int(trace["switch_after_epoch"])
    epochs = int(trace["epochs"])
    assert len(run.masks) == 6
    assert switch < epochs - 1
    for epoch in range(1, epochs + 1):
        run.train_epoch()
        if epoch <= switch:
            assert_golden(run.valid_loss(), trace["valid_losses"][epoch - 1])
        else:
            run.check_averages()
            assert_golden(run.valid_loss_of_released_average(), trace["valid_losses"][epoch - 1])
        if epoch == epochs:
            for name in run.parameters:
                assert_golden(run.mean_of_iterates(name, leave_out=1), trace[f"avg_final_{name}"])
        if epoch == switch:
            run.optimizer.start_averaging()
        else:
            run.rewire(epoch)
    assert_golden(torch.stack(run.losses), trace["step_losses"])
