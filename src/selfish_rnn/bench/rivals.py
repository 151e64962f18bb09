"""The next word of one text, by everyone who can compute it: for each engine a function of word and state."""

from __future__ import annotations

import io
import itertools
import logging
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from selfish_rnn.bench.products import to_csr
from selfish_rnn.engine import quantize
from selfish_rnn.models import LanguageModel

_LSTM_PARAMETERS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")

Step = Callable[..., Any]
"""Function of a word (1 x 1) and the tensors of a state that returns the scores of the next word and the new state.

A step with an internal state (its first state is None) takes the index of a word and returns only the scores.
"""

_WITHOUT_ONEDNN = ("no-onednn", "bfloat16")
"""Engines without oneDNN, which torch uses for an LSTM by default. For a single word it can be several times slower."""


@contextmanager
def onednn(enabled: bool) -> Iterator[None]:
    """Switch oneDNN of torch on or off. ``torch.backends.mkldnn.flags`` warns about other processors."""
    before = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = enabled  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = before


_AUTOCAST_STEP = """
import torch
with torch.autocast("cpu", {dtype}):
    output = torch.nn.Linear(128, 128)(torch.nn.LSTM(64, 128)(torch.randn(32, 4, 64))[0])
output.float().sum().backward()
"""


@cache
def computes_in(dtype: torch.dtype) -> bool:
    """Return whether torch trains an LSTM in a lower precision on this machine.

    The attempt has a separate process: some virtual machines announce instructions (AMX) that crash it.
    """
    command = [sys.executable, "-c", _AUTOCAST_STEP.format(dtype=dtype)]
    return subprocess.run(command, capture_output=True).returncode == 0


def next_word(engine: str, model: LanguageModel, words: Tensor) -> Callable[[], Any]:
    """Return a call that continues a text by one of ``words`` and returns the scores of the next word."""
    with torch.inference_mode(), _silence():
        step, state = RIVALS[engine](model.eval())
    if state is None:
        numbers = itertools.cycle(words.tolist())
        return lambda: step(next(numbers))
    upcoming = itertools.cycle(words.view(-1, 1, 1))

    @torch.inference_mode()
    def scores() -> Any:
        nonlocal state
        result, *state = step(next(upcoming), *state)
        return result

    return onednn(False)(scores) if engine in _WITHOUT_ONEDNN else scores


@contextmanager
def _silence() -> Iterator[None]:
    """Suppress the output of exporters and quantizers, and deprecation warnings of torch."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


class _Module(nn.Module):
    """Language model as a function of one word and a state."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, word: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        encoded = self.model.encode(word, state)
        return self.model.logits(encoded.output), *encoded.state


def _modules(model: LanguageModel) -> tuple[Step, Any]:
    return _Module(model), model.initial_state(1)


def _one_call(model: LanguageModel) -> tuple[Step, Any]:
    """Return the compiled step of a model with packed weights."""
    program = model.next_word()
    assert program is not None
    return program, None


def _quantized(model: LanguageModel, dtype: torch.dtype) -> tuple[Step, Any]:
    state = model.initial_state(1)
    quantize: Any = torch.ao.quantization.quantize_dynamic
    return _Module(quantize(model, {nn.LSTM, nn.Linear}, dtype=dtype)), state


def _compiled(model: LanguageModel) -> tuple[Step, Any]:
    torch.compiler.reset()  # torch stops compiling after a few networks of one class
    step, state = _modules(model)
    return torch.compile(step), state


class _Unrolled(nn.Module):
    """LSTM model as single products and gates, for matrix formats without an LSTM.

    ``stored`` converts a weight to the format, and ``product`` multiplies it with a vector and adds a bias.
    """

    def __init__(
        self,
        model: LanguageModel,
        product: Callable[[Tensor, Tensor, Tensor], Tensor],
        stored: Callable[[Tensor], Tensor] = lambda weight: weight,
    ) -> None:
        super().__init__()
        self.embedding, self.product = model.embedding, product
        lstm = cast(nn.LSTM, model.get_submodule("rnn"))
        self.cells = list[tuple[Tensor, Tensor, Tensor, Tensor]]()
        for layer in range(lstm.num_layers):
            inputs, recurrent, *biases = (getattr(lstm, f"{name}_l{layer}").detach() for name in _LSTM_PARAMETERS)
            self.cells.append((stored(inputs), biases[0], stored(recurrent), biases[1]))
        self.output, self.bias = stored(model.decoder.weight.detach()), model.decoder.bias.detach()
        self.state = [torch.zeros(lstm.hidden_size) for _ in range(2 * lstm.num_layers)]

    def forward(self, word: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        x, after = self.embedding(word).view(-1), list[Tensor]()
        for (inputs, input_bias, recurrent, recurrent_bias), h, c in zip(
            self.cells, state[::2], state[1::2], strict=True
        ):
            gates = self.product(inputs, x, input_bias) + self.product(recurrent, h, recurrent_bias)
            enter, forget, new, leave = gates.chunk(4)
            cell = forget.sigmoid() * c + enter.sigmoid() * new.tanh()
            x = leave.sigmoid() * cell.tanh()
            after += [x, cell]
        return self.product(self.output, x, self.bias), *after


def _csr(model: LanguageModel) -> tuple[Step, Any]:
    step = _Unrolled(model, lambda matrix, x, bias: torch.addmv(bias, matrix, x), to_csr)
    return step, step.state


def _export(step: nn.Module, state: Sequence[Tensor], folder: str) -> Path:
    """Write a step as an ONNX file with inputs ``word``, ``state0``, …"""
    path = Path(folder) / "model.onnx"
    names = ["word", *(f"state{index}" for index in range(len(state)))]
    example = (torch.zeros(1, 1, dtype=torch.long), *state)
    with torch.no_grad():
        torch.onnx.export(step, example, str(path), dynamo=False, input_names=names)
    return path


def _onnx(model: LanguageModel, int8: bool) -> tuple[Step, Any]:
    onnxruntime: Any = import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    # Its threads would spin while other engines are measured.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    with tempfile.TemporaryDirectory() as folder:
        state = model.initial_state(1)
        path = _export(_Module(model), state, folder)
        if int8:
            quantization: Any = import_module("onnxruntime.quantization")
            quantized = path.with_name("int8.onnx")
            quantization.quantize_dynamic(path, quantized, weight_type=quantization.QuantType.QInt8)
            path = quantized
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [entry.name for entry in session.get_inputs()]

    def step(word: Tensor, *state: Any) -> tuple[Any, ...]:
        return tuple(session.run(None, dict(zip(names, (word.numpy(), *state), strict=True))))

    return step, [entry.numpy() for entry in state]


def _openvino(model: LanguageModel, int8: bool) -> tuple[Step, Any]:
    core = import_module("openvino").Core()
    with tempfile.TemporaryDirectory() as folder:
        if int8:  # products only, because NNCF does not compress an LSTM
            # A matrix of one row, because OpenVINO multiplies vectors more slowly.
            unrolled = _Unrolled(model, lambda matrix, x, bias: functional.linear(x[None], matrix, bias)[0])
            state: Sequence[Tensor] = unrolled.state
            network = core.read_model(str(_export(unrolled, state, folder)))
            network = import_module("nncf").compress_weights(network)
        else:
            state = model.initial_state(1)
            network = core.read_model(str(_export(_Module(model), state, folder)))
        settings = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "PERFORMANCE_HINT": "LATENCY"}
        request = core.compile_model(network, "CPU", settings).create_infer_request()

    def step(word: Tensor, *state: Any) -> tuple[Any, ...]:
        return tuple(request.infer([word.numpy(), *state], share_inputs=True).values())

    return step, [entry.numpy() for entry in state]


RIVALS: dict[str, Callable[[LanguageModel], tuple[Step, Any]]] = {
    "dense": _modules,
    "no-onednn": _modules,
    "bfloat16": lambda model: _modules(model.bfloat16()),
    "float16": partial(_quantized, dtype=torch.float16),
    "int8": partial(_quantized, dtype=torch.qint8),
    "compiled": _compiled,
    "onnx": partial(_onnx, int8=False),
    "onnx-int8": partial(_onnx, int8=True),
    "openvino": partial(_openvino, int8=False),
    "openvino-int8": partial(_openvino, int8=True),
    "csr": _csr,
    "packed": _modules,
    "packed-call": _one_call,
    "packed-int8": lambda model: _one_call(quantize(model)),
}
"""Functions from a network that is zero outside its topology (packed for ours) to a step and its first state."""
