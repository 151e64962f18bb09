"""One step of one recurrent layer, as audio and control run it: a vector in, a vector out, batch 1, state kept."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from selfish_rnn.bench.workloads import SEED
from selfish_rnn.runtime import stream
from selfish_rnn.runtime.precision import LayerPrecision
from selfish_rnn.sparsifier import Sparsifier

FEATURES = 40
"""Numbers of a step's input."""

Call = Callable[[], Any]


class Layer(nn.Module):
    """One GRU or LSTM with its state in the open."""

    def __init__(self, kind: str, hidden: int) -> None:
        super().__init__()
        self.rnn: nn.RNNBase = (nn.GRU if kind == "gru" else nn.LSTM)(FEATURES, hidden)

    def forward(self, x: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        before = state if len(state) == 2 else state[0]
        y, after = self.rnn(x, before)
        return y, *(after if isinstance(after, tuple) else (after,))

    def zeros(self) -> list[Tensor]:
        """Return the state before the first step."""
        return [torch.zeros(1, 1, self.rnn.hidden_size) for _ in range(1 + isinstance(self.rnn, nn.LSTM))]


def layer(kind: str, hidden: int, sparsity: float) -> Layer:
    """Return a layer, the same for every engine, with zeros at a fraction of its positions."""
    torch.manual_seed(SEED)
    model = Layer(kind, hidden).eval().requires_grad_(False)
    if sparsity:
        model.requires_grad_(True)
        settings: dict[str, Any] = {"method": "static", "min_side": 1, "rescale": False, "seed": SEED}
        Sparsifier(model, sparsity=sparsity, **settings).detach()
        model.requires_grad_(False)
    return model


def step(engine: str, kind: str, hidden: int, sparsity: float) -> Call:
    """Return a call that runs one step of a layer and returns its output."""
    model = layer(kind, hidden, sparsity)
    inputs = torch.randn(64, 1, 1, FEATURES, generator=torch.Generator().manual_seed(SEED))
    return ENGINES[engine](model, inputs)


def _cycled(function: Callable[[Any], Any], inputs: list[Any]) -> Call:
    """Return a call of a function on the next of some inputs, round and round."""
    at, count = 0, len(inputs)

    def call() -> Any:
        nonlocal at
        at = (at + 1) % count
        return function(inputs[at])

    return call


def _torch(model: Layer, inputs: Tensor, function: Callable[..., Any] | None = None) -> Call:
    run, state = model if function is None else function, model.zeros()

    @torch.inference_mode()
    def advance(x: Tensor) -> Tensor:
        nonlocal state
        y, *state = run(x, *state)
        output: Tensor = y
        return output

    return _cycled(advance, list(inputs))


def _compiled(model: Layer, inputs: Tensor) -> Call:
    torch.compiler.reset()  # after several networks of one class torch stops compiling
    return _torch(model, inputs, torch.compile(model))


def _onnx(model: Layer, inputs: Tensor, int8: bool = False) -> Call:
    """ONNX Runtime with outputs bound to numpy arrays, one thread."""
    onnxruntime: Any = import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.add_session_config_entry("session.force_spinning_stop", "1")
    with tempfile.TemporaryDirectory() as folder:
        path, state = Path(folder) / "model.onnx", model.zeros()
        names = ["x", *(f"state{index}" for index in range(len(state)))]
        torch.onnx.export(model, (inputs[0], *state), str(path), dynamo=False, input_names=names)
        if int8:
            quantization: Any = import_module("onnxruntime.quantization")
            rounded = path.with_name("int8.onnx")
            quantization.quantize_dynamic(path, rounded, weight_type=quantization.QuantType.QInt8)
            path = rounded
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    arrays = [tensor.numpy() for tensor in state]

    def advance(x: Any) -> Any:
        nonlocal arrays
        y, *arrays = session.run(None, dict(zip(names, (x, *arrays), strict=True)))
        return y

    return _cycled(advance, [x.numpy() for x in inputs])


def _stream(model: Layer, inputs: Tensor, precision: LayerPrecision = "float32") -> Call:
    return _cycled(stream(model.rnn, inputs[0], time_axis=0, precision=precision), list(inputs.flatten(1)))


def _dense_stream(model: Layer, inputs: Tensor, precision: LayerPrecision = "float32") -> Call:
    """Return a call of the dense form of a layer: a loop in C++, independent of the sparsity."""
    kind = "gru" if isinstance(model.rnn, nn.GRU) else "lstm"
    return _stream(layer(kind, model.rnn.hidden_size, 0.0), inputs, precision)


ENGINES: dict[str, Callable[[Layer, Tensor], Call]] = {
    "dense": _torch,
    "compiled": _compiled,
    "onnx": _onnx,
    "onnx-int8": lambda model, inputs: _onnx(model, inputs, int8=True),
    "stream-dense": _dense_stream,
    "stream-dense-int8": lambda model, inputs: _dense_stream(model, inputs, "int8"),
    "stream": _stream,
    "stream-int8": lambda model, inputs: _stream(model, inputs, "int8"),
}
"""Functions that return a call of one step, by the names of engines."""
