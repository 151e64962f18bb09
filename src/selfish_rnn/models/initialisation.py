"""Where the weights of recurrent layers start."""

from __future__ import annotations

import math

from torch import nn


def reset_uniform(module: nn.Module, state: int, inputs: int | None = None) -> None:
    """Draw all parameters from U(±1/√n): n is ``inputs`` for those of the input, if given, else ``state``."""
    for name, parameter in module.named_parameters():
        width = state if inputs is None or not name.startswith(("weight_input", "bias_input")) else inputs
        nn.init.uniform_(parameter, -1 / math.sqrt(width), 1 / math.sqrt(width))
