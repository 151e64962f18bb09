"""A step of a recurrent model, written down operation by operation.

A program takes named vectors (and token ids), returns named vectors, and keeps state between steps. It is the one
description that Python, C and C++ run::

    program = Program()
    x = program.input("x", 40)
    h = program.state("h", 128)
    h_next = program.gru_cell(program.linear(w_ih, x, b_ih), program.linear(w_hh, h, b_hh), h)
    program.set_state(h, h_next)
    program.output("y", program.sigmoid(program.linear(w_out, h_next, b_out)))
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from selfish_rnn.engine.int8.quantized_weight import QuantizedWeight
from selfish_rnn.engine.packed_weight import PackedWeight

Matrix = PackedWeight | QuantizedWeight | Tensor
"""A sparse float32, sparse int8 or dense float32 matrix. A dense int8 matrix is a full QuantizedWeight."""

Precision = Literal["float32", "int8"]

LARGEST_VECTOR = 1 << 28
"""Numbers of the largest vector of a program."""


@dataclass(frozen=True)
class Value:
    """A vector that a program computes in every step."""

    program: Program = field(repr=False, compare=False)
    index: int
    size: int


@dataclass(frozen=True)
class Token:
    """An integer input from 0 to ``count - 1``."""

    program: Program = field(repr=False, compare=False)
    index: int
    count: int


@dataclass(frozen=True)
class Operation:
    """One operation: the indexes of its operands and results, its constants, the names of its tensors."""

    kind: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    numbers: tuple[float, ...] = ()
    tensors: tuple[str | None, ...] = ()


@dataclass
class State:
    """A vector kept between steps: its value at the start of a step, and at the end."""

    name: str
    value: Value
    initial: str | None
    next: Value | None = None


UNARY = (
    "abs", "sqrt", "exp", "log", "square", "tanh", "sigmoid", "relu", "gelu", "gelu_tanh", "silu", "softsign",
    "hardsigmoid", "hardswish", "log_sigmoid",
)  # fmt: skip
"""Operations on every number of one vector."""

UNARY_WITH_NUMBERS = {"affine": 2, "clamp": 2, "leaky_relu": 1, "elu": 1, "softplus": 2}
"""Such operations that take constants, and how many."""

BINARY = ("add", "subtract", "multiply", "divide", "maximum", "minimum")
"""Operations on two vectors of one size; either may be a single number."""

GATES = {"lstm_cell": 4, "gru_cell": 3, "rnn_tanh_cell": 1, "rnn_relu_cell": 1, "highway_cell": 2, "ordered_cell": 4}
"""Gates as long as the state; an ordered cell has two numbers for each chunk besides."""


class Program:
    """Builder of a step. Methods return :class:`Value` handles; shapes are checked when an operation is added.

    Matrices are dense tensors, :class:`PackedWeight` or :class:`QuantizedWeight`; every ``linear`` has its own
    precision. A matrix used twice is stored once.
    """

    def __init__(self) -> None:
        self.inputs: dict[str, Value] = {}
        self.tokens: dict[str, Token] = {}
        self.outputs: dict[str, Value] = {}
        self.states: dict[str, State] = {}
        self.operations: list[Operation] = []
        self.sizes: list[int] = []
        self.tensors: dict[str, Tensor] = {}
        self.matrices: dict[str, PackedWeight | QuantizedWeight] = {}
        self.words: list[str] | None = None
        self.metadata: dict[str, str] = {}
        self._names: dict[int, tuple[str, object]] = {}

    # The boundary of a step

    def input(self, name: str, size: int) -> Value:
        """Add a vector that the caller gives in every step."""
        self._check_name(name, "input", {**self.inputs, **self.tokens})
        self.inputs[name] = value = self._value(size)
        return value

    def token(self, name: str, count: int) -> Token:
        """Add an integer that the caller gives in every step, from 0 to ``count - 1``."""
        self._check_name(name, "token", {**self.inputs, **self.tokens})
        if not 1 <= count < 2**31:
            raise ValueError(f"token {name} needs a count from 1 to {2**31 - 1}, not {count}")
        self.tokens[name] = token = Token(self, len(self.tokens), int(count))
        return token

    def output(self, name: str, value: Value) -> None:
        """Return a vector from every step under this name."""
        self._check_name(name, "output", self.outputs)
        self.outputs[name] = self._own(value)

    def state(self, name: str, size: int, initial: Tensor | None = None) -> Value:
        """Add a vector kept between steps, zero or ``initial`` at first; :meth:`set_state` changes it."""
        self._check_name(name, "state", self.states)
        if initial is not None and tuple(initial.shape) != (size,):
            raise ValueError(f"state {name} has {size} numbers, its initial value has shape {tuple(initial.shape)}")
        value = self._value(size)
        tensor = None if initial is None else self._vector(initial, f"{name}.initial")
        self.states[name] = State(name, value, tensor)
        return value

    def set_state(self, state: Value, value: Value) -> None:
        """Set a state at the end of the step; operations of this step still read the old vector."""
        self._own(state), self._own(value)
        entry = next((entry for entry in self.states.values() if entry.value.index == state.index), None)
        if entry is None:
            raise ValueError("set_state needs a value that state() returned")
        if entry.next is not None:
            raise ValueError(f"state {entry.name} is set twice")
        if value.size != state.size:
            raise ValueError(f"state {entry.name} has {state.size} numbers and cannot take {value.size}")
        entry.next = value

    def constant(self, values: Tensor | Sequence[float] | float) -> Value:
        """Add a fixed vector, or one number."""
        vector = torch.as_tensor(values, dtype=torch.float32).detach().reshape(-1)
        return self._add("constant", [], vector.numel(), tensors=[self._vector(vector, "constant")])

    # Matrices

    def embedding(self, matrix: Matrix, token: Token, name: str = "embedding") -> Value:
        """Return the row of a matrix that a token names."""
        rows, columns = _shape(matrix)
        if not isinstance(token, Token) or token.program is not self:
            raise TypeError("embedding needs a token of this program")
        if rows < token.count:
            raise ValueError(f"an embedding of {rows} rows cannot serve tokens up to {token.count - 1}")
        return self._add("embedding", [], columns, [token.index], [self._matrix(matrix, name)])

    def linear(
        self,
        matrix: Matrix,
        x: Value,
        bias: Tensor | None = None,
        *,
        activations: Precision = "float32",
        scale: float | None = None,
        vectors: int = 1,
        name: str | None = None,
    ) -> Value:
        """Return ``matrix @ x + bias``.

        Args:
            matrix: rows x columns; int8 weights come as a :class:`QuantizedWeight`.
            x: one vector of ``columns`` numbers, or ``vectors`` of them one after the other.
            bias: one number for each row.
            activations: ``"int8"`` rounds every vector of ``x`` to ``scale * q`` with q from -127 to 127, and needs an
                int8 matrix; ``"float32"`` uses it unrounded.
            scale: the fixed scale of int8 activations; by default ``max |x| / 127`` of each vector. Larger numbers
                saturate.
            vectors: number of vectors in ``x``.
            name: name of the matrix in the file; numbered by default.
        """
        rows, columns = _shape(matrix)
        self._own(x)
        if vectors < 1 or x.size != vectors * columns:
            raise ValueError(f"a matrix of {rows} x {columns} cannot multiply {x.size} numbers as {vectors} vector(s)")
        if bias is not None and tuple(bias.shape) != (rows,):
            raise ValueError(f"a matrix of {rows} rows needs a bias of shape ({rows},), not {tuple(bias.shape)}")
        if activations not in ("float32", "int8"):
            raise ValueError(f"activations must be 'float32' or 'int8', not {activations!r}")
        if activations == "int8" and not isinstance(matrix, QuantizedWeight):
            raise ValueError("int8 activations need an int8 matrix: QuantizedWeight.from_dense(matrix) rounds one")
        if scale is not None and (activations != "int8" or not (math.isfinite(scale) and scale > 0)):
            raise ValueError(f"scale is for int8 activations and must be positive and finite, not {scale}")
        numbers = [vectors, int(activations == "int8"), scale or 0.0]
        tensors = [self._matrix(matrix, name or "matrix"), self._optional_vector(bias, name and f"{name}.bias")]
        return self._add("linear", [x], vectors * rows, numbers, tensors)

    def frames(self, x: Value, count: int, dilation: int = 1, name: str = "frames") -> Value:
        """Return the last ``count`` vectors of ``x``, ``dilation`` steps apart, the oldest first.

        The past is a state of this name: a ring buffer of ``(count - 1) * dilation`` vectors and one number, the place
        of the oldest.
        """
        self._own(x)
        if count < 2 or dilation < 1:
            raise ValueError(
                f"frames needs a count of at least 2 and a dilation of at least 1, not {count}, {dilation}"
            )
        past = (count - 1) * dilation
        unique = next(
            f"{name}{suffix}" for suffix in ("", *range(len(self.states) + 1)) if f"{name}{suffix}" not in self.states
        )
        state = self.state(unique, past * x.size + 1)
        frames, after = self._add_several("frames", [x, state], [count * x.size, state.size], [count, dilation])
        self.set_state(state, after)
        return frames

    def conv1d(
        self,
        weight: Tensor | PackedWeight | QuantizedWeight,
        x: Value,
        bias: Tensor | None = None,
        *,
        kernel: int | None = None,
        dilation: int = 1,
        groups: int = 1,
        activations: Precision = "float32",
        scale: float | None = None,
        name: str = "conv",
    ) -> Value:
        """Return one step of a causal convolution with stride 1: it sees ``x`` and its past.

        Args:
            weight: the (out, in / groups, kernel) tensor of ``nn.Conv1d``; or, sparse and for one group, a matrix of
                out x (kernel * in) whose columns run over the frames, the oldest first.
            x: the newest vector, of ``in`` numbers.
            kernel: number of frames; needed for a sparse matrix only.
        """
        if isinstance(weight, Tensor):
            if weight.ndim != 3 or weight.shape[1] * groups != x.size or weight.shape[0] % groups:
                raise ValueError(
                    f"a convolution of {x.size} channels in {groups} group(s) needs a weight of shape "
                    f"(out, {x.size // groups}, kernel), not {tuple(weight.shape)}"
                )
            kernel = weight.shape[2]
        elif kernel is None or groups != 1 or _shape(weight)[1] != kernel * x.size:
            raise ValueError(
                f"a sparse convolution needs its kernel, one group, and kernel * {x.size} columns, not "
                f"kernel={kernel}, groups={groups} and a matrix of {_shape(weight)}"
            )
        frames = x if kernel == 1 else self.frames(x, kernel, dilation, f"{name}.frames")
        if not isinstance(weight, Tensor):
            return self.linear(weight, frames, bias, activations=activations, scale=scale, name=name)
        parts = [self.slice(frames, frame * x.size, x.size) for frame in range(kernel)]
        if groups == x.size and weight.shape[0] == x.size:  # depthwise: a sum of scaled frames
            terms = [self.multiply(part, self.constant(weight[:, 0, at])) for at, part in enumerate(parts)]
            total = terms[0]
            for term in terms[1:]:
                total = self.add(total, term)
            return total if bias is None else self.add(total, self.constant(bias))
        rows, columns = weight.shape[0] // groups, weight.shape[1]
        results = []
        for group in range(groups):
            at = slice(group * rows, (group + 1) * rows)
            matrix = weight[at].detach().permute(0, 2, 1).reshape(rows, kernel * columns)
            channels = frames
            if groups > 1:
                channels = self.concat([self.slice(part, group * columns, columns) for part in parts])
            label = name if groups == 1 else f"{name}.group{group}"
            piece: Matrix = QuantizedWeight.from_dense(matrix) if activations == "int8" else matrix
            some = None if bias is None else bias[at]
            results.append(self.linear(piece, channels, some, activations=activations, scale=scale, name=label))
        return results[0] if groups == 1 else self.concat(results)

    # Cells: from the sums of the inputs and of the recurrence to the next state

    def lstm_cell(self, inputs: Value, recurrent: Value, c: Value) -> tuple[Value, Value]:
        """Return the next h and c of an LSTM; gates in torch's order (input, forget, cell, output)."""
        self._check_sums("lstm_cell", c.size, inputs, recurrent)
        h, c = self._add_several("lstm_cell", [inputs, recurrent, c], [c.size, c.size])
        return h, c

    def gru_cell(self, inputs: Value, recurrent: Value, h: Value) -> Value:
        """Return the next h of a GRU as torch defines it: the reset gate multiplies ``recurrent``, bias included."""
        self._check_sums("gru_cell", h.size, inputs, recurrent)
        return self._add("gru_cell", [inputs, recurrent, h], h.size)

    def rnn_cell(self, inputs: Value, recurrent: Value, nonlinearity: Literal["tanh", "relu"] = "tanh") -> Value:
        """Return the next h of an Elman network."""
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"nonlinearity must be 'tanh' or 'relu', not {nonlinearity!r}")
        kind = f"rnn_{nonlinearity}_cell"
        self._check_sums(kind, inputs.size, inputs, recurrent)
        return self._add(kind, [inputs, recurrent], inputs.size)

    def highway_cell(self, inputs: Value, recurrent: Value | None, h: Value) -> Value:
        """Return the next h of a recurrent highway layer; ``recurrent`` is None where ``inputs`` holds all sums."""
        sums = [inputs] if recurrent is None else [inputs, recurrent]
        self._check_sums("highway_cell", h.size, *sums)
        return self._add("highway_cell", [h, *sums], h.size)

    def ordered_cell(self, inputs: Value, recurrent: Value, c: Value, chunk: int) -> tuple[Value, Value]:
        """Return the next h and c of an ON-LSTM with master gates of ``c.size / chunk`` numbers."""
        if chunk < 1 or c.size % chunk:
            raise ValueError(f"{c.size} units cannot be divided into chunks of {chunk}")
        self._check_sums("ordered_cell", c.size, inputs, recurrent, extra=2 * (c.size // chunk))
        h, c = self._add_several("ordered_cell", [inputs, recurrent, c], [c.size, c.size], [chunk])
        return h, c

    # Arithmetic on two vectors of one size, or on a vector and a single number

    def add(self, a: Value, b: Value | float) -> Value:
        """Return ``a + b``."""
        return self.affine(a, 1.0, b) if isinstance(b, int | float) else self._binary("add", a, b)

    def subtract(self, a: Value, b: Value | float) -> Value:
        """Return ``a - b``."""
        return self.affine(a, 1.0, -b) if isinstance(b, int | float) else self._binary("subtract", a, b)

    def multiply(self, a: Value, b: Value | float) -> Value:
        """Return ``a * b``, number by number."""
        return self.affine(a, b, 0.0) if isinstance(b, int | float) else self._binary("multiply", a, b)

    def divide(self, a: Value, b: Value | float) -> Value:
        """Return ``a / b``, number by number."""
        return self._binary("divide", a, self.constant(b) if isinstance(b, int | float) else b)

    def maximum(self, a: Value, b: Value) -> Value:
        """Return the larger of each two numbers; NaN wins."""
        return self._binary("maximum", a, b)

    def minimum(self, a: Value, b: Value) -> Value:
        """Return the smaller of each two numbers; NaN wins."""
        return self._binary("minimum", a, b)

    def affine(self, x: Value, scale: float, offset: float) -> Value:
        """Return ``scale * x + offset``."""
        return self._unary("affine", x, scale, offset)

    def negate(self, x: Value) -> Value:
        """Return ``-x``."""
        return self._unary("affine", x, -1.0, 0.0)

    # Functions of every number

    def unary(self, kind: str, x: Value) -> Value:
        """Return one of :data:`UNARY` of every number of ``x``."""
        if kind not in UNARY:
            raise ValueError(f"unknown function {kind!r}; known are {', '.join(UNARY)}")
        return self._unary(kind, x)

    def abs(self, x: Value) -> Value:
        return self._unary("abs", x)

    def sqrt(self, x: Value) -> Value:
        return self._unary("sqrt", x)

    def exp(self, x: Value) -> Value:
        return self._unary("exp", x)

    def log(self, x: Value) -> Value:
        return self._unary("log", x)

    def square(self, x: Value) -> Value:
        return self._unary("square", x)

    def tanh(self, x: Value) -> Value:
        return self._unary("tanh", x)

    def sigmoid(self, x: Value) -> Value:
        return self._unary("sigmoid", x)

    def relu(self, x: Value) -> Value:
        return self._unary("relu", x)

    def silu(self, x: Value) -> Value:
        return self._unary("silu", x)

    def softsign(self, x: Value) -> Value:
        return self._unary("softsign", x)

    def hardsigmoid(self, x: Value) -> Value:
        return self._unary("hardsigmoid", x)

    def gelu(self, x: Value, approximate: Literal["none", "tanh"] = "none") -> Value:
        return self._unary("gelu_tanh" if approximate == "tanh" else "gelu", x)

    def clamp(self, x: Value, low: float = -math.inf, high: float = math.inf) -> Value:
        """Return every number limited to [low, high], as ``torch.clamp`` and ``Hardtanh`` do."""
        return self._unary("clamp", x, low, high)

    def leaky_relu(self, x: Value, slope: float = 0.01) -> Value:
        return self._unary("leaky_relu", x, slope)

    def elu(self, x: Value, alpha: float = 1.0) -> Value:
        return self._unary("elu", x, alpha)

    def softplus(self, x: Value, beta: float = 1.0, threshold: float = 20.0) -> Value:
        return self._unary("softplus", x, beta, threshold)

    def prelu(self, x: Value, weight: Tensor) -> Value:
        """Return ``max(0, x) + weight * min(0, x)``; ``weight`` is one number or one for each of ``x``."""
        below = self.multiply(self.clamp(x, high=0.0), self.constant(weight))
        return self.add(self.relu(x), below)

    # Whole vectors

    def concat(self, values: Sequence[Value]) -> Value:
        """Return vectors one after the other."""
        if not values:
            raise ValueError("concat needs at least one vector")
        return self._add("concat", list(values), sum(value.size for value in values))

    def slice(self, x: Value, start: int, size: int) -> Value:
        """Return ``size`` numbers of ``x`` from ``start`` on."""
        self._own(x)
        if start < 0 or size < 1 or start + size > x.size:
            raise ValueError(f"{size} numbers from {start} on are not in a vector of {x.size}")
        return self._add("slice", [x], size, [start])

    def softmax(self, x: Value, parts: int = 1) -> Value:
        """Return the softmax of ``x``, or of each of ``parts`` equal parts of it."""
        return self._add("softmax", [x], x.size, [self._parts(x, parts)])

    def log_softmax(self, x: Value, parts: int = 1) -> Value:
        """Return the logarithm of the softmax of ``x``, or of each of its ``parts``."""
        return self._add("log_softmax", [x], x.size, [self._parts(x, parts)])

    def sum(self, x: Value, parts: int = 1) -> Value:
        """Return the sum of ``x``, or one for each of its ``parts``."""
        return self._add("sum", [x], parts, [self._parts(x, parts)])

    def mean(self, x: Value, parts: int = 1) -> Value:
        """Return the mean of ``x``, or one for each of its ``parts``."""
        return self._add("mean", [x], parts, [self._parts(x, parts)])

    def mixture(self, prior: Value, probabilities: Value) -> Value:
        """Return ``log(sum_k prior[k] probabilities[k] + 1e-8)`` of ``prior.size`` vectors, as AWD-LSTM-MoS has it."""
        return self._add("mixture", [prior, probabilities], self._parts_size(probabilities, prior.size))

    def layer_norm(
        self, x: Value, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5, parts: int = 1
    ) -> Value:
        """Return ``x`` with mean 0 and variance 1 (of each of ``parts``), times ``weight``, plus ``bias``."""
        normal = self._add("layer_norm", [x], x.size, [self._parts(x, parts), eps])
        return self._scaled(normal, weight, bias)

    def rms_norm(self, x: Value, weight: Tensor | None = None, eps: float = 1e-6, parts: int = 1) -> Value:
        """Return ``x`` divided by its root mean square (of each of ``parts``), times ``weight``."""
        return self._scaled(self._add("rms_norm", [x], x.size, [self._parts(x, parts), eps]), weight, None)

    def glu(self, x: Value) -> Value:
        """Return the first half of ``x`` times the sigmoid of the second."""
        half = self._parts_size(x, 2)
        return self.multiply(self.slice(x, 0, half), self.sigmoid(self.slice(x, half, half)))

    # The finished program

    def check(self) -> None:
        """Raise a ValueError unless the program has an output, and every state is set."""
        if not self.outputs:
            raise ValueError("the program has no output: name one with output(name, value)")
        unset = [name for name, state in self.states.items() if state.next is None]
        if unset:
            raise ValueError(f"states that are never set: {', '.join(unset)}; use set_state(state, value)")

    # Bookkeeping

    def _scaled(self, x: Value, weight: Tensor | None, bias: Tensor | None) -> Value:
        for factor, combine in ((weight, self.multiply), (bias, self.add)):
            if factor is not None:
                if factor.numel() != x.size:
                    raise ValueError(f"a norm of {x.size} numbers needs as many weights, not {tuple(factor.shape)}")
                x = combine(x, self.constant(factor))
        return x

    def _parts(self, x: Value, parts: int) -> int:
        self._parts_size(x, parts)
        return parts

    def _parts_size(self, x: Value, parts: int) -> int:
        self._own(x)
        if parts < 1 or x.size % parts:
            raise ValueError(f"{x.size} numbers cannot be divided into {parts} equal parts")
        return x.size // parts

    def _check_sums(self, kind: str, units: int, *sums: Value, extra: int = 0) -> None:
        rows = GATES[kind] * units + extra
        for value in sums:
            if value.size != rows:
                raise ValueError(f"a {kind} of {units} units needs sums of {rows} numbers, not {value.size}")

    def _unary(self, kind: str, x: Value, *numbers: float) -> Value:
        if any(math.isnan(number) for number in numbers):
            raise ValueError(f"{kind} cannot take NaN as a constant")
        return self._add(kind, [x], x.size, numbers)

    def _binary(self, kind: str, a: Value, b: Value) -> Value:
        if a.size != b.size and 1 not in (a.size, b.size):
            raise ValueError(f"{kind} needs vectors of one size, not {a.size} and {b.size}")
        return self._add(kind, [a, b], max(a.size, b.size))

    def _add(
        self,
        kind: str,
        inputs: Sequence[Value],
        size: int,
        numbers: Sequence[float] = (),
        tensors: Sequence[str | None] = (),
    ) -> Value:
        return self._add_several(kind, inputs, [size], numbers, tensors)[0]

    def _add_several(
        self,
        kind: str,
        inputs: Sequence[Value],
        sizes: Sequence[int],
        numbers: Sequence[float] = (),
        tensors: Sequence[str | None] = (),
    ) -> list[Value]:
        operands = tuple(self._own(value).index for value in inputs)
        values = [self._value(size) for size in sizes]
        results = tuple(value.index for value in values)
        self.operations.append(Operation(kind, operands, results, tuple(numbers), tuple(tensors)))
        return values

    def _value(self, size: int) -> Value:
        if not isinstance(size, int) or not 1 <= size <= LARGEST_VECTOR:
            raise ValueError(f"a vector has from 1 to {LARGEST_VECTOR} numbers, not {size}")
        self.sizes.append(size)
        return Value(self, len(self.sizes) - 1, size)

    def _own(self, value: Value) -> Value:
        if not isinstance(value, Value):
            raise TypeError(f"an operation needs a Value of this program, not {type(value).__name__}")
        if value.program is not self:
            raise ValueError("the value belongs to another program")
        return value

    def _check_name(self, name: str, kind: str, taken: dict[str, object] | dict[str, Value] | dict[str, State]) -> None:
        if not name or name in taken:
            raise ValueError(f"{kind} {name!r} already exists" if name else f"an {kind} needs a name")

    def _optional_vector(self, values: Tensor | None, name: str | None) -> str | None:
        return None if values is None else self._vector(values, name or "bias")

    def _vector(self, values: Tensor, name: str) -> str:
        return self._store(
            values,
            name,
            values.detach().to("cpu", torch.float32).reshape(-1).clone(memory_format=torch.contiguous_format),
        )

    def _matrix(self, matrix: Matrix, name: str) -> str:
        if isinstance(matrix, Tensor):
            # Through one dimension: a dimension of size 1 may have any stride.
            numbers = matrix.detach().to("cpu", torch.float32).reshape(-1).clone(memory_format=torch.contiguous_format)
            return self._store(matrix, name, numbers.view(matrix.shape))
        return self._store(matrix, name, matrix)

    def _store(self, source: object, name: str, stored: Tensor | PackedWeight | QuantizedWeight) -> str:
        """Store a tensor or matrix once, under a free name."""
        if id(source) in self._names:
            return self._names[id(source)][0]
        free = _free_name(name, {**self.tensors, **self.matrices})
        if isinstance(stored, Tensor):
            self.tensors[free] = stored
        else:
            self.matrices[free] = stored
        self._names[id(source)] = (free, source)  # the reference keeps the id from being reused
        return free


def _free_name(name: str, taken: Container[str]) -> str:
    """Return the name, with a number if it is taken."""
    return next(
        free
        for free in itertools.chain([name], (f"{name}{number}" for number in itertools.count(1)))
        if free not in taken
    )


def _shape(matrix: Matrix) -> tuple[int, int]:
    """Return the rows and columns of a matrix, or raise an error."""
    if not isinstance(matrix, Tensor | PackedWeight | QuantizedWeight):
        raise TypeError(f"a matrix is a tensor, PackedWeight or QuantizedWeight, not {type(matrix).__name__}")
    if len(matrix.shape) != 2 or min(matrix.shape) < 1:
        raise ValueError(f"a matrix has rows and columns, not the shape {tuple(matrix.shape)}")
    return int(matrix.shape[0]), int(matrix.shape[1])
