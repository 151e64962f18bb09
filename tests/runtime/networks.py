"""Random causal networks, built from all that a stream translates."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional


class Recurrent(nn.Module):
    """A recurrent layer of torch on (T, B, F); its output has ``size`` features."""

    def __init__(self, rng: random.Random, inputs: int) -> None:
        super().__init__()
        kind = rng.choice([nn.LSTM, nn.GRU, nn.RNN])
        hidden, extra = rng.randint(2, 9), {}
        if kind is nn.LSTM and rng.random() < 0.3:
            extra = {"proj_size": rng.randint(1, hidden - 1)}
        if kind is nn.RNN:
            extra = {"nonlinearity": rng.choice(["tanh", "relu"])}
        self.rnn = kind(inputs, hidden, rng.randint(1, 2), bias=rng.random() < 0.8, **extra)
        self.size = extra.get("proj_size", hidden)
        self.starts_with_zeros = rng.random() < 0.5

    def forward(self, x: Tensor) -> Tensor:
        if self.starts_with_zeros or isinstance(self.rnn, nn.LSTM):
            return self.rnn(x)[0]
        return self.rnn(x, x.new_zeros(self.rnn.num_layers, x.shape[1], self.rnn.hidden_size))[0]


class Cells(nn.Module):
    """A loop over a cell of torch that writes into its output."""

    def __init__(self, rng: random.Random, inputs: int) -> None:
        super().__init__()
        self.size = rng.randint(2, 8)
        self.cell = rng.choice([nn.LSTMCell, nn.GRUCell, nn.RNNCell])(inputs, self.size)
        self.stacks = rng.random() < 0.5

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor | tuple[Tensor, Tensor] = x.new_zeros(x.shape[1], self.size)
        if isinstance(self.cell, nn.LSTMCell):
            h = (h, x.new_zeros(x.shape[1], self.size))
        outputs, list_of_outputs = x.new_empty(len(x), x.shape[1], self.size), []
        for step in range(len(x)):
            h = self.cell(x[step], h)
            outputs[step] = h[0] if isinstance(h, tuple) else h
            list_of_outputs.append(outputs[step])
        return torch.stack(list_of_outputs) if self.stacks else outputs


class Causal(nn.Module):
    """A causal convolution, padded in either of the usual ways."""

    def __init__(self, rng: random.Random, inputs: int) -> None:
        super().__init__()
        kernel, dilation = rng.randint(1, 4), rng.randint(1, 3)
        self.reach = dilation * (kernel - 1)
        self.pads = rng.random() < 0.5
        groups = rng.choice([1, inputs] + [2] * (inputs % 2 == 0))
        self.size = groups * rng.randint(1, 3)
        padding = 0 if self.pads else self.reach
        self.conv = nn.Conv1d(
            inputs, self.size, kernel, dilation=dilation, padding=padding, groups=groups, bias=rng.random() < 0.7
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(1, 2, 0)
        if self.pads:
            y = self.conv(functional.pad(x, (self.reach, 0)))
        else:
            y = self.conv(x)
            y = y[..., : y.shape[-1] - self.reach]
        return y.permute(2, 0, 1)


class Pointwise(nn.Module):
    """A function of the features of every step."""

    def __init__(self, function: Callable[[Tensor], Tensor], inputs: int) -> None:
        super().__init__()
        self.function = function
        self.size = function(torch.zeros(1, 1, inputs)).shape[-1]

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def _modules(inputs: int) -> list[nn.Module]:
    """Modules of torch that keep the number of features."""
    return [
        *(nn.Tanh(), nn.Sigmoid(), nn.ReLU(), nn.LeakyReLU(0.2), nn.ELU(0.7), nn.CELU(1.3), nn.SELU(), nn.GELU()),
        *(nn.GELU("tanh"), nn.SiLU(), nn.Softplus(), nn.Softplus(2.0, 5.0), nn.Hardtanh(-0.5, 0.8), nn.Hardsigmoid()),
        *(nn.Softsign(), nn.PReLU(), nn.Hardswish(), nn.Mish(), nn.LogSigmoid(), nn.ReLU6()),
        *(nn.Tanhshrink(), nn.LayerNorm(inputs), nn.LayerNorm(inputs, elementwise_affine=False), nn.RMSNorm(inputs)),
        *(nn.Dropout(0.5), nn.Identity(), nn.Softmax(-1), nn.LogSoftmax(-1)),
    ]


def _functions(inputs: int) -> list[Callable[[Tensor], Tensor]]:
    """Arithmetic and movements of features."""
    cut, constant = max(1, inputs // 2), torch.linspace(-1, 1, inputs)
    return [
        lambda x: x * 2 - 1,
        lambda x: 1 - x,
        lambda x: x + constant,
        lambda x: constant * x / 2,
        lambda x: x / (1 + x.abs()),
        lambda x: x[..., :cut],
        lambda x: torch.cat([x, x.tanh()], -1),
        lambda x: x.flip(-1),
        lambda x: x * x[..., :1],
        lambda x: x.roll(1, -1),
        lambda x: x.clamp(-0.7, 0.9),
        lambda x: x.square() + x**3,
        lambda x: (x.abs() + 0.1).sqrt() + (x.abs() + 1).log(),
        lambda x: torch.exp(-x.abs()),
        lambda x: torch.maximum(x, -x * 0.3).minimum(constant),
        lambda x: x - x.mean(-1, keepdim=True),
        lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5),
        lambda x: torch.lerp(x, x.tanh(), 0.3),
        lambda x: torch.addcmul(x, x, x.sigmoid(), value=0.5),
        lambda x: torch.stack(x.split(1, -1), -1).flatten(2),
        lambda x: functional.glu(torch.cat([x, x], -1), -1),
        lambda x: x.chunk(2, -1)[0],
        lambda x: x[..., None, :].expand(-1, -1, 2, -1).reshape(*x.shape[:2], -1),
        lambda x: (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-1) if inputs > 1 else x,
        lambda x: functional.pad(x, (1, 2), value=0.5),
        lambda x: x.unsqueeze(2).squeeze(2).transpose(0, 1).contiguous().transpose(0, 1),
        lambda x: torch.einsum("tbf,f->tb", x, constant).unsqueeze(-1),
        lambda x: x @ torch.outer(constant, constant) + 0.1,
    ]


class Residual(nn.Module):
    """A layer whose output is added to its input where they have the same features, and appended elsewhere."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return x + y if x.shape == y.shape else torch.cat([x, y], -1)


class Linear(nn.Linear):
    @property
    def size(self) -> int:
        return self.out_features


class RandomNetwork(nn.Module):
    """A random causal network over (T, B, F), or (B, T, F) with ``batch_first``."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        rng = random.Random(seed)
        torch.manual_seed(seed)
        self.batch_first = rng.random() < 0.5
        self.inputs = inputs = rng.randint(1, 7)
        layers: list[nn.Module] = []
        for _ in range(rng.randint(1, 5)):
            kind = rng.choice(["recurrent", "cells", "conv", "linear", "module", "function", "function"])
            layer: nn.Module
            if kind == "recurrent":
                layer = Recurrent(rng, inputs)
            elif kind == "cells":
                layer = Cells(rng, inputs)
            elif kind == "conv":
                layer = Causal(rng, inputs)
            elif kind == "linear":
                layer = Linear(inputs, rng.randint(1, 9), bias=rng.random() < 0.8)
            elif kind == "module":
                layer = rng.choice(_modules(inputs))
            else:
                layer = Pointwise(rng.choice(_functions(inputs)), inputs)
            layers.append(Residual(layer) if rng.random() < 0.25 else layer)
            with torch.no_grad():
                inputs = layers[-1](torch.zeros(1, 1, inputs)).shape[-1]
        self.layers = nn.ModuleList(layers)
        if rng.random() < 0.4:
            self._prune(rng.choice([0.5, 0.8]))

    @torch.no_grad()
    def _prune(self, sparsity: float) -> None:
        for parameter in self.parameters():
            if parameter.ndim == 2:
                parameter *= torch.rand(parameter.shape) >= sparsity

    def forward(self, x: Tensor) -> Tensor:
        if self.batch_first:
            x = x.transpose(0, 1)
        for layer in self.layers:
            x = layer(x)
        return x.transpose(0, 1) if self.batch_first else x

    def example(self, steps: int) -> Tensor:
        return torch.randn(1, steps, self.inputs) if self.batch_first else torch.randn(steps, 1, self.inputs)
