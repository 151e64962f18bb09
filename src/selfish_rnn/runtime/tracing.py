"""Record one step of a model: every number of every tensor is traced back to the operation that computed it.

The model's own forward runs on an example, and each operation of torch that reaches the dispatcher is translated while
it runs. Beside the memory of every tensor lies a *shadow*: for each number the value it comes from (a vector of the
program) and its position in that vector. Views share the memory of their base, so they share its shadow: slices,
transpositions, ``chunk`` and assignments into a part of a tensor need no translation. Operations that only move numbers
(``cat``, ``pad``, ``stack``, …) run on the shadow as they run on the numbers.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from selfish_rnn.engine.int8.quantized_weight import QuantizedWeight
from selfish_rnn.engine.packed_weight import PackedWeight
from selfish_rnn.runtime.program import Precision, Program, Token, Value

CONSTANT, UNKNOWN = 0, -1
"""Sources of a number in a shadow: its value in the recorded step; one that later steps decide."""

Translator = Callable[..., Any]
"""Adds an operation to the program. Takes the trace and the arguments of the operation, returns values or tensors."""


class UntranslatableError(ValueError):
    """A model that cannot be streamed: the message names the module, the operation and the reason."""


class Trace:
    """The program of a step while it is written, and the origin of every number in it.

    Args:
        model: model whose step is recorded.
        matrix: returns the matrix the program multiplies with, given a name and a dense, packed or int8 matrix.
    """

    def __init__(self, model: nn.Module, matrix: Callable[[str, Any], tuple[Any, Precision]]) -> None:
        self.program = Program()
        self._values: list[Value | str | None] = [None]
        self._numbers: dict[int, int] = {}
        self._shadows: dict[int, tuple[Any, Tensor, Tensor]] = {}
        self._vectors: dict[bytes, Value] = {}
        self._constants: dict[bytes, Value] = {}
        self._model = model
        self._matrix = matrix
        self._stack: list[str] = []
        self.paused = False
        self.failed_module = ""
        self._names = _parameter_names(model)
        self._sparse = _sparse_weights(model)

    # Names

    @property
    def module(self) -> str:
        """Full name of the module whose forward runs."""
        return self._stack[-1] if self._stack else ""

    @contextlib.contextmanager
    def inside(self, name: str) -> Iterator[None]:
        """Run a block as a part of a module."""
        self._stack.append(name)
        try:
            yield
        except Exception:
            self.failed_module = self.failed_module or name
            raise
        finally:
            self._stack.pop()

    def refuse(self, operation: str, reason: str) -> UntranslatableError:
        """Return the error that names the module, the operation and the reason."""
        kind = type(dict(self._model.named_modules()).get(self.module, self._model)).__name__
        where = f"{self.module} ({kind})" if self.module else f"the model ({kind})"
        return UntranslatableError(f"{where}: {operation} cannot be streamed: {reason}")

    # Shadows

    def origin(self, tensor: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return source and position of every number of a tensor, or None if all are constants."""
        if tensor.numel() == 0 or tensor.device.type != "cpu":
            return None
        shadow = self._shadows.get(tensor.untyped_storage().data_ptr())
        if shadow is None:
            return None
        geometry = tensor.shape, tensor.stride(), tensor.storage_offset()
        source, position = (part.as_strided(*geometry) for part in shadow[1:])
        return (source, position) if bool(source.any()) else None

    def is_traced(self, value: Any) -> bool:
        """Return whether a value is a tensor that depends on inputs or states."""
        return isinstance(value, Tensor) and self.origin(value) is not None

    def set_origin(self, tensor: Tensor, source: Tensor, position: Tensor) -> None:
        """Write the shadow of a tensor, which may be a part of a larger memory."""
        if tensor.numel() == 0:
            return
        storage = tensor.untyped_storage()
        key = storage.data_ptr()
        if key not in self._shadows:
            size = storage.nbytes() // tensor.element_size()
            # The storage is kept, so no other tensor of this step can get its address.
            self._shadows[key] = (storage, torch.zeros(size, dtype=torch.int64), torch.zeros(size, dtype=torch.int64))
        geometry = tensor.shape, tensor.stride(), tensor.storage_offset()
        for part, numbers in zip(self._shadows[key][1:], (source, position), strict=True):
            part.as_strided(*geometry).copy_(numbers)

    def bind(self, tensor: Tensor, value: Value) -> None:
        """Let a tensor hold a value of the program, in the order of its numbers."""
        if tensor.numel() != value.size:
            raise RuntimeError(f"a value of {value.size} numbers cannot be a tensor of shape {tuple(tensor.shape)}")
        number = self._number(value)
        position = torch.arange(tensor.numel()).view(tensor.shape)
        self.set_origin(tensor, torch.full(tensor.shape, number), position)

    def bind_constant(self, tensor: Tensor) -> None:
        """Let a tensor hold constants."""
        zeros = torch.zeros(tensor.shape, dtype=torch.int64)
        self.set_origin(tensor, zeros, zeros)

    def _number(self, value: Value) -> int:
        if value.index not in self._numbers:
            self._numbers[value.index] = len(self._values)
            self._values.append(value)
        return self._numbers[value.index]

    # Values

    def vector(self, tensor: Tensor) -> Value:
        """Return the value of the program that holds the numbers of a tensor in their order."""
        origin = self.origin(tensor)
        if origin is None:
            return self.constant(tensor)
        source, position = (part.reshape(-1) for part in origin)
        if bool((source == UNKNOWN).any()):
            raise self.refuse("a value of a later step", "it is used in this step, so the module is not causal")
        key = torch.stack([source, position]).numpy().tobytes()
        if key in self._vectors and not bool((source == CONSTANT).any()):
            return self._vectors[key]
        numbers = tensor.detach().reshape(-1)
        runs = _runs(source, position)
        value = self._joined(runs, numbers) if len(runs) <= 16 else self._gathered(source, position, numbers)
        if not bool((source == CONSTANT).any()):
            self._vectors[key] = value
        return value

    def constant(self, tensor: Tensor) -> Value:
        """Return the value of the program that holds constant numbers."""
        numbers = tensor.detach().to(torch.float32).reshape(-1).contiguous().clone()
        key = numbers.numpy().tobytes()
        if key not in self._constants:
            self._constants[key] = self.program.constant(numbers)
        return self._constants[key]

    def _joined(self, runs: Sequence[tuple[int, int, int, int]], numbers: Tensor) -> Value:
        """Slices of values, one after another."""
        parts = []
        for source, first, begin, size in runs:
            if source == CONSTANT:
                parts.append(self.constant(numbers[begin : begin + size]))
                continue
            value = self._value(source)
            parts.append(value if (first, size) == (0, value.size) else self.program.slice(value, first, size))
        return parts[0] if len(parts) == 1 else self.program.concat(parts)

    def _gathered(self, source: Tensor, position: Tensor, numbers: Tensor) -> Value:
        """Numbers in any order: a product with a matrix of one weight a row, plus the constants."""
        used = sorted({*source.tolist()} - {CONSTANT})
        starts, total = {}, 0
        for number in used:
            starts[number], total = total, total + self._value(number).size
        rows = (source != CONSTANT).nonzero().flatten()
        offsets = torch.tensor([starts[number] for number in source[rows].tolist()])
        positions = rows * total + offsets + position[rows]
        selection = PackedWeight((len(source), total), positions, torch.ones(len(rows)))
        values = [self._value(number) for number in used]
        joined = values[0] if len(values) == 1 else self.program.concat(values)
        constants = torch.where(source == CONSTANT, numbers.to(torch.float32), 0.0)
        return self.program.linear(selection, joined, constants if bool(constants.any()) else None, name="selection")

    def _value(self, number: int) -> Value:
        value = self._values[number]
        if not isinstance(value, Value):
            raise self.refuse("arithmetic", "token ids are not numbers: only an embedding takes them")
        return value

    # Matrices

    def matrix(self, weight: Any, name: str | None = None) -> tuple[Any, Precision]:
        """Return a matrix in the form the program multiplies with, and the precision of its activations."""
        if isinstance(weight, Tensor) and self.is_traced(weight):
            raise self.refuse("a product", "both factors depend on the input; one has to be a weight")
        return self._matrix(name or self.weight_name(weight), weight)

    def weight_name(self, weight: Any) -> str:
        """Return the name of the parameter that a weight is a view of, or a name within the module that runs."""
        if isinstance(weight, Tensor):
            name = self._names.get(weight.untyped_storage().data_ptr())
        else:
            name = next((name for name, module in self._model.named_modules() if module is weight), None)
        return name or ".".join(filter(None, [self.module, "weight"]))

    def sparse_weight(self, tensor: Tensor) -> PackedWeight | QuantizedWeight | None:
        """Return the packed weight with these values, or the int8 weight with these bytes."""
        return self._sparse.get(tensor.data_ptr())

    # States and tokens

    def entering(self, tensor: Tensor | None, size: int, name: str) -> tuple[Value, bool]:
        """Return the value of a state that enters a cell, and whether the program keeps it.

        A state that the forward computes or takes from its caller is an ordinary value. A constant one, zero as a rule,
        is the state before the first step: the program keeps it from step to step.
        """
        if tensor is not None and self.is_traced(tensor):
            return self.vector(tensor), False
        return self.keep_state(torch.zeros(size) if tensor is None else tensor, name), True

    def keep_state(self, tensor: Tensor, name: str) -> Value:
        """Add a state that begins as this tensor."""
        full, taken = ".".join(filter(None, [self.module, name])), self.program.states
        candidates = (full, *(f"{full}.{number}" for number in range(2, 2**16)))
        full = next(candidate for candidate in candidates if candidate not in taken)
        numbers = tensor.detach().to(torch.float32).reshape(-1).clone()
        return self.program.state(full, len(numbers), numbers if bool(numbers.any()) else None)

    def bind_token(self, tensor: Tensor, name: str) -> None:
        """Let an integer tensor hold token ids of the input."""
        if tensor.numel() != 1:
            raise self.refuse("the input", f"one token id for each step is needed, not {tensor.numel()}")
        self._values.append(name)
        self.set_origin(tensor, torch.full(tensor.shape, len(self._values) - 1), torch.zeros_like(tensor))

    def token(self, tensor: Tensor, rows: int) -> Token:
        """Return the token that an integer tensor holds, for a matrix with this number of rows."""
        origin = self.origin(tensor)
        name = None if origin is None or tensor.numel() != 1 else self._values[int(origin[0])]
        if not isinstance(name, str):
            raise self.refuse("an embedding", "its indices are not one token id of the input")
        return self.program.tokens.get(name) or self.program.token(name, rows)

    # Recording

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Run a block without recording it."""
        before, self.paused = self.paused, True
        try:
            yield
        finally:
            self.paused = before

    @contextlib.contextmanager
    def recording(self, operations: dict[str, Translator], functions: dict[Any, Translator]) -> Iterator[None]:
        """Translate what runs in a block."""
        with _Functions(self, functions), _Operations(self, operations):
            yield


class _Functions(TorchFunctionMode):
    """Functions of torch that are translated whole: layers of recurrent cells."""

    def __init__(self, trace: Trace, translators: dict[Any, Translator]) -> None:
        super().__init__()
        self._trace, self._translators = trace, translators

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        translator = self._translators.get(func)
        if translator is None or self._trace.paused:
            return func(*args, **kwargs)
        return translator(self._trace, func, *args, **kwargs)


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Operations of torch as they reach the dispatcher."""

    def __init__(self, trace: Trace, translators: dict[str, Translator]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._trace, self._translators = trace, translators

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        trace = self._trace
        if trace.paused:
            return func(*args, **kwargs)
        schema = func._schema
        name = schema.name.replace("::", ".")
        written = [
            value
            for argument, value in _bound(schema, args, kwargs)
            if argument.alias_info is not None and argument.alias_info.is_write and isinstance(value, Tensor)
        ]
        tensors = list(_tensors((*args, *kwargs.values())))
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise trace.refuse(_plain(name), "it draws random numbers, and a step is the same every time")
        if not any(map(trace.is_traced, tensors)):
            return func(*args, **kwargs)
        if not written and _is_view(schema):
            return func(*args, **kwargs)
        base = name if name in self._translators else name.removesuffix("_")
        translator = self._translators.get(base)
        if translator is None:
            raise trace.refuse(_plain(name), "it has no translation")
        with trace.pause():
            arguments = {key: value for key, value in kwargs.items() if key != "out"}
            # Before the operation runs, which may overwrite its operands.
            results = translator(trace, func, *args, **arguments)
            outputs = func(*args, **kwargs)
            for tensor, result in zip(_flat(outputs), _flat(results), strict=False):
                if isinstance(result, Shadow):
                    trace.set_origin(tensor, *(part.expand(tensor.shape) for part in result.parts))
                elif result is not None:
                    trace.bind(tensor, result)
        return outputs


class Shadow:
    """Source and position of every number of a tensor."""

    def __init__(self, source: Tensor, position: Tensor) -> None:
        self.parts = (source, position)


def _is_view(schema: Any) -> bool:
    if schema.name in ("aten::_unsafe_view", "aten::_reshape_alias"):
        return True
    return any(returned.alias_info is not None and not returned.alias_info.is_write for returned in schema.returns)


def _bound(schema: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Return each argument of a schema that was passed, with its value."""
    for index, argument in enumerate(schema.arguments):
        if index < len(args):
            yield argument, args[index]
        elif argument.name in kwargs:
            yield argument, kwargs[argument.name]


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _flat(values: Any) -> list[Any]:
    return list(values) if isinstance(values, list | tuple) else [values]


def _plain(name: str) -> str:
    return name.removeprefix("aten.")


def _runs(source: Tensor, position: Tensor) -> list[tuple[int, int, int, int]]:
    """Divide numbers into runs of one source: source, first position there, first index here, length."""
    count = len(source)
    constant = source == CONSTANT
    same = source[1:] == source[:-1]
    # Neighbours of one value follow each other in it; constants belong together wherever they come from.
    joined = same & (constant[1:] | (position[1:] == position[:-1] + 1))
    starts = [0, *((~joined).nonzero().flatten() + 1).tolist(), count]
    return [(int(source[begin]), int(position[begin]), begin, end - begin) for begin, end in itertools.pairwise(starts)]


def _parameter_names(model: nn.Module) -> dict[int, str]:
    """Return the names of parameters and buffers by the address of their memory, the first of shared ones."""
    names: dict[int, str] = {}
    for name, tensor in (*model.named_parameters(remove_duplicate=False), *model.named_buffers()):
        if tensor.numel():
            names.setdefault(tensor.untyped_storage().data_ptr(), name)
    return names


def _sparse_weights(model: nn.Module) -> dict[int, PackedWeight | QuantizedWeight]:
    """Return the packed and int8 weights of a model by the address that operators get."""
    weights: dict[int, PackedWeight | QuantizedWeight] = {}
    for module in model.modules():
        if isinstance(module, PackedWeight):
            weights[module.values.data_ptr()] = module
        elif isinstance(module, QuantizedWeight):
            weights[module.windows.data_ptr()] = module
    return weights
