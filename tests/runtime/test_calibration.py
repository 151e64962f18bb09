"""Calibration measures the errors of int8 and chooses precisions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import selfish_rnn
from selfish_rnn.engine import quantize


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru, self.out = nn.GRU(8, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.out(self.gru(x)[0])
        return y


def batches(outlier: float = 0.0) -> list[Tensor]:
    torch.manual_seed(1)
    sequences = [torch.randn(20, 2, 8) for _ in range(3)]
    for sequence in sequences:
        sequence[..., 0] += outlier
    return sequences


def test_bounded_activations_are_int8() -> None:
    torch.manual_seed(0)
    calibration = selfish_rnn.calibrate(Net(), batches())
    assert dict(calibration) == dict.fromkeys(["gru.weight_ih_l0", "gru.weight_hh_l0", "out.weight"], "int8")
    assert all(0 < layer.int8_weights < layer.int8 < 0.03 for layer in calibration.layers.values())
    assert str(calibration).splitlines()[1].startswith("gru.weight_ih_l0  48 x 8")


def test_outliers_leave_activations_in_float32() -> None:
    torch.manual_seed(0)
    model = Net()
    with torch.no_grad():
        model.gru.weight_ih_l0[:, 0] *= 1e-3
    calibration = selfish_rnn.calibrate(model, batches(outlier=300.0))
    assert calibration["gru.weight_ih_l0"] != "int8"
    assert calibration["gru.weight_hh_l0"] == "int8"
    assert calibration.layers["gru.weight_ih_l0"].largest_input > 290
    stream = selfish_rnn.stream(model, batches(300.0)[0], precision=calibration)
    assert {layer.name: layer.precision for layer in stream.layers} == dict(calibration)
    everything = selfish_rnn.stream(model, batches(300.0)[0], precision="int8")
    assert stream.error < everything.error


def test_tolerance_and_limits() -> None:
    model = Net()
    assert set(selfish_rnn.calibrate(model, batches(), tolerance=0).values()) == {"float32"}
    with pytest.raises(ValueError, match="at least one batch"):
        selfish_rnn.calibrate(model, [])
    with torch.no_grad():
        model.out.weight[0] = 0
        model.gru.weight_hh_l0[:, 1] = 0
        model.gru.weight_ih_l0[:, 1] = 0
    with pytest.raises(ValueError, match="int8 already"):
        selfish_rnn.calibrate(quantize(model), batches())


def test_precision_by_layer() -> None:
    torch.manual_seed(0)
    model, example = Net(), torch.randn(6, 1, 8)
    stream = selfish_rnn.stream(model, example, precision={"gru.weight_hh*": "int8-weights", "gru": "int8"})
    precisions = {layer.name: layer.precision for layer in stream.layers}
    assert precisions == {"gru.weight_ih_l0": "int8", "gru.weight_hh_l0": "int8-weights", "out.weight": "float32"}
    errors = {layer.name: layer.error for layer in stream.layers}
    assert errors["out.weight"] == 0
    assert 0 < errors["gru.weight_ih_l0"] < 0.01
    with pytest.raises(ValueError, match=r"no matrix or module is named 'gruu'; the matrices are gru.weight_ih_l0"):
        selfish_rnn.stream(model, example, precision={"gruu": "int8"})
    with pytest.raises(ValueError, match=r"must be one of 'float32', 'int8', 'int8-weights', not 'int4'"):
        selfish_rnn.stream(model, example, precision="int4")  # type: ignore[arg-type]
