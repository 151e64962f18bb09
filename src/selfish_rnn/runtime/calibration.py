"""The precision that each matrix of a model bears, measured on data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from selfish_rnn.engine.int8.quantized_weight import QuantizedWeight
from selfish_rnn.engine.packed_weight import PackedWeight
from selfish_rnn.runtime.precision import LayerPrecision, Precisions
from selfish_rnn.runtime.program import Program
from selfish_rnn.runtime.reference import ReferenceStream, rounded_activations
from selfish_rnn.runtime.translation import Call, checked_inputs, evaluating, step_inputs, translate, understand


@dataclass(frozen=True)
class LayerError:
    """Error of the products of one matrix by rounding: root mean square of the errors over that of the products.

    ``int8`` rounds weights and activations, ``int8_weights`` the weights only. ``largest_input`` is the largest
    activation, ``precision`` the cheapest precision within the tolerance.
    """

    name: str
    shape: tuple[int, int]
    largest_input: float
    int8: float
    int8_weights: float
    precision: LayerPrecision


class Calibration(Mapping[str, LayerPrecision]):
    """A precision for every matrix of a model, by name; ``stream(..., precision=calibration)`` uses it.

    ``print(calibration)`` shows the errors of every layer.
    """

    def __init__(self, layers: Iterable[LayerError]) -> None:
        self.layers = {layer.name: layer for layer in layers}

    def __getitem__(self, name: str) -> LayerPrecision:
        return self.layers[name].precision

    def __iter__(self) -> Iterator[str]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)

    def __str__(self) -> str:
        head = ["matrix", "rows x columns", "largest input", "error in int8", "of int8 weights only", "precision"]
        rows = [
            [
                layer.name,
                f"{layer.shape[0]} x {layer.shape[1]}",
                f"{layer.largest_input:.3g}",
                f"{layer.int8:.2%}",
                f"{layer.int8_weights:.2%}",
                layer.precision,
            ]
            for layer in self.layers.values()
        ]
        widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in (head, *rows)]
        return "\n".join(line.rstrip() for line in lines)


def calibrate(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    tolerance: float = 0.03,
    steps: int = 256,
    state: Any = None,
    time_axis: int | None = None,
) -> Calibration:
    """Measure the error of int8 in every layer on data, and choose the precision of each.

    ::

        calibration = selfish_rnn.calibrate(model, batches)
        print(calibration)                                             # errors by layer
        stream = selfish_rnn.stream(model, example, precision=calibration)

    int8 activations share one scale in every vector, the largest number over 127. States of LSTMs and GRUs lie between
    -1 and 1 and lose little. Inputs, ReLU outputs and sums are not bounded: one large number leaves the small ones few
    levels, and the layer that multiplies them needs float32 activations.

    Args:
        model: float32 model, dense, masked or packed; it is not changed.
        batches: inputs of the model's forward (or tuples of several inputs), as the model meets them in use.
        tolerance: largest error of a layer, relative to the root mean square of its products.
        steps: number of steps to measure in all.
        state: initial state, as in :func:`~selfish_rnn.stream`.
        time_axis: axis of time, as in :func:`~selfish_rnn.stream`.

    Returns:
        The precision of every matrix: ``int8`` within the tolerance, else ``int8-weights`` within the tolerance, else
        ``float32``.
    """
    meters: dict[str, _Meter] = {}
    stream: _MeteredStream | None = None
    axis, left = time_axis, steps
    with evaluating(model):
        for batch in batches:
            call = understand(model, checked_inputs(model, batch), state, axis)
            if stream is None:
                choice = Precisions("float32")
                program = translate(call, choice)
                if any(report.precision != "float32" for report in choice.reports.values()):
                    raise ValueError("calibrate needs the float32 model: weights of this one are int8 already")
                stream, axis = _MeteredStream(program, choice.weights, meters), call.axis
            left -= _run(stream, call, left)
            if left <= 0:
                break
    if stream is None:
        raise ValueError("calibrate needs at least one batch")
    return Calibration(meter.result(name, tolerance) for name, meter in meters.items())


def _run(stream: _MeteredStream, call: Call, limit: int) -> int:
    """Run a stream over a sequence and return the number of steps."""
    count = min(call.steps, limit)
    stream.reset()
    for step in range(count):
        stream.step(step_inputs(call, step))
    return count


class _Meter:
    """Sums of squares of products and of their errors."""

    def __init__(self, weight: Any) -> None:
        dense = weight.to_dense() if isinstance(weight, PackedWeight) else weight
        self._exact = dense.detach().to(torch.float32)
        self._rounded = QuantizedWeight.from_dense(self._exact).to_dense()
        self._sums = torch.zeros(3, dtype=torch.float64)
        self._largest = 0.0

    def add(self, x: Tensor) -> None:
        """Add the products of some vectors."""
        scale, q = rounded_activations(x)
        exact = x @ self._exact.T
        errors = q * scale @ self._rounded.T - exact, x @ self._rounded.T - exact
        self._sums += torch.stack([exact, *errors]).double().square().sum((1, 2))
        self._largest = max(self._largest, float(x.abs().max()))

    def result(self, name: str, tolerance: float) -> LayerError:
        """Return the errors, and the precision they allow."""
        total, both, weights = self._sums.tolist()
        int8, int8_weights = (math.sqrt(errors / total) if total else 0.0 for errors in (both, weights))
        precision: LayerPrecision = "float32"
        if int8 <= tolerance:
            precision = "int8"
        elif int8_weights <= tolerance:
            precision = "int8-weights"
        rows, columns = self._exact.shape
        return LayerError(name, (rows, columns), self._largest, int8, int8_weights, precision)


class _MeteredStream(ReferenceStream):
    """A stream that measures every product with a weight of the model."""

    def __init__(self, program: Program, weights: Mapping[str, Any], meters: dict[str, _Meter]) -> None:
        super().__init__(program)
        self._weights, self._meters = weights, meters

    def _linear(self, name: str, bias: Tensor | None, x: Tensor, vectors: Any, int8: Any, scale: float) -> Tensor:
        if name in self._weights:
            if name not in self._meters:
                self._meters[name] = _Meter(self._weights[name])
            self._meters[name].add(x.view(int(vectors), -1))
        return super()._linear(name, bias, x, vectors, int8, scale)
