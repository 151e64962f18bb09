"""The weights of a model by name, a tied one once."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from selfish_rnn.errors import UserError


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter and buffer under its first name."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


@torch.no_grad()
def load_weights(model: nn.Module, saved: Mapping[str, Tensor], source: str) -> None:
    """Put saved weights into a model of the same shape; ``source`` is named if they do not fit."""
    own = weights_of(model)
    odd = [name for name in own.keys() | saved.keys() if name not in own or name not in saved]
    odd += [name for name in own.keys() & saved.keys() if own[name].shape != saved[name].shape]
    if odd:
        raise UserError(f"{source} does not fit the model of config.yaml: they differ in {', '.join(sorted(odd))}")
    for name, tensor in own.items():
        tensor.copy_(saved[name])
