"""The kernels: a shared library, built at installation, that this module loads and calls.

The library shares torch's OpenMP runtime, because torch is imported first: ``torch.set_num_threads`` governs both.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
import threading
from pathlib import Path

import torch
from torch import Tensor

LIBRARY = Path(os.environ.get("SELFISH_RNN_KERNELS") or Path(__file__).with_name("_kernels.so"))
"""Another one may be named in the environment, for instance one that was built to check itself."""

TARGETS = ("portable", "avx2", "avx512")
"""The kinds of processors there are kernels for, from the most modest on."""

WIDEST = 64
"""Columns of the widest panel, and how many panels of scores the loss keeps; both as in the kernels."""
PANELS_AT_ONCE = 4

ALIGNMENT = 16
"""Floats of a cache line."""

CELLS = {"lstm": 0, "gru": 1, "rnn_tanh": 2, "rnn_relu": 3}

_pointer = ctypes.c_void_p
_integer = ctypes.c_int64


def _fields(shape: tuple[str, ...], pointers: str) -> list[tuple[str, type]]:
    return [(name, _integer) for name in shape] + [(name, _pointer) for name in pointers.split()]


class IndexHeader(ctypes.Structure):
    """Mirrors ``Header`` in packed.hpp: what an index begins with."""

    _fields_ = [
        *_fields(("format", "bytes", "rows", "columns", "count"), ""),
        *_fields(("row_tiles", "column_tiles", "tile_columns", "entries", "entries_t"), ""),
        ("offset", _integer * 9),
    ]


class LayerForward(ctypes.Structure):
    """Mirrors the structure of this name in layer.hpp."""

    _fields_ = _fields(
        ("cell", "steps", "batch", "hidden"),
        "input_index input_values recurrent_index recurrent_values bias recurrent_bias x h_first c_first y h_last "
        "c_last gates states memories extra h_panels x_panels apart",
    )


class LayerBackward(ctypes.Structure):
    """Mirrors the structure of this name in layer.hpp."""

    _fields_ = _fields(
        ("cell", "steps", "batch", "hidden"),
        "input_index input_values recurrent_index recurrent_values x gates states memories extra h_panels dy dh_last "
        "dc_last dx dh_first dc_first input_gradients recurrent_gradients bias_gradient recurrent_bias_gradient "
        "values_t x_panels d_input_panels d_recurrent_panels d_input d_recurrent d_state d_memory",
    )


class HighwayForward(ctypes.Structure):
    """Mirrors the structure of this name in layer.hpp."""

    _fields_ = _fields(
        ("cell", "steps", "batch", "hidden", "depth", "keep"),
        "input_index input_values recurrent_index recurrent_values biases x h_first mask y gates later_gates states "
        "h_panels x_panels mask_panels masked",
    )


class HighwayBackward(ctypes.Structure):
    """Mirrors the structure of this name in layer.hpp."""

    _fields_ = _fields(
        ("cell", "steps", "batch", "hidden", "depth"),
        "input_index input_values recurrent_index recurrent_values x mask gates later_gates states h_panels dy dx "
        "dh_first input_gradients recurrent_gradients bias_gradients values_t x_panels d_panels d_gates d_state "
        "d_through mask_panels",
    )


class OrderedForward(ctypes.Structure):
    """Mirrors the structure of this name in layer.hpp."""

    _fields_ = _fields(
        ("cell", "steps", "batch", "hidden", "chunk"),
        "input_index input_values recurrent_index recurrent_values bias x h_first c_first y c_last input_distance "
        "forget_distance gates masters states memories h_panels x_panels",
    )


class OrderedBackward(ctypes.Structure):
    """Mirrors the structure of this name in layer.hpp."""

    _fields_ = _fields(
        ("cell", "steps", "batch", "hidden", "chunk"),
        "input_index input_values recurrent_index recurrent_values x gates masters memories h_panels dy dc_last dx "
        "dh_first dc_first input_gradients recurrent_gradients bias_gradient values_t x_panels d_panels d_gates "
        "d_masters d_state d_memory",
    )


_SIGNATURES: dict[str, tuple[type | None, str]] = {
    # p: pointer, i: int64
    "selfish_index_bytes": (_integer, "iiipipii"),
    "selfish_index_build": (None, "iiipipiipp"),
    "selfish_index_valid": (ctypes.c_int, "pi"),
    "selfish_index_sorted": (None, "ppp"),
    "selfish_linear": (None, "ppppipp"),
    "selfish_linear_backward": (None, "ppppippppp"),
    "selfish_cross_entropy": (ctypes.c_double, "pppppippppp"),
    "selfish_lookup": (None, "pppip"),
    "selfish_lookup_backward": (None, "pppip"),
    "selfish_layer_forward": (None, "p"),
    "selfish_layer_backward": (None, "p"),
    "selfish_highway_forward": (None, "p"),
    "selfish_highway_backward": (None, "p"),
    "selfish_ordered_forward": (None, "p"),
    "selfish_ordered_backward": (None, "p"),
    "selfish_best_target": (ctypes.c_int, ""),
    "selfish_target": (ctypes.c_int, ""),
    "selfish_use_target": (None, "i"),
}


def available() -> bool:
    """Whether the kernels were built when the package was installed."""
    return LIBRARY.exists()


@functools.cache
def kernels() -> ctypes.CDLL:
    """The kernels."""
    if not available():
        raise RuntimeError(
            "the packed engine's kernels were not built when selfish-rnn was installed, which takes a C++ compiler "
            "(g++ or clang++): install one and reinstall, or use the masked engine"
        )
    loaded = ctypes.CDLL(str(LIBRARY))
    kinds = {"p": _pointer, "i": _integer}
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(loaded, name)
        function.restype = result
        function.argtypes = [kinds[letter] for letter in arguments]
    return loaded


def target() -> str:
    """Which of :data:`TARGETS` the kernels in use are for."""
    return TARGETS[kernels().selfish_target()]


def targets() -> tuple[str, ...]:
    """Those this processor can run."""
    return TARGETS[: kernels().selfish_best_target() + 1]


def use_target(name: str) -> None:
    """Use the kernels for another kind of processor, for instance to compare them."""
    if name not in targets():
        raise ValueError(f"this processor runs kernels for {', '.join(targets())}, not for {name!r}")
    kernels().selfish_use_target(TARGETS.index(name))


def address(tensor: Tensor | None) -> int | None:
    """Where a tensor's numbers lie; nothing for no tensor."""
    return None if tensor is None else tensor.data_ptr()


def header(index: Tensor) -> IndexHeader:
    """What an index says of itself; valid as long as the tensor lives."""
    return IndexHeader.from_address(index.data_ptr())


def run(function: str, structure: type[ctypes.Structure], **fields: Tensor | int | None) -> None:
    """Call a function of the library that takes a structure: numbers, and of tensors where they lie."""
    places = {name: address(value) if isinstance(value, Tensor) else value for name, value in fields.items()}
    filled = structure(**places)
    getattr(kernels(), function)(ctypes.addressof(filled))


def panel_floats(columns: int, features: int) -> int:
    """How many floats ``columns`` columns (tokens) of so many features take as panels."""
    count = math.ceil(columns / WIDEST)
    width = 1 if columns == 1 else 8 * math.ceil(columns / count / 8)
    return count * width * features


_scratch = threading.local()


def workspace(*sizes: int) -> list[Tensor]:
    """Memory to work in, for one call of an operator: pieces of so many floats.

    The same for every call of a thread: memory that is asked for anew has to be given out by the system, page by page.
    """
    rounded = [ALIGNMENT * math.ceil(size / ALIGNMENT) for size in sizes]
    memory: Tensor | None = getattr(_scratch, "work", None)
    if memory is None or len(memory) < sum(rounded):
        memory = _scratch.work = torch.empty(sum(rounded))
    pieces = torch.split(memory[: sum(rounded)], rounded)
    return [piece[:size] for piece, size in zip(pieces, sizes, strict=True)]


def transposed_scratch(*values: Tensor) -> Tensor:
    """Memory for the values of any of these matrices in transposed order; one piece serves a thread's in turn."""
    largest = max(map(len, values))
    memory: Tensor | None = getattr(_scratch, "memory", None)
    if memory is None or len(memory) < largest:
        memory = _scratch.memory = torch.empty(largest)
    return memory
