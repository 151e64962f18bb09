"""A slow interpreter of programs in torch: the definition of every operation, which the compiled step must match."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from selfish_rnn.engine.int8.quantized_weight import QuantizedWeight
from selfish_rnn.runtime.program import Operation, Program

Number = int | float


class ReferenceStream:
    """A program run in torch, one operation after the other.

    >>> stream = ReferenceStream(program)
    >>> stream.step({"x": torch.randn(40)})["y"]
    """

    def __init__(self, program: Program) -> None:
        program.check()
        self.program = program
        matrices = {name: matrix.to_dense().detach() for name, matrix in program.matrices.items()}
        self._tensors = {**program.tensors, **matrices}
        self._int8 = {
            name: _whole(matrix) for name, matrix in program.matrices.items() if isinstance(matrix, QuantizedWeight)
        }
        self.reset()

    def reset(self) -> None:
        """Return every state to its initial value."""
        self._state = {
            name: torch.zeros(state.value.size) if state.initial is None else self._tensors[state.initial].clone()
            for name, state in self.program.states.items()
        }

    def state(self) -> dict[str, Tensor]:
        """Return a copy of every state, by name."""
        return {name: tensor.clone() for name, tensor in self._state.items()}

    def set_state(self, state: Mapping[str, Tensor]) -> None:
        """Set every state."""
        self._state = {name: state[name].clone() for name in self._state}

    @torch.no_grad()
    def step(self, inputs: Mapping[str, Tensor | int]) -> dict[str, Tensor]:
        """Return the outputs of one step, by name, and keep the state after it."""
        program = self.program
        tokens = [int(inputs[name]) for name in program.tokens]
        values: dict[int, Tensor] = {}
        for name, value in program.inputs.items():
            x = torch.as_tensor(inputs[name], dtype=torch.float32).reshape(-1)
            if len(x) != value.size:
                raise ValueError(f"input {name} has {value.size} numbers, not {len(x)}")
            values[value.index] = x
        values |= {state.value.index: self._state[name] for name, state in program.states.items()}
        for operation in program.operations:
            operands = [values[index] for index in operation.inputs]
            for index, result in zip(operation.outputs, self._run(operation, operands, tokens), strict=True):
                values[index] = result
        self._state = {name: values[state.next.index].clone() for name, state in program.states.items() if state.next}
        return {name: values[value.index].clone() for name, value in program.outputs.items()}

    def _run(self, operation: Operation, x: list[Tensor], tokens: list[int]) -> Sequence[Tensor]:
        kind, numbers = operation.kind, operation.numbers
        tensors = [None if name is None else self._tensors[name] for name in operation.tensors]
        if kind == "slice":
            return [x[0].narrow(0, int(numbers[0]), self.program.sizes[operation.outputs[0]])]
        if kind in _FUNCTIONS:
            return [_FUNCTIONS[kind](*x, *numbers)]
        if kind in _CELLS:
            return _CELLS[kind](*x, *map(int, numbers))
        if kind == "constant":
            assert tensors[0] is not None
            return [tensors[0]]
        if kind == "embedding":
            assert tensors[0] is not None
            return [tensors[0][tokens[int(numbers[0])]]]
        assert kind == "linear"
        assert operation.tensors[0] is not None
        return [self._linear(operation.tensors[0], tensors[1], x[0], *numbers)]

    def _linear(self, name: str, bias: Tensor | None, x: Tensor, vectors: Number, int8: Number, scale: float) -> Tensor:
        x = x.view(int(vectors), -1)
        if int8:
            whole, row_scale = self._int8[name]
            factor, q = rounded_activations(x, scale)
            y = (q.double() @ whole.double().T).float() * (row_scale * factor)
            return (y if bias is None else y + bias).flatten()
        return functional.linear(x, self._tensors[name], bias).flatten()


def rounded_activations(x: Tensor, scale: float = 0.0) -> tuple[Tensor, Tensor]:
    """Return the scale of every vector of ``x`` and its whole numbers from -127 to 127.

    A vector with a number that is not finite gets the scale NaN.
    """
    finite = x.isfinite().all(1, keepdim=True)
    largest = x.abs().amax(1, keepdim=True)
    if scale:
        factor = torch.full_like(largest, scale)
        q = (torch.nan_to_num(x) * (1.0 / torch.tensor(scale))).clamp(-127, 127).round()
    else:
        zero = largest < 1e-30
        factor = torch.where(zero, 0.0, largest / 127)
        q = (x * torch.where(zero, 0.0, 127 / largest)).round()
    return torch.where(finite, factor, torch.nan), torch.where(finite, q, 0.0)


def _whole(weight: QuantizedWeight) -> tuple[Tensor, Tensor]:
    """Return an int8 matrix as dense whole numbers, and its row scales."""
    positions, values, scale = weight.weights()
    dense = torch.zeros(weight.shape[0] * weight.shape[1])
    dense[positions] = values.float()
    return dense.view(weight.shape), scale


def _lstm_cell(inputs: Tensor, recurrent: Tensor, c: Tensor) -> Sequence[Tensor]:
    i, f, g, o = (inputs + recurrent).chunk(4)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return [o.sigmoid() * c.tanh(), c]


def _gru_cell(inputs: Tensor, recurrent: Tensor, h: Tensor) -> Sequence[Tensor]:
    (ri, zi, ni), (rr, zr, nr) = inputs.chunk(3), recurrent.chunk(3)
    n, z = (ni + (ri + rr).sigmoid() * nr).tanh(), (zi + zr).sigmoid()
    return [n + z * (h - n)]


def _highway_cell(h: Tensor, inputs: Tensor, recurrent: Tensor | None = None) -> Sequence[Tensor]:
    candidate, transform = (inputs if recurrent is None else inputs + recurrent).chunk(2)
    return [h + transform.sigmoid() * (candidate.tanh() - h)]


def _ordered_cell(inputs: Tensor, recurrent: Tensor, c: Tensor, chunk: int) -> Sequence[Tensor]:
    chunks = len(c) // chunk
    sums = inputs + recurrent
    master_in = 1 - sums[:chunks].softmax(0).cumsum(0)
    master_forget = sums[chunks : 2 * chunks].softmax(0).cumsum(0)
    master_in, master_forget = (master.repeat_interleave(chunk) for master in (master_in, master_forget))
    output, candidate, write, keep = sums[2 * chunks :].chunk(4)
    overlap = master_in * master_forget
    write = write.sigmoid() * overlap + (master_in - overlap)
    keep = keep.sigmoid() * overlap + (master_forget - overlap)
    c = keep * c + write * candidate.tanh()
    return [output.sigmoid() * c.tanh(), c]


def _frames(x: Tensor, ring: Tensor, count: int, dilation: int) -> Sequence[Tensor]:
    """The ring holds the past; its last number is the place of the oldest vector, which the newest replaces."""
    past, place = ring[:-1].view(-1, len(x)), int(ring[-1])
    frames = [past[(place + frame * dilation) % len(past)] for frame in range(count - 1)]
    after = past.clone()
    after[place] = x
    return [torch.cat([*frames, x]), torch.cat([after.flatten(), torch.tensor([float((place + 1) % len(past))])])]


def _in_parts(function: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    return lambda x, parts: function(x.view(int(parts), -1)).flatten()


def _layer_norm(x: Tensor, parts: Number, eps: float) -> Tensor:
    rows = x.view(int(parts), -1)
    return functional.layer_norm(rows, rows.shape[1:], eps=eps).flatten()


def _rms_norm(x: Tensor, parts: Number, eps: float) -> Tensor:
    rows = x.view(int(parts), -1)
    return (rows * (rows.square().mean(1, keepdim=True) + eps).rsqrt()).flatten()


_CELLS: dict[str, Callable[..., Sequence[Tensor]]] = {
    "lstm_cell": _lstm_cell,
    "gru_cell": _gru_cell,
    "rnn_tanh_cell": lambda inputs, recurrent: [(inputs + recurrent).tanh()],
    "rnn_relu_cell": lambda inputs, recurrent: [(inputs + recurrent).relu()],
    "highway_cell": _highway_cell,
    "ordered_cell": _ordered_cell,
    "frames": _frames,
}

_FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "add": torch.add,
    "subtract": torch.sub,
    "multiply": torch.mul,
    "divide": torch.div,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "abs": torch.abs,
    "sqrt": torch.sqrt,
    "exp": torch.exp,
    "log": torch.log,
    "square": torch.square,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "relu": torch.relu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
    "softsign": functional.softsign,
    "hardsigmoid": functional.hardsigmoid,
    "hardswish": functional.hardswish,
    "log_sigmoid": functional.logsigmoid,
    "affine": lambda x, scale, offset: x * scale + offset,
    "clamp": torch.clamp,
    "leaky_relu": functional.leaky_relu,
    "elu": functional.elu,
    "softplus": functional.softplus,
    "concat": lambda *x: torch.cat(x),
    "softmax": _in_parts(lambda rows: rows.softmax(1)),
    "log_softmax": _in_parts(lambda rows: rows.log_softmax(1)),
    "sum": _in_parts(lambda rows: rows.sum(1)),
    "mean": _in_parts(lambda rows: rows.mean(1)),
    "mixture": lambda prior, probabilities: (prior @ probabilities.view(len(prior), -1) + 1e-8).log(),
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
}
