"""The language models as streams of token ids."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import selfish_rnn
from selfish_rnn.engine import pack, quantize
from selfish_rnn.models import MODELS

WORDS = 40
SETTINGS: dict[str, dict[str, Any]] = {
    "stacked-lstm": {"embedding": 12, "hidden": (16, 12)},
    "stacked-gru": {"embedding": 12, "hidden": 12, "tied": True},
    "stacked-rnn": {"embedding": 12, "hidden": 16},
    "rhn": {"hidden": 16, "depth": 3},
    "on-lstm": {"embedding": 10, "hidden": 20, "layers": 2, "chunk": 5},
    "awd-lstm-mos": {"embedding": 10, "hidden": 20, "hidden_last": 12, "layers": 2, "experts": 3},
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("form", ["dense", "packed", "int8"])
def test_equals_the_model(name: str, form: str) -> None:
    torch.manual_seed(0)
    model = MODELS[name](WORDS, **SETTINGS[name])
    if form != "dense":
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim == 2:
                    parameter *= torch.rand(parameter.shape) < 0.4
        model = pack(model) if form == "packed" else quantize(model)
    tokens = torch.randint(WORDS, (12, 1))
    stream = selfish_rnn.stream(model, tokens[:1])
    with torch.no_grad():
        expected, _ = model.eval()(tokens)
    tolerance = 1e-2 if form == "int8" else 1e-5
    torch.testing.assert_close(stream.run(tokens[:, 0]), expected[:, 0], rtol=tolerance, atol=tolerance)
    assert ({"int8"} <= {layer.precision for layer in stream.layers}) == (form == "int8")
