"""A dense LSTM in bfloat16, written by hand to be as fast as torch's products allow.

torch's own LSTM is no faster under autocast than in float32. Here the input products of a window are one product, the
matrices are rounded once a window, and operands stay in bfloat16; sums, states and gradients of weights are float32.
"""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

Model = TypeVar("Model", bound=nn.Module)
_LOW = torch.bfloat16


class _Layer(torch.autograd.Function):
    """One LSTM layer over a window: steps x batch x features."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, h: Tensor, c: Tensor, weight: Tensor, recurrent: Tensor, bias: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        steps, batch, _ = x.shape
        operand, w, r = x.to(_LOW), weight.to(_LOW), recurrent.to(_LOW)
        gates = functional.linear(operand.flatten(0, 1), w).view(steps, batch, -1).float().add_(bias)
        states = h.new_empty(steps + 1, batch, h.shape[-1], dtype=_LOW)
        cells, squashed, y = (
            h.new_empty(steps + 1, *h.shape),
            h.new_empty(steps, *h.shape),
            h.new_empty(steps, *h.shape),
        )
        states[0], cells[0] = h, c
        for step in range(steps):
            sums = gates[step].add_(functional.linear(states[step], r))
            i, f, g, o = sums.chunk(4, -1)
            sums[:, : 2 * h.shape[-1]].sigmoid_()
            g.tanh_()
            o.sigmoid_()
            torch.addcmul(f * cells[step], i, g, out=cells[step + 1])
            torch.tanh(cells[step + 1], out=squashed[step])
            torch.mul(o, squashed[step], out=y[step])
            states[step + 1] = y[step]
        ctx.save_for_backward(operand, w, r, gates, states, cells, squashed)
        return y, y[-1].clone(), cells[-1].clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        dy, dh, dc = gradients
        operand, w, r, gates, states, cells, squashed = ctx.saved_tensors
        d_gates = torch.empty_like(gates, dtype=_LOW)
        for step in reversed(range(len(dy))):
            dh = dh + dy[step]
            i, f, g, o = gates[step].chunk(4, -1)
            t = squashed[step]
            dc = torch.addcmul(dc, dh * o, 1 - t * t)
            d = torch.cat(
                [
                    dc * g * i * (1 - i),
                    dc * cells[step] * f * (1 - f),
                    dc * i * (1 - g * g),
                    dh * t * o * (1 - o),
                ],
                -1,
            )
            d_gates[step] = d
            dc = dc * f
            dh = (d_gates[step] @ r).float()
        d_all = d_gates.flatten(0, 1)
        dx = (d_all @ w).view_as(operand).float()
        d_weight = (d_all.T @ operand.flatten(0, 1)).float()
        d_recurrent = (d_all.T @ states[:-1].flatten(0, 1)).float()
        return dx, dh, dc, d_weight, d_recurrent, d_all.sum(0, dtype=torch.float32)


class _Loss(torch.autograd.Function):
    """Mean cross-entropy of an output layer; its gradients are computed with it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, targets: Tensor) -> Tensor:
        operand, w = x.to(_LOW), weight.to(_LOW)
        scores = functional.linear(operand, w).float().add_(bias)
        chances = scores.log_softmax(-1)
        loss = functional.nll_loss(chances, targets)
        d = chances.exp_()
        d[torch.arange(len(d)), targets] -= 1
        low = d.div_(len(d)).to(_LOW)
        ctx.save_for_backward((low @ w).float(), (low.T @ operand).float(), d.sum(0))
        return loss

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        dx, d_weight, d_bias = ctx.saved_tensors
        return dx * gradients[0], d_weight * gradients[0], d_bias * gradients[0], None


class HandLSTM(nn.LSTM):
    """``torch.nn.LSTM`` of any number of layers, in one direction and without dropout."""

    def forward(self, x: Tensor, state: Any = None) -> Any:  # type: ignore[override]
        hidden, cells = [], []
        for layer in range(self.num_layers):
            weight, recurrent, bias, recurrent_bias = self.all_weights[layer]
            h, c = (part[layer] for part in state)
            arguments = x, h, c, weight, recurrent, bias + recurrent_bias
            x, h, c = _Layer.apply(*arguments)  # type: ignore[no-untyped-call]
            hidden.append(h)
            cells.append(c)
        return x, (torch.stack(hidden), torch.stack(cells))


class HandLinear(nn.Linear):
    """An output layer that computes its own loss; see :func:`~selfish_rnn.engine.output_loss`."""

    def cross_entropy(self, x: Tensor, targets: Tensor) -> Tensor:
        loss: Tensor = _Loss.apply(  # type: ignore[no-untyped-call]
            x.flatten(0, -2), self.weight, self.bias, targets.flatten()
        )
        return loss


def by_hand(model: Model) -> Model:
    """Let the LSTMs and linear layers of a model compute in bfloat16, in place."""
    for module in model.modules():
        if type(module) is nn.LSTM:
            module.__class__ = HandLSTM
        elif type(module) is nn.Linear:
            module.__class__ = HandLinear
    return model
