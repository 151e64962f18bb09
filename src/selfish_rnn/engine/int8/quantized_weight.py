"""Sparse weight matrix in int8: one byte for each existing weight, one scale for each row."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from selfish_rnn.engine import library
from selfish_rnn.engine.index import Known
from selfish_rnn.engine.int8 import targets
from selfish_rnn.engine.library import address
from selfish_rnn.engine.parameters import read_only, save_once
from selfish_rnn.topology import Topology
from selfish_rnn.topology.layout import POSITIONS, SCALES, VALUES, key, read_sparse, sparse_tensors, stored_keys

MOST_COLUMNS = 65535
"""Most columns of an int8 matrix: the start of a window has 16 bits, and sums stay below 31 bits."""

_LARGE_PAGE = 1 << 21
"""Bytes of a large page."""

_SMALLEST = 1e-30
"""Rows with smaller weights only become empty."""

_known = Known[tuple[int, tuple[int, int]]]()
"""Target and shape of every matrix in windows that was laid out or checked here. Others are refused."""


def windows_shape(windows: Tensor) -> tuple[int, int]:
    """Return rows and columns of a matrix in windows, which must be laid out for the kernels in use.

    What was not laid out here, such as a copy, is checked whole the first time, and again after it has changed.
    """
    laid_out, shape = _known.get(windows) or _checked(windows)
    if laid_out != targets.in_use():
        raise ValueError("this int8 matrix is laid out for other kernels than those in use: ask weight.windows anew")
    return shape


def _checked(windows: Tensor) -> tuple[int, tuple[int, int]]:
    plain = windows.layout == torch.strided and windows.dtype == torch.uint8 and windows.is_cpu and windows.ndim == 1
    placed = plain and windows.is_contiguous() and len(windows) > 0 and windows.data_ptr() % 64 == 0
    if placed and library.kernels().selfish_windows_valid(address(windows), len(windows)):
        header = library.structures()["WindowsHeader"].from_address(windows.data_ptr())
        return _known.remember(windows, (targets.in_use(), (header.rows, header.columns)))
    raise ValueError(
        "these bytes are no int8 matrix, or were changed since it was laid out: give weight.windows of a "
        "QuantizedWeight"
    )


def quantized_weights(model: nn.Module) -> dict[str, QuantizedWeight]:
    """Return the int8 weights of a model by their first names, those of the dense weights."""
    return {name: module for name, module in model.named_modules() if isinstance(module, QuantizedWeight)}


class QuantizedWeight(nn.Module):
    """Existing weights of a matrix as whole numbers from -127 to 127: ``W[r, k] ~ scale[r] * value``.

    ::

        weight = QuantizedWeight.from_dense(matrix)     # scale[r] = max |W[r]| / 127
        (weight.to_dense() - matrix).abs().amax(1)      # at most half of scale

    A weight that rounds to zero is dropped. The matrix is laid out for the processor at hand; its ``state_dict`` is the
    same on all: ``values`` in the order of their positions, ``positions`` or ``bits``, ``scales``. It is for inference
    only.

    Args:
        shape: rows and columns.
        positions: sorted row-major positions of the weights that exist.
        values: int8, of these weights in that order, none zero.
        scale: float32, of each row.
        together: number of weights of all matrices of the model. If they exceed a cache, this one is laid out in fewer
            bytes; results do not depend on it.
    """

    def __init__(
        self, shape: Sequence[int], positions: Tensor, values: Tensor, scale: Tensor, together: int = 0
    ) -> None:
        super().__init__()
        self.together = together
        rows, columns = shape
        self.shape = (int(rows), int(columns))
        self.training = False
        self.assign(positions, values, scale)

    @classmethod
    def from_dense(cls, matrix: Tensor) -> QuantizedWeight:
        """Round the nonzero weights of a matrix."""
        positions = matrix.detach().flatten().nonzero().flatten()
        return cls.rounded(matrix.shape, positions, matrix.detach().flatten()[positions])

    @classmethod
    def rounded(cls, shape: Sequence[int], positions: Tensor, values: Tensor, together: int = 0) -> QuantizedWeight:
        """Round weights at sorted row-major positions to int8."""
        return cls(shape, *rounded(shape, positions, values), together)

    def assign(self, positions: Tensor, values: Tensor, scale: Tensor | None) -> None:
        """Take these int8 weights at these sorted row-major positions, with a scale for each row."""
        if scale is None:
            raise ValueError(f"int8 weights have scales, and these are {values.dtype}: quantize the model they are of")
        check_weights(self.shape, positions, values, scale)
        self._lay_out(positions, values, scale)

    def _lay_out(self, positions: Tensor, values: Tensor, scale: Tensor) -> None:
        kernels = library.kernels()
        rows, columns = self.shape
        parts = {
            "first": torch.searchsorted(positions, torch.arange(rows + 1) * columns),
            "column": (positions % columns).to(torch.uint16),
            "value": values.contiguous(),
            "scale": scale.contiguous(),
        }
        pointers = {name: address(tensor) for name, tensor in parts.items()}
        numbers = {"rows": rows, "columns": columns, "count": len(values), "together": self.together}
        weights = library.structures()["Int8Weights"](**numbers, **pointers)
        windows = _fresh_memory(kernels.selfish_windows_bytes(ctypes.addressof(weights)))
        kernels.selfish_windows_build(ctypes.addressof(weights), address(windows))
        self._windows, self._laid_out = windows, targets.in_use()
        _known.remember(windows, (self._laid_out, self.shape))
        self.count = len(values)

    @property
    def windows(self) -> Tensor:
        """Bytes of the matrix in the layout of the kernels in use."""
        if self._laid_out != targets.in_use():
            self._lay_out(*self.weights())
        return self._windows

    def weights(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the sorted positions of the weights, their int8 values and the scale of each row."""
        rows, columns = self.shape
        if _known.get(self._windows) is None:
            raise ValueError("the bytes of this int8 weight were changed from outside: load its state_dict again")
        first = torch.empty(rows + 1, dtype=torch.int64)
        column, values = torch.empty(self.count, dtype=torch.uint16), torch.empty(self.count, dtype=torch.int8)
        scale = torch.empty(rows)
        parts = (first, column, values, scale)
        library.kernels().selfish_windows_weights(address(self._windows), *map(address, parts))
        row = torch.repeat_interleave(torch.arange(rows), first.diff())
        return row * columns + column.to(torch.int64), values, scale

    def to_dense(self) -> Tensor:
        """Return the dense matrix in single precision."""
        positions, values, scale = self.weights()
        flat = torch.zeros(self.shape).flatten()
        flat[positions] = values.to(torch.float32) * scale[positions // self.shape[1]]
        return flat.view(self.shape)

    @property
    def data(self) -> Tensor:
        """Dense, read-only copy of the matrix in single precision."""
        return read_only(self.to_dense())

    @property
    def density(self) -> float:
        return self.count / (self.shape[0] * self.shape[1])

    @property
    def bytes(self) -> int:
        """Bytes in memory."""
        return len(self.windows)

    @property
    def values(self) -> Tensor:
        raise RuntimeError("an int8 weight has no values in single precision: to_dense() makes the whole matrix")

    def extra_repr(self) -> str:
        rows, columns = self.shape
        return f"{rows} x {columns}, {self.count} int8 weights, density {self.density:.3f}"

    def train(self, mode: bool = True) -> QuantizedWeight:
        if mode:
            raise RuntimeError(
                "int8 weights are for inference and cannot be trained: train the packed model and quantize a copy of it"
            )
        return super().train(mode)

    # State

    def __getstate__(self) -> dict[str, Any]:
        """Return the weights in place of their layout, which depends on the processor."""
        state = {name: value for name, value in self.__dict__.items() if name not in ("_windows", "_laid_out")}
        return {**state, "weights": self.weights()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        weights = state.pop("weights")
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        check_weights(self.shape, *weights)
        self._lay_out(*weights)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        save_once(self, destination, prefix, self.tensors)

    def tensors(self, name: str) -> dict[str, Tensor]:
        """Return the tensors that store the weight under a name."""
        positions, values, scale = self.weights()
        return sparse_tensors(name, Topology.plain(self.shape, positions), values, scale)

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Load weights of any topology: they are laid out anew."""
        name = prefix.removesuffix(".")
        stored = stored_keys(state_dict, name)
        if strict:
            unexpected_keys += [key for key in state_dict if key.startswith(prefix) and key not in stored]
        if not stored:
            missing_keys += [key(name, VALUES), key(name, POSITIONS), key(name, SCALES)] if strict else []
            return
        try:
            self.assign(*read_sparse(state_dict, name, self.shape))
        except ValueError as error:
            error_msgs.append(f"{name}: {error}")


def _fresh_memory(size: int) -> Tensor:
    """Return fresh memory that starts with a large page if it is large enough."""
    if size < _LARGE_PAGE or not hasattr(mmap, "MAP_ANONYMOUS"):
        return torch.empty(size, dtype=torch.uint8)
    # What torch gives may have been in use before, in small pages.
    memory = mmap.mmap(-1, size + _LARGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    room = torch.frombuffer(memory, dtype=torch.uint8)
    begin = -room.data_ptr() % _LARGE_PAGE
    return room[begin : begin + size]


def rounded(shape: Sequence[int], positions: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the positions of weights that do not round to zero, their int8 values and the scale of each row."""
    rows, columns = shape
    values = values.detach().to(torch.float32)
    if not bool(torch.isfinite(values).all()):
        raise ValueError("weights that are not finite cannot be rounded to int8")
    row = positions // columns
    largest = torch.zeros(rows).scatter_reduce_(0, row, values.abs(), "amax")
    scale = torch.where(largest < _SMALLEST, 0.0, largest / 127)
    numbers = torch.where(scale[row] > 0, values / scale[row], 0.0).round().clamp(-127, 127).to(torch.int8)
    nonzero = numbers != 0
    return positions[nonzero], numbers[nonzero], scale


def check_weights(shape: tuple[int, int], positions: Tensor, values: Tensor, scale: Tensor) -> None:
    """Raise an error for weights that no kernel may read."""
    rows, columns = shape
    if min(shape) < 1 or columns > MOST_COLUMNS:
        raise ValueError(f"an int8 matrix has at least one row and from 1 to {MOST_COLUMNS} columns, not {shape}")
    if values.dtype != torch.int8 or scale.dtype != torch.float32:
        raise ValueError(f"int8 weights are int8 with a float32 scale, not {values.dtype} with {scale.dtype}")
    if values.shape != positions.shape or values.ndim != 1 or scale.shape != (rows,):
        raise ValueError(
            f"an int8 matrix of {shape} with {len(positions)} weights cannot have values of shape "
            f"{tuple(values.shape)} and a scale of shape {tuple(scale.shape)}"
        )
    if bool((values == 0).any()) or bool((values == -128).any()):
        raise ValueError("int8 weights are from -127 to 127 and never zero")
    if not bool((torch.isfinite(scale) & (scale >= 0)).all()):
        raise ValueError("the scales of an int8 matrix are finite and not negative")
    ordered = len(positions) == 0 or (
        int(positions[0]) >= 0 and int(positions[-1]) < rows * columns and bool((positions.diff() > 0).all())
    )
    if not ordered:
        raise ValueError(f"positions must be sorted, different and from 0 to {rows * columns - 1}")
