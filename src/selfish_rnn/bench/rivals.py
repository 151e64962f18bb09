"""The next word of one text, by everyone who can compute it: for each engine a function of word and state."""

from __future__ import annotations

import itertools
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from selfish_rnn.bench.products import to_csr
from selfish_rnn.models import LanguageModel

Step = Callable[..., tuple[Any, ...]]
"""Of a word (1 x 1) and the tensors of a state: the scores of the next word, and the state after it."""


@contextmanager
def onednn(enabled: bool) -> Iterator[None]:
    """Torch with or without oneDNN; ``torch.backends.mkldnn.flags`` warns of processors that are not here."""
    before = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = enabled  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = before


def next_word(engine: str, model: LanguageModel, words: Tensor) -> Callable[[], Any]:
    """A call that goes on with one text by one of ``words``, and gives the scores of the next."""
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of exporters and of what torch calls deprecated
        step, state = _RIVALS[engine](model.eval())
    upcoming = itertools.cycle(words.view(-1, 1, 1))

    @torch.inference_mode()
    def scores() -> Any:
        nonlocal state
        # Torch runs an LSTM with oneDNN of its own accord; for a single word that can be several times slower.
        with onednn(engine != "no-onednn"):
            found, *state = step(next(upcoming), *state)
        return found

    return scores


class _Module(nn.Module):
    """A language model as a function of one word and a state."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, word: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        encoded = self.model.encode(word, state)
        return self.model.logits(encoded.output), *encoded.state


def _modules(model: LanguageModel) -> tuple[Step, Any]:
    return _Module(model), model.initial_state(1)


def _bfloat16(model: LanguageModel) -> tuple[Step, Any]:
    return _modules(model.bfloat16())


def _quantized(dtype: torch.dtype) -> Callable[[LanguageModel], tuple[Step, Any]]:
    def rival(model: LanguageModel) -> tuple[Step, Any]:
        state = model.initial_state(1)
        quantize: Any = torch.ao.quantization.quantize_dynamic
        return _Module(quantize(model, {nn.LSTM, nn.Linear}, dtype=dtype)), state

    return rival


def _compiled(model: LanguageModel) -> tuple[Step, Any]:
    step, state = _modules(model)
    return torch.compile(step), state


def _csr(model: LanguageModel) -> tuple[Step, Any]:
    """Only the products on the word's way, without gates and lookup."""
    embedding, decoder = (model.get_submodule(name) for name in ("embedding", "decoder"))
    looked_up = None if decoder.weight is embedding.weight else embedding.weight
    matrices = [parameter for parameter in model.parameters() if parameter.ndim == 2 and parameter is not looked_up]
    pairs = [(to_csr(matrix.detach()), torch.randn(matrix.shape[1], 1)) for matrix in matrices]
    return lambda word: (*(torch.mm(matrix, x) for matrix, x in pairs),)[-1:], ()


def _export(model: LanguageModel, folder: str) -> tuple[Path, list[Tensor]]:
    """The model as an ONNX file with inputs ``word``, ``state0``, …; and its first state."""
    path, state = Path(folder) / "model.onnx", list(model.initial_state(1))
    names = ["word", *(f"state{index}" for index in range(len(state)))]
    example = (torch.zeros(1, 1, dtype=torch.long), *state)
    with torch.no_grad():
        torch.onnx.export(_Module(model), example, str(path), dynamo=False, input_names=names)
    return path, state


def _onnx(int8: bool) -> Callable[[LanguageModel], tuple[Step, Any]]:
    def rival(model: LanguageModel) -> tuple[Step, Any]:
        onnxruntime: Any = import_module("onnxruntime")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        with tempfile.TemporaryDirectory() as folder:
            path, state = _export(model, folder)
            if int8:
                quantization: Any = import_module("onnxruntime.quantization")
                quantized = path.with_name("int8.onnx")
                quantization.quantize_dynamic(path, quantized, weight_type=quantization.QuantType.QInt8)
                path = quantized
            session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        names = [one.name for one in session.get_inputs()]

        def step(word: Tensor, *state: Any) -> tuple[Any, ...]:
            return tuple(session.run(None, dict(zip(names, (word.numpy(), *state), strict=True))))

        return step, [one.numpy() for one in state]

    return rival


def _openvino(model: LanguageModel) -> tuple[Step, Any]:
    openvino: Any = import_module("openvino")
    with tempfile.TemporaryDirectory() as folder:
        path, state = _export(model, folder)
        settings = {"INFERENCE_NUM_THREADS": torch.get_num_threads()}
        request = openvino.Core().compile_model(str(path), "CPU", settings).create_infer_request()

    def step(word: Tensor, *state: Any) -> tuple[Any, ...]:
        return tuple(request.infer([word.numpy(), *state], share_inputs=True).values())

    return step, [one.numpy() for one in state]


_RIVALS: dict[str, Callable[[LanguageModel], tuple[Step, Any]]] = {
    "dense": _modules,
    "no-onednn": _modules,
    "bfloat16": _bfloat16,
    "float16": _quantized(torch.float16),
    "int8": _quantized(torch.qint8),
    "compiled": _compiled,
    "onnx": _onnx(int8=False),
    "onnx-int8": _onnx(int8=True),
    "openvino": _openvino,
    "csr": _csr,
    "packed": _modules,
}
"""What makes, of a network that is zero outside its topology (packed for ``packed``), a step and a first state."""
