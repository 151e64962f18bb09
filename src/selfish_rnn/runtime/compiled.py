"""Programs compiled to the C++ step, and their streams."""

from __future__ import annotations

import ctypes
import functools
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from selfish_rnn.engine import library
from selfish_rnn.errors import UserError
from selfish_rnn.runtime.program import Program
from selfish_rnn.runtime.stored import program_bytes

Floats = npt.NDArray[np.float32]

_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_size_t
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "srnn_load_memory": (_POINTER, [ctypes.c_char_p, _SIZE]),
    "srnn_free": (None, [_POINTER]),
    "srnn_error": (ctypes.c_char_p, []),
    "srnn_error_code": (ctypes.c_int, []),
    "srnn_text": (ctypes.c_char_p, [_POINTER, ctypes.c_char_p]),
    "srnn_stream_new": (_POINTER, [_POINTER]),
    "srnn_stream_size": (_SIZE, [_POINTER]),
    "srnn_stream_free": (None, [_POINTER]),
    "srnn_step_tokens": (ctypes.c_int, [_POINTER, _POINTER, _POINTER, _POINTER]),
    "srnn_reset": (None, [_POINTER]),
    "srnn_state_size": (_SIZE, [_POINTER]),
    "srnn_get_state": (None, [_POINTER, _POINTER]),
    "srnn_set_state": (None, [_POINTER, _POINTER]),
    "srnn_choose": (
        ctypes.c_int64,
        [_POINTER, ctypes.c_int64, ctypes.c_double, ctypes.c_int64, ctypes.c_int64, ctypes.c_double],
    ),
}


@functools.cache
def functions() -> ctypes.CDLL:
    """Return the library with the signatures of the C functions set."""
    loaded = library.kernels()
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded


class CompiledProgram:
    """A program laid out for this processor; any number of streams, in any threads, share it.

    >>> compiled = CompiledProgram.of(program)
    >>> stream = compiled.stream()
    >>> stream.inputs["x"][:] = x
    >>> stream.run()
    >>> stream.outputs["y"]

    The weights are copied: later changes of the model do not show.

    Args:
        data: content of a ``model.srnn`` file. Everything in it is checked.
        source: name of the data in error messages.
    """

    def __init__(self, data: bytes, source: str = "the program") -> None:
        library_functions = functions()
        self._free = library_functions.srnn_free
        self.address: int | None = library_functions.srnn_load_memory(data, len(data))
        if self.address is None:
            reason = library_functions.srnn_error().decode(errors="replace").removeprefix("the model ")
            error = MemoryError if library_functions.srnn_error_code() == 3 else UserError
            raise error(f"{source} {reason}")
        program = json.loads(library_functions.srnn_text(self.address, b"program"))
        sizes = program["sizes"]
        self.inputs: dict[str, int] = {name: sizes[value] for name, value in program["inputs"]}
        self.outputs: dict[str, int] = {name: sizes[value] for name, value in program["outputs"]}
        self.tokens: dict[str, int] = dict(program["tokens"])
        self.states: dict[str, int] = {entry[0]: sizes[entry[1]] for entry in program["states"]}
        words = library_functions.srnn_text(self.address, b"words")
        self.words: list[str] | None = None if words is None else json.loads(words)

    @classmethod
    def of(cls, program: Program) -> CompiledProgram:
        """Compile a program."""
        return cls(program_bytes(program))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> CompiledProgram:
        """Compile the program of a file."""
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror or error}") from error
        return cls(data, str(path))

    def text(self, name: str) -> str | None:
        """Return text of the file's metadata, or None."""
        text = functions().srnn_text(self.address, name.encode())
        return None if text is None else text.decode()

    def stream(self) -> CompiledStream:
        """Return a new stream at the initial state."""
        return CompiledStream(self)

    def __del__(self) -> None:
        if getattr(self, "address", None) is not None:
            self._free(self.address)


class CompiledStream:
    """State of one sequence, and memory for its inputs and outputs.

    Write into ``inputs`` and ``tokens``, call :meth:`run`, read ``outputs``: numpy arrays, overwritten by every step.
    A stream serves one thread at a time; different streams run at once.
    """

    def __init__(self, program: CompiledProgram) -> None:
        self._functions = functions()
        self.program = program
        self._address: int | None = self._functions.srnn_stream_new(program.address)
        if self._address is None:
            raise MemoryError(self._functions.srnn_error().decode())
        self._free = self._functions.srnn_stream_free
        self._input, self._output = (
            np.zeros(sum(sizes.values()), dtype=np.float32) for sizes in (program.inputs, program.outputs)
        )
        self._tokens = np.zeros(len(program.tokens), dtype=np.int32)
        self.inputs: dict[str, Floats] = _pieces(self._input, program.inputs)
        self.outputs: dict[str, Floats] = _pieces(self._output, program.outputs)
        self.tokens: dict[str, npt.NDArray[np.int32]] = {
            name: self._tokens[at : at + 1] for at, name in enumerate(program.tokens)
        }
        self._step = self._functions.srnn_step_tokens
        arrays = (self._tokens, self._input, self._output)
        self._arguments = (_POINTER(self._address), *(_POINTER(array.ctypes.data) for array in arrays))

    def run(self) -> None:
        """Run one step. After an error the state is unchanged."""
        if self._step(*self._arguments):
            raise IndexError(self._functions.srnn_error().decode())

    def run_at(self, tokens: int, inputs: int, outputs: int) -> None:
        """Run one step on memory of the caller, by its addresses: all tokens, all inputs and all outputs in order."""
        if self._step(self._address, tokens, inputs, outputs):
            raise IndexError(self._functions.srnn_error().decode())

    def reset(self) -> None:
        """Return to the initial state."""
        self._functions.srnn_reset(self._address)

    def state(self) -> dict[str, Floats]:
        """Return a copy of every state, by name."""
        return _pieces(self._state(), self.program.states)

    def set_state(self, state: Mapping[str, npt.ArrayLike]) -> None:
        """Set every state; raise a ValueError if one is missing or of another size."""
        states = self.program.states
        if state.keys() != states.keys():
            raise ValueError(f"the state has {', '.join(states) or 'no parts'}, not {', '.join(state) or 'no parts'}")
        parts = [np.asarray(state[name], dtype=np.float32).reshape(-1) for name in states]
        for (name, size), part in zip(states.items(), parts, strict=True):
            if len(part) != size:
                raise ValueError(f"state {name} has {size} numbers, not {len(part)}")
        flat = np.concatenate(parts) if parts else np.zeros(0, dtype=np.float32)
        self._functions.srnn_set_state(self._address, flat.ctypes.data)

    def clone(self) -> CompiledStream:
        """Return a new stream of the same program at the same state."""
        stream = self.program.stream()
        self._functions.srnn_set_state(stream._address, self._state().ctypes.data)
        return stream

    def _state(self) -> Floats:
        flat = np.empty(sum(self.program.states.values()), dtype=np.float32)
        self._functions.srnn_get_state(self._address, flat.ctypes.data)
        return flat

    def __del__(self) -> None:
        if getattr(self, "_address", None) is not None:
            self._free(self._address)


def _pieces(flat: Floats, sizes: Mapping[str, int]) -> dict[str, Floats]:
    """Return views of consecutive parts of an array, by name."""
    ends = np.cumsum([0, *sizes.values()])
    return {name: flat[ends[at] : ends[at + 1]] for at, name in enumerate(sizes)}
