"""Reading the golden vectors and comparing with them as their README asks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from selfish_rnn.models.base import Encoded, LanguageModel
from selfish_rnn.models.regularisers import activation_penalty, temporal_activation_penalty

FOLDER = Path(__file__).parents[1] / "golden"
TOLERANCES = {torch.float64: (1e-9, 1e-9), torch.float32: (1e-5, 5e-5)}
"""Of values and of gradients."""


class Golden:
    """The arrays of one file as tensors of the precision under test."""

    def __init__(self, name: str, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.value_tolerance, self.gradient_tolerance = TOLERANCES[dtype]
        with np.load(FOLDER / f"{name}.npz") as arrays:
            self._arrays = {key: arrays[key] for key in arrays.files}

    def __getitem__(self, key: str) -> Tensor:
        array = torch.from_numpy(np.asarray(self._arrays[key]))
        return array.to(self.dtype) if array.is_floating_point() else array

    def number(self, key: str) -> int:
        return int(self._arrays[key])

    def check(self, got: Tensor, key: str) -> None:
        self._check(got, key, self.value_tolerance)

    def check_gradient(self, parameter: Tensor, key: str) -> None:
        assert parameter.grad is not None
        self.check_gradient_value(parameter.grad, key)

    def check_gradient_value(self, got: Tensor, key: str) -> None:
        self._check(got, key, self.gradient_tolerance)

    def check_training(self, model: LanguageModel, encoded: Encoded, likelihood: str, names: Mapping[str, str]) -> None:
        """The loss and its parts, and the gradients of parameters; ``names`` are those in the file."""
        parts = {
            likelihood: model.loss(encoded.output, self["targets"]),
            "ar": activation_penalty(getattr(encoded, model.activation_penalty_on), 2.0),
            "tar": temporal_activation_penalty(encoded.raw, 1.0),
        }
        loss = sum(parts.values(), start=torch.zeros((), dtype=self.dtype))
        for key, part in {**parts, "loss": loss}.items():
            self.check(part, key)
        loss.backward()
        for ours, theirs in names.items():
            self.check_gradient(model.get_parameter(ours), f"grad_{theirs}")

    def _check(self, got: Tensor, key: str, tolerance: float) -> None:
        want = torch.from_numpy(np.asarray(self._arrays[key], dtype=np.float64))
        assert got.shape == want.shape, f"{key}: {tuple(got.shape)} is not {tuple(want.shape)}"
        error = (got.detach().double() - want).abs().max() / (1 + want.abs().max())
        assert error <= tolerance, f"{key} is off by {error:.2e}"


def parameter_count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def randomised(model: nn.Module, seed: int = 0) -> nn.Module:
    """The model with every parameter, biases included, well away from zero."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.3)
    return model


def check_carried_state(model: LanguageModel, vocabulary: int) -> None:
    """In evaluation a window at once gives what its two halves give with the state carried between them."""
    model.eval()
    tokens = torch.randint(vocabulary, (8, 3))
    whole = model.encode(tokens, model.initial_state(3))
    first = model.encode(tokens[:3], model.initial_state(3))
    second = model.encode(tokens[3:], first.state)
    torch.testing.assert_close(torch.cat([first.output, second.output]), whole.output)
    torch.testing.assert_close(second.state, whole.state)
    torch.testing.assert_close(whole.output, whole.raw, rtol=0, atol=0)


def check_dropout(model: LanguageModel, vocabulary: int) -> None:
    """Dropout acts in training and only there, and never on the parameters themselves."""
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    tokens = torch.randint(vocabulary, (6, 3))
    targets = torch.randint(vocabulary, (6, 3))

    def loss() -> float:
        return model.loss(model.encode(tokens, model.initial_state(3)).output, targets).item()

    model.train()
    assert loss() != loss()
    model.eval()
    assert loss() == loss()
    after = model.state_dict()
    assert list(before) == list(after)
    assert all(torch.equal(before[name], after[name]) for name in before)


def check_loss_is_that_of_logits(model: LanguageModel, vocabulary: int, tolerance: float = 1e-9) -> None:
    model.eval()
    tokens = torch.randint(vocabulary, (5, 2))
    targets = torch.randint(vocabulary, (5, 2))
    encoded = model.encode(tokens, model.initial_state(2))
    log_probabilities = model.logits(encoded.output).log_softmax(-1)
    expected = -log_probabilities.gather(-1, targets.unsqueeze(-1)).mean()
    torch.testing.assert_close(model.loss(encoded.output, targets), expected, rtol=tolerance, atol=tolerance)
