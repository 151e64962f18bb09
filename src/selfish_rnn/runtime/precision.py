"""The precision of every matrix of a program, and its layout: dense where that is the faster one."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from selfish_rnn.engine.int8.quantized_weight import QuantizedWeight
from selfish_rnn.engine.packed_weight import PackedWeight
from selfish_rnn.runtime.program import Matrix, Precision

LayerPrecision = Literal["float32", "int8", "int8-weights"]
"""Precision of a matrix: ``int8`` rounds weights and activations, ``int8-weights`` the weights only."""

LAYER_PRECISIONS: tuple[LayerPrecision, ...] = ("float32", "int8", "int8-weights")

DENSE_FROM = 0.95
"""Density from which a float32 matrix is stored dense. Its layout in memory, the faster one, is chosen on loading."""


@dataclass(frozen=True)
class LayerReport:
    """One matrix of a stream: its name, shape and existing weights, its precision, and what rounding changes.

    ``error`` is the root mean square of the rounding errors of the weights, divided by that of the weights.
    """

    name: str
    shape: tuple[int, int]
    weights: int
    precision: LayerPrecision
    error: float


class Precisions:
    """The choice of a precision for every matrix, by the names of layers.

    Args:
        choice: one precision for all matrices, or a mapping from patterns (as in :mod:`fnmatch`) of the names of
            modules or weights to precisions. The first pattern that matches a matrix counts; a matrix that none matches
            stays in float32.
    """

    def __init__(self, choice: LayerPrecision | Mapping[str, LayerPrecision]) -> None:
        self._patterns = {"*": choice} if isinstance(choice, str) else dict(choice)
        for pattern, precision in self._patterns.items():
            if precision not in LAYER_PRECISIONS:
                known = ", ".join(map(repr, LAYER_PRECISIONS))
                raise ValueError(f"the precision of {pattern!r} must be one of {known}, not {precision!r}")
        self._unused = set(self._patterns) - {"*"}
        self._made: dict[tuple[Any, ...], tuple[Any, Matrix]] = {}
        self.weights: dict[str, Any] = {}
        self.reports: dict[str, LayerReport] = {}

    def __call__(self, name: str, weight: Any) -> tuple[Matrix, Precision]:
        """Return a matrix as the program multiplies with it, and the precision of its activations."""
        precision = self._of(name)
        if isinstance(weight, QuantizedWeight) and precision == "float32":
            precision = "int8"  # its float32 values are gone
        if isinstance(weight, Tensor):
            weight = weight.detach().to(torch.float32)
            key: tuple[Any, ...] = (weight.data_ptr(), tuple(weight.shape), weight.stride(), precision)
        else:
            key = (id(weight), precision)
        if key not in self._made:
            # With the weight itself, whose address is not used again while it is here.
            self._made[key] = weight, _laid_out(weight, precision)
            self.weights.setdefault(name, weight)
            self.reports.setdefault(name, _report(name, weight, self._made[key][1], precision))
        return self._made[key][1], "int8" if precision == "int8" else "float32"

    def check_patterns(self) -> None:
        """Raise an error if a pattern matches no matrix of the program."""
        if self._unused:
            pattern, known = sorted(self._unused)[0], ", ".join(self.reports) or "none"
            raise ValueError(f"no matrix or module is named {pattern!r}; the matrices are {known}")

    def _of(self, name: str) -> LayerPrecision:
        module = name.rpartition(".")[0]
        for pattern, precision in self._patterns.items():
            if fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(module, pattern):
                self._unused.discard(pattern)
                return precision
        return "float32"


def _laid_out(weight: Any, precision: LayerPrecision) -> Matrix:
    """Return a matrix in a precision, stored dense or sparse, whichever is smaller."""
    if isinstance(weight, QuantizedWeight):
        return weight
    rows, columns = weight.shape
    if precision != "float32":
        if isinstance(weight, Tensor):
            return QuantizedWeight.from_dense(weight)
        positions, places = weight.sorted()
        return QuantizedWeight.rounded(weight.shape, positions, weight.values.detach()[places])
    if isinstance(weight, PackedWeight):
        return weight.to_dense().detach() if weight.count >= DENSE_FROM * rows * columns else weight
    dense = int(torch.count_nonzero(weight)) >= DENSE_FROM * rows * columns
    return weight.contiguous() if dense else PackedWeight.from_dense(weight)


def _report(name: str, weight: Any, matrix: Matrix, precision: LayerPrecision) -> LayerReport:
    rows, columns = (int(size) for size in weight.shape)
    count = int(torch.count_nonzero(weight)) if isinstance(weight, Tensor) else int(weight.count)
    error = 0.0
    if isinstance(matrix, QuantizedWeight) and not isinstance(weight, QuantizedWeight):
        before = weight if isinstance(weight, Tensor) else weight.to_dense().detach()
        error = float((matrix.to_dense() - before).norm() / before.norm().clamp(min=1e-30))
    return LayerReport(name, (rows, columns), count, precision, error)
