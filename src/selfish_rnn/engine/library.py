"""The kernels: a shared library, built at installation, that this module loads and calls.

The library shares torch's OpenMP runtime, because torch is imported first: ``torch.set_num_threads`` governs both.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import logging
import math
import os
import struct
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from selfish_rnn.engine import abi

_logger = logging.getLogger("selfish_rnn.engine")

LIBRARY = Path(os.environ.get("SELFISH_RNN_KERNELS") or Path(__file__).with_name("_kernels.so"))
"""Path of the library. The environment may name another one, for instance one that checks itself."""

ALIGNMENT = 16
"""Floats of a cache line."""

Pointed = Tensor | ctypes.Array[Any]
"""Values of pointer fields of a structure."""


def available() -> bool:
    """Return whether the kernels were built at installation and can be loaded."""
    return LIBRARY.exists() and not isinstance(_opened(LIBRARY), OSError)


@functools.cache
def _opened(path: Path) -> ctypes.CDLL | OSError:
    """Return the library, or the error of loading it, which is logged once."""
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:  # such as a system without the OpenMP library that the kernels were built with
        _logger.warning("the packed engine is not used: %s", error)
        return error


@functools.cache
def kernels() -> ctypes.CDLL:
    """Return the library, with the types of its functions declared."""
    if not LIBRARY.exists():
        if struct.calcsize("P") != 8 or sys.byteorder != "little":
            raise RuntimeError("the packed engine is for 64-bit little-endian processors: use the masked engine")
        raise RuntimeError(
            "the packed engine's kernels were not built when selfish-rnn was installed, which takes a C++ compiler "
            "(g++ or clang++): install one and reinstall, or use the masked engine"
        )
    loaded = _opened(LIBRARY)
    if isinstance(loaded, OSError):
        raise RuntimeError(f"the packed engine's kernels cannot be loaded: {loaded}; use the masked engine") from loaded
    for name, result, arguments in abi.signatures(_description(loaded)):
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    if not loaded.selfish_threaded() and torch.get_num_threads() > 1:
        _logger.warning(
            "the packed engine uses one thread: its kernels were built without OpenMP, which g++ has and torch shares"
        )
    return loaded


def threaded() -> bool:
    """Return whether the kernels use several threads; without OpenMP (clang) they are built for one."""
    return bool(kernels().selfish_threaded())


@functools.cache
def structures() -> dict[str, type[ctypes.Structure]]:
    """Return the structures of the kernels by their names in ``kernels/abi.hpp``."""
    loaded = kernels()
    loaded.selfish_structure_sizes.restype = ctypes.POINTER(ctypes.c_int64)
    sizes = itertools.takewhile(bool, iter(loaded.selfish_structure_sizes()))
    return abi.structures(_description(loaded), list(sizes))


@functools.cache
def cell_kind(cell: str) -> int:
    """Return the number of a cell or an operation: that of ``kRnnTanh`` for ``"rnn_tanh"``."""
    return abi.enumerators(_description(kernels()))["k" + _camel_case(cell)]


def _camel_case(name: str) -> str:
    return "".join(map(str.capitalize, name.split("_")))


def _description(loaded: ctypes.CDLL) -> str:
    loaded.selfish_description.restype = ctypes.c_char_p
    text: bytes = loaded.selfish_description()
    return text.decode()


class Targets:
    """Targets of one kind of kernels, from the slowest on, and the choice among those that the processor can run."""

    def __init__(self, kind: str, names: tuple[str, ...]) -> None:
        self.names = names
        self._kind = kind
        self._chosen: int | None = None

    def current(self) -> str:
        """Return the target of the kernels in use."""
        return self.names[self._call("target")]

    def number(self) -> int:
        """Return the number of the target in use."""
        if self._chosen is None:
            self._chosen = self._call("target")
        return self._chosen

    def runnable(self) -> tuple[str, ...]:
        """Return the targets that this processor can run."""
        return tuple(name for number, name in enumerate(self.names) if self._call("target_runs", number))

    def use(self, name: str) -> None:
        """Use the kernels of another target, for instance to compare them."""
        if name not in self.runnable():
            label = f"{self._kind} kernels".strip()
            raise ValueError(f"this processor runs {label} for {', '.join(self.runnable())}, not for {name!r}")
        self._chosen = self.names.index(name)
        self._call("use_target", self._chosen)

    def _call(self, function: str, *arguments: int) -> int:
        prefix = f"selfish_{self._kind}_" if self._kind else "selfish_"
        return int(getattr(kernels(), prefix + function)(*arguments) or 0)


FLOAT = Targets("", ("portable", "avx2", "avx512"))
INT8 = Targets("int8", ("portable", "avx2", "avx-vnni", "avx512-vnni", "avx512-vbmi"))
"""Targets in the order of ``kTargets`` in the dispatchers of the kernels."""

target, targets, use_target = FLOAT.current, FLOAT.runnable, FLOAT.use


def address(pointed: Pointed | None) -> int | None:
    """Return the address of a tensor or an array, or None."""
    if pointed is None:
        return None
    return pointed.data_ptr() if isinstance(pointed, Tensor) else ctypes.addressof(pointed)


def header(index: Tensor) -> Any:
    """Return the ``IndexHeader`` of an index; it is valid as long as the tensor lives."""
    return structures()["IndexHeader"].from_address(index.data_ptr())


def run(function: str, *groups: Mapping[str, Pointed | int | None], **fields: Pointed | int | None) -> Any:
    """Call a function that takes a structure: ``run("layer_forward", ...)`` fills a ``LayerForward``.

    Numbers go into the structure as they are, of tensors and arrays where they lie; what is not given is zero or null.
    """
    kernel, slots, packed = _function_of_structure(function)
    # Eight bytes for each field, written at once: to fill a structure field by field takes longer than a small product.
    numbers = [0] * len(slots)
    for group in (*groups, fields):
        for field, value in group.items():
            if field not in slots:
                raise TypeError(f"{_camel_case(function)} has no field {field}")
            if isinstance(value, Tensor):
                numbers[slots[field]] = value.data_ptr()
            elif value is not None:
                numbers[slots[field]] = value if isinstance(value, int) else ctypes.addressof(value)
    return kernel(packed(*numbers))


@functools.cache
def _function_of_structure(function: str) -> tuple[Any, dict[str, int], Callable[..., bytes]]:
    """Return the C function, the slot of each struct field, and a packer for the struct."""
    names = list(_field_names(structures()[_camel_case(function)]))
    slots = {name: slot for slot, name in enumerate(names)}
    assert len(slots) == len(names), "two fields of one name"
    return getattr(kernels(), f"selfish_{function}"), slots, struct.Struct(f"{len(names)}q").pack


def _field_names(structure: type[ctypes.Structure]) -> Iterator[str]:
    """Yield the fields of a structure in order, with those of inner structures in their places."""
    fields: Any = structure._fields_
    for name, kind in fields:
        if issubclass(kind, ctypes.Structure):
            yield from _field_names(kind)
        else:
            yield name


def panel_floats(columns: int, features: int) -> int:
    """Return the floats that ``columns`` columns (tokens) of ``features`` features take as panels."""
    return features * (_traced_panel_columns(columns) if isinstance(columns, torch.SymInt) else _panel_columns(columns))


def step_floats(batch: int, features: int) -> int:
    """Return the floats that ``features`` features of one step of ``batch`` sequences take in a recurrent layer."""
    return features * (_traced_step_columns(batch) if isinstance(batch, torch.SymInt) else _step_columns(batch))


@functools.lru_cache(maxsize=4096)
def _panel_columns(columns: int) -> int:
    """Return the columns of all panels, including empty ones. Cached, because every step asks many times."""
    padded: int = kernels().selfish_panel_floats(columns, 1) if columns else 0
    return padded


@functools.lru_cache(maxsize=4096)
def _step_columns(batch: int) -> int:
    padded: int = kernels().selfish_step_floats(batch, 1) if batch else 0
    return padded


# Formulas for sizes that torch.compile leaves open. They make only the shapes of a trace: memory always has the size
# that the library returns.


def _traced_panel_columns(columns: int) -> int:
    widest: int = kernels().selfish_panel_width(2**20)
    count = (columns + widest - 1) // widest
    width = 1 if columns == 1 else ((columns + count - 1) // count + 7) // 8 * 8
    return width * count


def _traced_step_columns(batch: int) -> int:
    widest: int = kernels().selfish_panel_width(2**20)
    count = (batch + widest - 1) // widest
    fours = ((batch + count - 1) // count + 3) // 4
    fours += fours % 4 // 3  # a rest of three fours is filled up to four
    return 1 if batch == 1 else 4 * fours * count


_scratch = threading.local()
_MOST_WAYS_TO_CUT = 64


def workspace(**sizes: int) -> dict[str, Tensor]:
    """Return scratch memory for one call of an operator: pieces of the given numbers of floats, by name.

    The same for every call of a thread: memory that is asked for anew has to be given out by the system, page by page.
    """
    asked = tuple(sizes.items())
    cut: dict[str, Tensor] | None = getattr(_scratch, "pieces", {}).get(asked)
    if cut is None:  # cutting takes longer than a small product
        rounded = [ALIGNMENT * math.ceil(size / ALIGNMENT) for size in sizes.values()]
        pieces = torch.split(_kept_memory("work", sum(rounded))[: sum(rounded)], rounded)
        cut = {name: piece[:size] for (name, size), piece in zip(asked, pieces, strict=True)}
        if len(_scratch.pieces) == _MOST_WAYS_TO_CUT:
            _scratch.pieces.clear()
        _scratch.pieces[asked] = cut
    return cut


def transposed_scratch(*values: Tensor) -> Tensor:
    """Return memory for the values of any of these matrices in transposed order; all calls of a thread share it."""
    return _kept_memory("transposed", max(map(len, values)))


def forget_workspace() -> None:
    """Free the scratch memory of this thread; the next operator allocates it again."""
    vars(_scratch).clear()


def _kept_memory(purpose: str, floats: int) -> Tensor:
    memory: Tensor | None = getattr(_scratch, purpose, None)
    if memory is None or len(memory) < floats:
        memory = torch.empty(floats, dtype=torch.float32, device="cpu")  # whatever torch's defaults are
        setattr(_scratch, purpose, memory)
        _scratch.pieces = {}
    return memory
