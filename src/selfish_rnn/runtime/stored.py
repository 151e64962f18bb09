"""The file of a program, ``model.srnn``: a safetensors file with the step as JSON; see docs/format.md."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from selfish_rnn.engine.int8.quantized_weight import QuantizedWeight
from selfish_rnn.engine.packed_weight import PackedWeight
from selfish_rnn.errors import UserError
from selfish_rnn.files import load_tensors, save_tensors, tensors_to_bytes
from selfish_rnn.runtime.program import Operation, Program, State, Token, Value
from selfish_rnn.topology.layout import StoredMatrix, describe_layout, read_shapes, read_sparse, stored_keys

FORMAT = "stream 1"
RESERVED = ("format", "layout", "program", "shapes", "words")


def save_program(program: Program, path: str | os.PathLike[str]) -> None:
    """Write a program to one file, which Python, C and C++ read."""
    save_tensors(path, *contents(program))


def program_bytes(program: Program) -> bytes:
    """Return the content of the file of a program."""
    return tensors_to_bytes(*contents(program))


def load_program(path: str | os.PathLike[str]) -> Program:
    """Read a program that :func:`save_program` wrote, to change it or to run it in torch."""
    tensors, metadata = load_tensors(path)
    if metadata.get("format") != FORMAT:
        raise UserError(f"{path} is of format {metadata.get('format')!s:.40}, this version reads {FORMAT!r}")
    try:
        return _program(tensors, metadata)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise UserError(f"{path} is damaged: {str(error)[:200]}") from error


def contents(program: Program) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and the metadata of the file."""
    program.check()
    reserved = [key for key in RESERVED if key in program.metadata]
    if reserved:
        raise ValueError(f"metadata cannot use the names {', '.join(reserved)}")
    names = _file_names([*program.tensors, *program.matrices])
    tensors: dict[str, Tensor] = {names[name]: tensor for name, tensor in program.tensors.items()}
    for name, matrix in program.matrices.items():
        tensors |= matrix.tensors(names[name])
    shapes = {names[name]: matrix.shape for name, matrix in program.matrices.items()}
    description = {
        "sizes": program.sizes,
        "inputs": [[name, value.index] for name, value in program.inputs.items()],
        "tokens": [[name, token.count] for name, token in program.tokens.items()],
        "outputs": [[name, value.index] for name, value in program.outputs.items()],
        "states": [
            [name, state.value.index, state.next.index if state.next else -1, names.get(state.initial or "")]
            for name, state in program.states.items()
        ],
        "operations": [_as_list(operation, names) for operation in program.operations],
    }
    text = json.dumps(description, separators=(",", ":"))
    metadata = {**program.metadata, **describe_layout(shapes), "format": FORMAT, "program": text}
    if program.words is not None:
        metadata["words"] = json.dumps(program.words)
    return tensors, metadata


def _as_list(operation: Operation, names: Mapping[str, str]) -> list[Any]:
    tensors = [None if name is None else names[name] for name in operation.tensors]
    return [operation.kind, operation.inputs, operation.outputs, [*map(_number, operation.numbers)], tensors]


def _number(number: float) -> float | int | None:
    """Return a constant as JSON has it: float32, the shortest way to write it; null for an infinite bound."""
    if isinstance(number, int):
        return number
    if math.isinf(number):
        return None
    return float(str(np.float32(number)))


def _file_names(names: list[str]) -> dict[str, str]:
    """Return plain, unique names: letters, digits, dots, underscores and hyphens."""
    result: dict[str, str] = {}
    taken: set[str] = set()
    for name in names:
        plain = free = re.sub(r"[^A-Za-z0-9._-]", "_", name)[:200]
        number = 1
        while free in taken:
            number += 1
            free = f"{plain}_{number}"
        taken.add(free)
        result[name] = free
    return result


def _program(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> Program:
    """Build the program again; the compiled step checks everything that is not checked here."""
    program, saved = Program(), json.loads(metadata["program"])
    program.sizes = [int(size) for size in saved["sizes"]]

    def value(index: int) -> Value:
        return Value(program, int(index), program.sizes[index])

    program.inputs = {name: value(index) for name, index in saved["inputs"]}
    program.tokens = {name: Token(program, at, count) for at, (name, count) in enumerate(saved["tokens"])}
    program.outputs = {name: value(index) for name, index in saved["outputs"]}
    for name, index, after, initial in saved["states"]:
        program.states[name] = State(name, value(index), initial, value(after))
    for kind, inputs, outputs, numbers, names in saved["operations"]:
        bounds = (-math.inf, math.inf)
        constants = tuple(bounds[at] if number is None else number for at, number in enumerate(numbers))
        program.operations.append(Operation(kind, tuple(inputs), tuple(outputs), constants, tuple(names)))
    sparse: set[str] = set()
    for name, (rows, columns) in read_shapes(metadata).items():
        program.matrices[name] = _matrix(read_sparse(tensors, name, (rows, columns)), (rows, columns))
        sparse.update(stored_keys(tensors, name))
    program.tensors = {name: tensor for name, tensor in tensors.items() if name not in sparse}
    program.words = json.loads(metadata["words"]) if "words" in metadata else None
    program.metadata = {key: text for key, text in metadata.items() if key not in RESERVED}
    program.check()
    return program


def _matrix(stored: StoredMatrix, shape: tuple[int, int]) -> PackedWeight | QuantizedWeight:
    positions, values, scales = stored
    if scales is None:
        return PackedWeight(shape, positions, values)
    return QuantizedWeight(shape, positions, values, scales)
