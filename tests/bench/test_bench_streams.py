"""All engines compute the same step."""

from __future__ import annotations

import itertools
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from selfish_rnn.bench import streams
from selfish_rnn.bench.options import STREAM_HIDDEN, STREAM_SPARSITY, read
from selfish_rnn.errors import UserError

RIVALS = ["onnx", "onnx-int8"] if find_spec("onnx") and find_spec("onnxruntime") else []


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["gru", "lstm"])
@pytest.mark.parametrize(
    "engine", ["stream", "stream-int8", *(pytest.param(name, marks=pytest.mark.slow) for name in RIVALS)]
)
def test_engines_agree(kind: str, engine: str) -> None:
    expected, actual = (streams.step(name, kind, 16, 0.5) for name in ("dense", engine))
    tolerance = 0.05 if "int8" in engine else 1e-5
    for _ in range(4):
        y: Any = actual()
        torch.testing.assert_close(torch.as_tensor(y).flatten(), expected().flatten(), rtol=tolerance, atol=tolerance)


def test_the_dense_stream_has_all_weights() -> None:
    dense, whole = (
        streams.step(name, "gru", 16, sparsity) for name, sparsity in (("stream-dense", 0.9), ("dense", 0.0))
    )
    for _ in range(3):
        torch.testing.assert_close(dense(), whole().flatten(), rtol=1e-5, atol=1e-5)


def test_options_of_streams() -> None:
    options = read({"what": "stream", "network": "gru"})
    assert (options.hidden, options.sparsity) == (STREAM_HIDDEN, STREAM_SPARSITY)
    assert read({"what": "stream", "hidden": "8", "sparsity": "0.5"}).hidden == (8,)
    for what, network in itertools.product(["step", "stream,step"], ["gru"]):
        with pytest.raises(UserError, match="--network gru is for --what stream"):
            read({"what": what, "network": network})
