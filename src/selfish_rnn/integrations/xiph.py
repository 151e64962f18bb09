"""Export to the neural network code of xiph: the weight files of RNNoise and Opus, or C arrays.

The format stores int8 weights in blocks of 8 rows and 4 columns, so train with ``granularity="8x4"``. It has no file
description of its own; the facts are those of ``nnet.c``, ``vec.h`` and ``parse_lpcnet_weights.c`` in RNNoise:

- A file is a sequence of records. A record is a header of 64 bytes and the data, filled up with zeros to a multiple of
  64 bytes. The header is ``DNNw``, version 0, type, bytes used, bytes stored, and a name of at most 43 letters.
- A layer NAME has the arrays ``NAME_bias``, ``NAME_subias``, ``NAME_weights_int8``, ``NAME_weights_idx`` if only some
  blocks exist, ``NAME_weights_diag`` if the diagonal is apart, and ``NAME_scale``; or ``NAME_weights_float``.
- ``weights_idx`` has for each group of 8 rows the number of its blocks and the first column of each. A block is stored
  row after row.
- An input x is rounded to ``floor(0.5 + 127 x)``, so it must lie in [-1, 1], and ``scale`` contains 1/127. On x86 127
  is added to make it unsigned, and ``subias`` is the bias without what that adds.
- The gates of a GRU are in the order update, reset, candidate (torch: reset, update, candidate).
"""

from __future__ import annotations

import copy
import re
import struct
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from selfish_rnn.engine import unpack
from selfish_rnn.files import write_atomically

Floats = npt.NDArray[np.float32]
Whole = npt.NDArray[np.int64]

BLOCK = (8, 4)
"""Rows and columns of a block."""

_RECORD = struct.Struct("<4siiii44s")
_ALIGNMENT = 64
_TYPES = {np.dtype(np.float32): 0, np.dtype(np.int32): 1, np.dtype(np.int8): 3}
_C_TYPES = {0: ("float", "WEIGHT_TYPE_float"), 1: ("int", "WEIGHT_TYPE_int"), 3: ("opus_int8", "WEIGHT_TYPE_int8")}

_LONGEST_NAME = 43
_LARGEST_PAIR = 129
"""Largest sum of two weights whose products with 254 do not overflow the 16 bits in which x86 adds them."""


@dataclass(frozen=True)
class XiphLayer:
    """One layer of an export: its matrix, and its arrays by name."""

    name: str
    inputs: int
    outputs: int
    blocks: int
    arrays: Mapping[str, npt.NDArray[np.generic]]

    @property
    def is_table(self) -> bool:
        """True for an embedding, whose rows are read unchanged."""
        return set(self.arrays) == {f"{self.name}_weights_float"}

    @property
    def sparse(self) -> bool:
        """True if only some blocks are stored."""
        return f"{self.name}_weights_idx" in self.arrays

    @property
    def quantized(self) -> bool:
        """True if the weights are int8."""
        return f"{self.name}_weights_int8" in self.arrays

    @property
    def bytes(self) -> int:
        """Bytes of its arrays."""
        return sum(array.nbytes for array in self.arrays.values())

    def init(self) -> str:
        """Return the call of ``linear_init`` that reads the layer."""

        def quoted(suffix: str) -> str:
            return f'"{self.name}_{suffix}"' if f"{self.name}_{suffix}" in self.arrays else "NULL"

        suffixes = ("bias", "subias", "weights_int8", "weights_float", "weights_idx", "weights_diag", "scale")
        names = ", ".join(map(quoted, suffixes))
        return f"linear_init(&model->{self.name}, arrays, {names}, {self.inputs}, {self.outputs})"


def export_xiph(
    model: nn.Module, path: str | PathLike[str], names: Mapping[str, str] | None = None, precision: str = "int8"
) -> list[XiphLayer]:
    """Write the ``nn.GRU``, ``nn.Linear`` and ``nn.Conv1d`` layers of a model for xiph's runtime.

    An ``nn.Embedding`` is written as an array of floats, one row for each entry.

    A path that ends in ``.c`` gets C arrays, with the structure of the model and its ``init`` function in a ``.h`` file
    of the same name. Any other path gets a weight file. A matrix is written as floats, as xiph does, if its rows are no
    multiple of 8 or its columns no multiple of 4.

    Args:
        model: a model, masked or packed. Every module with weights must be of these types.
        path: the file to write.
        names: names of layers in the file, by the names of their modules. By default ``a.b`` becomes ``a_b``, and
            ``0`` becomes ``layer_0``.
        precision: ``"int8"``, or ``"float32"`` to write all weights as floats.

    Returns:
        The layers, in the order of the model: a GRU is two, ``NAME_input`` and ``NAME_recurrent``.

    Example:
        >>> model = nn.Sequential(nn.GRU(16, 24), nn.Linear(24, 8))
        >>> layers = export_xiph(model, "weights.bin", names={"0": "gru", "1": "out"})
        >>> [layer.name for layer in layers]
        ['gru_input', 'gru_recurrent', 'out']
    """
    if precision not in ("int8", "float32"):
        raise ValueError(f'precision must be "int8" or "float32", got {precision!r}')
    layers = list(_layers(unpack(copy.deepcopy(model)), dict(names or {}), precision == "int8"))
    arrays: dict[str, npt.NDArray[np.generic]] = {}
    for layer in layers:
        for name, array in layer.arrays.items():
            if len(name) > _LONGEST_NAME:
                raise ValueError(f"{name!r} has more than {_LONGEST_NAME} letters: shorten {layer.name} by names=")
            if name in arrays:
                raise ValueError(f"two layers are called {layer.name}: rename one of them by names=")
            arrays[name] = array
    target = Path(path)
    if target.suffix == ".c":
        if not re.fullmatch(r"[A-Za-z_]\w*", target.stem):
            raise ValueError(f"{target.name} gives the structure in C its name: use letters, digits and _ only")
        write_atomically(target, _c_source(target, arrays, layers).encode())
        write_atomically(target.with_suffix(".h"), _c_header(target, layers).encode())
    else:
        write_atomically(target, b"".join(_record(name, array) for name, array in arrays.items()))
    return layers


# Layers of torch as linear layers of xiph


def _layers(model: nn.Module, names: dict[str, str], quantize: bool) -> Iterator[XiphLayer]:
    exported = False
    for path, module in model.named_modules():
        parameters = [name for name, parameter in module.named_parameters(recurse=False) if parameter.ndim]
        if not parameters:
            continue
        exported = True
        default = re.sub(r"\W", "_", path) or type(module).__name__.lower()
        name = names.pop(path, f"layer_{default}" if default[0].isdigit() else default)
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise ValueError(f"{name!r} cannot be a name in C: use letters, digits and _ only in names=")
        if isinstance(module, nn.GRU):
            yield from _gru(name, module, quantize)
        elif isinstance(module, nn.Linear):
            yield _linear(name, _numbers(module.weight), _bias(module.bias, module.out_features), quantize)
        elif isinstance(module, nn.Conv1d):
            yield _convolution(name, module, quantize)
        elif isinstance(module, nn.Embedding):
            # xiph has no such layer; the row of an entry is read from the array.
            rows = np.ascontiguousarray(_numbers(module.weight))
            yield XiphLayer(name, module.num_embeddings, module.embedding_dim, 0, {f"{name}_weights_float": rows})
        else:
            raise ValueError(
                f"{path or 'the model'} is of type {type(module).__name__}, which xiph's runtime does not have: it has "
                "GRU, Linear and Conv1d layers; export the modules that are of these types"
            )
    if names:
        raise ValueError(f"names= has {', '.join(map(repr, names))}, which are no modules with weights")
    if not exported:
        raise ValueError("the model has no weights to export")


def _gru(name: str, module: nn.GRU, quantize: bool) -> Iterator[XiphLayer]:
    if module.bidirectional:
        raise ValueError(f"{name} is bidirectional, and a stream has one direction")
    for index in range(module.num_layers):
        layer = name if module.num_layers == 1 else f"{name}{index + 1}"
        for part, suffix in (("input", "ih"), ("recurrent", "hh")):
            weight = _zrh(_numbers(getattr(module, f"weight_{suffix}_l{index}")))
            bias = _zrh(_bias(getattr(module, f"bias_{suffix}_l{index}", None), len(weight)))
            yield _linear(f"{layer}_{part}", weight, bias, quantize, diagonal=part == "recurrent")


def _zrh(rows: Floats) -> Floats:
    """Return the rows of reset, update, candidate in the order update, reset, candidate."""
    reset, update, candidate = np.split(rows, 3)
    return np.concatenate([update, reset, candidate])


def _convolution(name: str, module: nn.Conv1d, quantize: bool) -> XiphLayer:
    if module.groups != 1 or module.dilation != (1,) or module.stride != (1,) or module.padding not in ((0,), "valid"):
        raise ValueError(
            f"{name} is a convolution with groups, dilation, stride or padding, which xiph's runtime does not have"
        )
    # The memory of a stream holds whole frames, the oldest first, so columns go by time and then by channel.
    weight = _numbers(module.weight).transpose(0, 2, 1).reshape(module.out_channels, -1)
    return _linear(name, weight, _bias(module.bias, module.out_channels), quantize)


def _numbers(tensor: Tensor) -> Floats:
    return tensor.detach().to("cpu", torch.float32).numpy()


def _bias(bias: Tensor | None, rows: int) -> Floats:
    return np.zeros(rows, dtype=np.float32) if bias is None else _numbers(bias)


# Matrices as arrays


def _linear(name: str, weight: Floats, bias: Floats, quantize: bool, diagonal: bool = False) -> XiphLayer:
    """Return a matrix as a layer: in blocks if some are empty, else whole; without its diagonal if that is apart."""
    rows, columns = weight.shape
    if not np.isfinite(weight).all() or not np.isfinite(bias).all():
        raise ValueError(f"{name} has NaN or infinite weights")
    arrays: dict[str, npt.NDArray[np.generic]] = {f"{name}_bias": bias}
    fits = rows % BLOCK[0] == 0 and columns % BLOCK[1] == 0
    existing, kept_apart = _existing_blocks(weight, diagonal) if fits else (None, None)
    sparse = existing is not None and not existing.all()
    if sparse and kept_apart is not None:
        arrays[f"{name}_weights_diag"] = kept_apart.sum(1, dtype=np.float32)
        weight = weight - kept_apart
    if sparse:
        assert existing is not None
        arrays[f"{name}_weights_idx"] = _index(existing)
        _warn_of_single_weights(name, weight, existing)
    blocks = int(existing.sum()) if sparse and existing is not None else rows * columns // (BLOCK[0] * BLOCK[1])
    if not quantize or not fits:
        stored = _in_blocks(weight, existing, by_column=True) if sparse and existing is not None else weight.T
        arrays[f"{name}_weights_float"] = np.ascontiguousarray(stored, dtype=np.float32)
        return XiphLayer(name, columns, rows, blocks, arrays)
    rounded, scale = _quantized(weight)
    everywhere = np.ones((rows // BLOCK[0], columns // BLOCK[1]), dtype=np.bool_)
    arrays[f"{name}_weights_int8"] = _in_blocks(rounded, existing if sparse else everywhere).astype(np.int8)
    arrays[f"{name}_scale"] = (scale / 127).astype(np.float32)
    arrays[f"{name}_subias"] = (bias - rounded.sum(1) * scale).astype(np.float32)
    return XiphLayer(name, columns, rows, blocks, arrays)


def _existing_blocks(weight: Floats, diagonal: bool) -> tuple[npt.NDArray[np.bool_], Floats | None]:
    """Return the blocks that are not zero, and the diagonals of a recurrent matrix alone."""
    rows, columns = weight.shape
    apart = None
    if diagonal:
        apart = np.where(np.arange(rows)[:, None] % columns == np.arange(columns), weight, 0).astype(np.float32)
    remainder = weight if apart is None else weight - apart
    grid = remainder.reshape(rows // BLOCK[0], BLOCK[0], columns // BLOCK[1], BLOCK[1])
    existing: npt.NDArray[np.bool_] = np.any(grid != 0, axis=(1, 3))
    existing[0, 0] |= not existing.any()  # xiph's reader refuses empty arrays
    return existing, apart


def _quantized(weight: Floats) -> tuple[Whole, npt.NDArray[np.float64]]:
    """Return the rounded weights and a scale for every row, at which two neighbours never overflow 16 bits."""
    exact = weight.astype(np.float64)
    pairs = np.abs(exact[:, ::2] + exact[:, 1::2]).max(1)
    scale = np.maximum(np.abs(exact).max(1) / 127, pairs / _LARGEST_PAIR)
    scale[scale == 0] = 1 / 127
    rounded = np.round(exact / scale[:, None]).astype(np.int64)
    # Two weights may round up to one more than the largest sum, so the scale of such a row grows a little.
    while (over := np.abs(rounded[:, ::2] + rounded[:, 1::2]).max(1) > _LARGEST_PAIR).any():
        scale[over] *= 1.002
        rounded[over] = np.round(exact[over] / scale[over, None]).astype(np.int64)
    return rounded, scale


def _index(existing: npt.NDArray[np.bool_]) -> npt.NDArray[np.int32]:
    """Return for every group of rows the number of its blocks, and the first column of each."""
    groups = [np.flatnonzero(group) * BLOCK[1] for group in existing]
    return np.concatenate([np.concatenate([[len(columns)], columns]) for columns in groups]).astype(np.int32)


def _in_blocks(
    weight: npt.NDArray[np.generic], existing: npt.NDArray[np.bool_] | None, by_column: bool = False
) -> npt.NDArray[np.generic]:
    """Return the weights of the existing blocks, block after block, each by rows or by columns."""
    rows, columns = weight.shape
    grid = weight.reshape(rows // BLOCK[0], BLOCK[0], columns // BLOCK[1], BLOCK[1])
    blocks = grid.transpose(0, 2, 3, 1) if by_column else grid.transpose(0, 2, 1, 3)
    return blocks[existing].reshape(-1)


def _warn_of_single_weights(name: str, weight: Floats, existing: npt.NDArray[np.bool_]) -> None:
    stored, needed = int(existing.sum()) * BLOCK[0] * BLOCK[1], int(np.count_nonzero(weight))
    if needed < stored / 2:
        warnings.warn(
            f"the {needed:,} weights of {name} lie in blocks of 8x4 that hold {stored:,}, and all of these are stored: "
            'train with granularity="8x4"',
            stacklevel=4,
        )


# Files


def _record(name: str, array: npt.NDArray[np.generic]) -> bytes:
    data = array.astype(array.dtype.newbyteorder("<")).tobytes()
    stored = -(-len(data) // _ALIGNMENT) * _ALIGNMENT
    header = _RECORD.pack(b"DNNw", 0, _TYPES[array.dtype], len(data), stored, name.encode("ascii"))
    return header + data.ljust(stored, b"\0")


def _c_source(path: Path, arrays: Mapping[str, npt.NDArray[np.generic]], layers: Sequence[XiphLayer]) -> str:
    lines = [f'#include "{path.with_suffix(".h").name}"', "", "#include <stddef.h>", ""]
    for name, array in arrays.items():
        kind, _ = _C_TYPES[_TYPES[array.dtype]]
        written = [f"{value:.9g}" if kind == "float" else str(value) for value in array.reshape(-1).tolist()]
        rows = [", ".join(written[start : start + 8]) for start in range(0, len(written), 8)]
        lines += [f"static const {kind} {name}[{array.size}] = {{", "   " + ",\n   ".join(rows), "};", ""]
    lines.append(f"const WeightArray {path.stem}_arrays[] = {{")
    for name, array in arrays.items():
        lines.append(f'   {{"{name}", {_C_TYPES[_TYPES[array.dtype]][1]}, sizeof({name}), {name}}},')
    lines += ["   {NULL, 0, 0, NULL}", "};", "", f"int init_{path.stem}({path.stem} *model, const WeightArray *arrays)"]
    calls = [f"   if ({layer.init()}) return 1;" for layer in layers if not layer.is_table]
    lines += ["{", *calls, "   return 0;", "}", ""]
    return "\n".join(lines)


def _c_header(path: Path, layers: Sequence[XiphLayer]) -> str:
    guard = f"{path.stem.upper()}_H"
    sizes = [f"#define {layer.name.upper()}_OUT_SIZE {layer.outputs}" for layer in layers]
    sizes += [f"#define {layer.name.upper()}_IN_SIZE {layer.inputs}" for layer in layers]
    return "\n".join(
        [
            *(f"#ifndef {guard}", f"#define {guard}", "", '#include "nnet.h"', "", *sizes, ""),
            *(
                "typedef struct {",
                *(f"   LinearLayer {layer.name};" for layer in layers if not layer.is_table),
                f"}} {path.stem};",
                "",
            ),
            f"extern const WeightArray {path.stem}_arrays[];",
            *(f"int init_{path.stem}({path.stem} *model, const WeightArray *arrays);", "", "#endif", ""),
        ]
    )
