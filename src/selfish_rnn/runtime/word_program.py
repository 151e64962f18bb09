"""What is computed for the next word, written down once so that one call of the kernels does it."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor, nn

from selfish_rnn.engine import library
from selfish_rnn.engine.functional import Weight
from selfish_rnn.engine.int8 import targets
from selfish_rnn.engine.int8.quantized_weight import QuantizedWeight, windows_shape
from selfish_rnn.engine.library import address
from selfish_rnn.engine.operators import common
from selfish_rnn.engine.packed_weight import PackedWeight

Matrix = Weight | Tensor
_ALIGNMENT = library.ALIGNMENT


class Place(NamedTuple):
    """Numbers in the memory of a program: where they begin, and how many there are."""

    at: int
    size: int


NOWHERE = Place(-1, 0)

CELL_GATES = {
    "lstm_cell": 4, "gru_cell": 3, "rnn_tanh_cell": 1, "rnn_relu_cell": 1, "highway_cell": 2, "ordered_cell": 4,
}  # fmt: skip
"""Gates that are as long as the state; an ordered cell has two of one number for each chunk besides."""


@dataclass(frozen=True)
class Operation:
    """One operation, by the names in the kernels' structure; see ``kernels/step.hpp``."""

    kind: str
    phase: int
    size: int
    output: Place
    count: int = 1
    columns: int = 0
    extra: int = 0
    factor: float = 1.0
    input: Place = NOWHERE
    second: Place = NOWHERE
    state: Place = NOWHERE
    matrix: Matrix | None = None
    bias: Tensor | None = None

    NUMBERS = ("phase", "count", "size", "columns", "extra")
    PLACES = ("input", "second", "state", "output")


class Program:
    """The operations for the next word of a model.

    >>> program = Program()
    >>> x = program.row(embedding.weight)
    >>> x = program.recurrent(lstm, x)          # a packed LSTM, GRU or RNN, all its layers
    >>> scores = program.product(decoder.weight, x, decoder.bias)

    Matrices are packed, int8 or dense; of packed and int8 ones a program has only one kind. What does not depend on
    each other gets the same phase, whatever the order in which it is written down: threads wait only between phases.
    """

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.states: list[Place] = []
        self.size = 0
        self.words = 2**62
        self._written: dict[Place, int] = {}
        self._read: dict[Place, int] = {}

    def state(self, size: int) -> Place:
        """Numbers that stay from word to word, zero at first."""
        place = self._place(size)
        self.states.append(place)
        return place

    def row(self, matrix: Matrix) -> Place:
        """The row of a matrix that the word names."""
        self.words = min(self.words, matrix.shape[0])
        return self._add("matrix_row", self._place(matrix.shape[1]), size=matrix.shape[1], matrix=matrix)

    def product(
        self, matrix: Matrix, x: Place, bias: Tensor | None = None, vectors: int = 1, factor: float = 1.0
    ) -> Place:
        """``factor W x + bias``, of one vector or of several that lie one after the other."""
        rows, columns = matrix.shape
        if x.size != vectors * columns:
            raise ValueError(
                f"a matrix of {rows} x {columns} does not take {vectors} vectors of {x.size} numbers in all"
            )
        if bias is not None and bias.shape != (rows,):
            raise ValueError(f"a matrix of {rows} rows has no bias of shape {tuple(bias.shape)}")
        return self._add(
            "product",
            self._place(vectors * rows),
            input=x,
            count=vectors,
            size=rows,
            columns=columns,
            factor=factor,
            matrix=matrix,
            bias=bias,
        )

    def recurrent(self, rnn: nn.Module, x: Place) -> Place:
        """All layers of a packed or ordinary LSTM, GRU or RNN."""
        module: Any = rnn
        if module.bidirectional or getattr(module, "proj_size", 0):
            raise ValueError("the next word needs layers of one direction without a projection")
        kind = module.mode.lower() + "_cell"
        for layer in range(module.num_layers):
            biases = [getattr(module, f"bias_{name}_l{layer}", None) for name in ("ih", "hh")]
            h = self.state(module.hidden_size)
            c = self.state(module.hidden_size) if kind == "lstm_cell" else NOWHERE
            recurrent = self.product(getattr(module, f"weight_hh_l{layer}"), h, biases[1])
            inputs = self.product(getattr(module, f"weight_ih_l{layer}"), x, biases[0])
            x = self.cell(kind, inputs, recurrent, h, c)
        return x

    def cell(self, kind: str, inputs: Place, recurrent: Place, h: Place, c: Place = NOWHERE, chunk: int = 0) -> Place:
        """A cell takes the sums of its inputs and of its recurrence to its state, in place.

        Those of a highway cell may come in one, and ``recurrent`` is then ``NOWHERE``.
        """
        ordered = kind == "ordered_cell"
        if kind not in CELL_GATES or (ordered and (chunk < 1 or h.size % chunk)):
            raise ValueError(f"there is no {kind} with {h.size} units in chunks of {chunk}")
        rows = CELL_GATES[kind] * h.size + (2 * h.size // chunk if ordered else 0)
        sums = {inputs.size} if kind == "highway_cell" and recurrent == NOWHERE else {inputs.size, recurrent.size}
        if sums != {rows} or c.size != (h.size if kind in ("lstm_cell", "ordered_cell") else 0):
            raise ValueError(
                f"a {kind} of {h.size} units takes sums of {rows}, not of {inputs.size} and {recurrent.size}, with a "
                f"cell state of {c.size}"
            )
        return self._add(kind, h, input=inputs, second=recurrent, state=c, size=h.size, extra=chunk)

    def tanh(self, x: Place) -> Place:
        return self._add("tanh_of", self._place(x.size), input=x, size=x.size)

    def softmax(self, x: Place, vectors: int = 1) -> Place:
        """The softmax of each of several vectors."""
        if vectors < 1 or x.size % vectors:
            raise ValueError(f"{x.size} numbers are not {vectors} vectors")
        return self._add("softmax_of", self._place(x.size), input=x, count=vectors, size=x.size // vectors)

    def mixture(self, prior: Place, chances: Place) -> Place:
        """``log(sum_k prior[k] chances[k] + 1e-8)``."""
        size, rest = divmod(chances.size, prior.size)
        if rest:
            raise ValueError(f"{chances.size} chances are not those of {prior.size} experts")
        return self._add("mixture_of", self._place(size), input=prior, second=chances, count=prior.size, size=size)

    def _place(self, size: int) -> Place:
        place = Place(self.size, size)
        self.size += -(-size // _ALIGNMENT) * _ALIGNMENT
        return place

    def _add(self, kind: str, output: Place, **fields: Any) -> Place:
        """Add an operation, in the first phase in which all it reads is written and nothing it writes is still read."""
        read = [fields.get(name, NOWHERE) for name in ("input", "second", "state")]
        written = [output, fields.get("state", NOWHERE)]
        phase = max(
            0,
            *(self._written.get(place, -1) + 1 for place in (*read, *written)),
            *(self._read.get(place, -1) + 1 for place in written),
        )
        for place in read:
            self._read[place] = max(phase, self._read.get(place, -1))
        for place in written:
            self._written[place] = phase
        self._read.pop(NOWHERE, None)
        self._written.pop(NOWHERE, None)
        self.operations.append(Operation(kind, phase, output=output, **fields))
        return output

    def in_order(self) -> list[Operation]:
        """The operations phase by phase."""
        return sorted(self.operations, key=lambda operation: operation.phase)

    @property
    def precision(self) -> str:
        """``"int8"`` or ``"float32"``."""
        kinds = {type(operation.matrix) for operation in self.operations}
        if QuantizedWeight in kinds and PackedWeight in kinds:
            raise ValueError("a program has packed or int8 matrices, not both: quantize the whole model")
        return "int8" if QuantizedWeight in kinds else "float32"


class CompiledProgram:
    """A program as the kernels take it. It keeps the matrices it was made with, whatever becomes of their modules."""

    def __init__(self, program: Program, memory: Tensor) -> None:
        structures, operations = library.structures(), program.in_order()
        self._kept: list[Any] = [memory]
        self._laid_out = targets.in_use() if program.precision == "int8" else None
        self._run = getattr(library.kernels(), f"selfish_{program.precision.replace('32', '')}_step")
        self._operations = (structures["Operation"] * len(operations))(*map(self._structure, operations))
        pointers = {"operations": ctypes.addressof(self._operations), "memory": address(memory)}
        self._program = structures["Program"](count=len(operations), token=0, **pointers)
        self._address = ctypes.addressof(self._program)

    def run(self, token: int) -> None:
        if self._laid_out not in (None, targets.in_use()):
            raise RuntimeError("other kernels are in use than those this was made for: make it anew")
        self._program.token = token
        self._run(self._address)

    def _structure(self, operation: Operation) -> ctypes.Structure:
        fields: dict[str, Any] = {name: getattr(operation, name) for name in (*Operation.NUMBERS, "factor")}
        fields |= {name: getattr(operation, name).at for name in Operation.PLACES}
        fields["kind"] = library.cell_kind(operation.kind)
        matrix = operation.matrix
        if isinstance(matrix, QuantizedWeight):
            windows_shape(matrix.windows)
            fields["matrix"] = self._keep(matrix.windows)
        elif isinstance(matrix, PackedWeight):
            common.check_weight(matrix.values, matrix.index, *matrix.shape)
            fields["matrix"], fields["values"] = self._keep(matrix.index), self._keep_floats(matrix.values)
        else:
            fields["values"] = self._keep_floats(matrix)
        fields["bias"] = self._keep_floats(operation.bias)
        made: ctypes.Structure = library.structures()["Operation"](**fields)
        return made

    def _keep(self, tensor: Tensor) -> int | None:
        self._kept.append(tensor)
        return address(tensor)

    def _keep_floats(self, tensor: Tensor | None) -> int | None:
        return None if tensor is None else self._keep(*common.contiguous(tensor.detach()))


def program_text(model: nn.Module, describe: Callable[[Program], Place]) -> str:
    """What is computed for the next word, as JSON for programs without Python; the model may be on the meta device.

    ``operations`` have the fields of the kernels' structure in their order, with the names of tensors for pointers.
    """
    program = Program()
    scores = describe(program)
    names = {id(parameter): name for name, parameter in reversed(list(model.named_parameters(remove_duplicate=False)))}

    def fields(operation: Operation) -> list[int | float | str | None]:
        numbers = [getattr(operation, name) for name in (*Operation.NUMBERS, "factor")]
        places = [getattr(operation, name).at for name in Operation.PLACES]
        tensors = [None if each is None else names[id(each)] for each in (operation.matrix, operation.bias)]
        return [library.cell_kind(operation.kind), *numbers, *places, *tensors]

    return json.dumps(
        {
            "memory": program.size,
            "states": program.states,
            "scores": scores,
            "operations": [fields(operation) for operation in program.in_order()],
        }
    )
