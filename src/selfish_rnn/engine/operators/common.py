"""What the kernels rely on: they read and write wherever they are told to.

Operators check when they run, not when they are traced, so that compiled programs are as safe.
"""

from __future__ import annotations

import torch
from torch import Tensor

from selfish_rnn.engine import library


def check_weight(values: Tensor, index: Tensor, outputs: int, inputs: int) -> None:
    """Whether a packed matrix takes so many features to so many."""
    header = library.header(index)
    if (header.rows, header.columns) != (outputs, inputs):
        raise ValueError(
            f"inputs of {inputs} features and outputs of {outputs} do not fit a packed matrix of "
            f"{header.rows} rows and {header.columns} columns"
        )
    if values.shape != (header.count,):
        raise ValueError(f"the packed matrix has {header.count} weights, its values are of shape {tuple(values.shape)}")


def check_shape(name: str, tensor: Tensor | None, *shape: int) -> None:
    if tensor is not None and tensor.shape != shape:
        raise ValueError(f"the {name} must be of shape {shape}, it is of shape {tuple(tensor.shape)}")


def check_rows(name: str, numbers: Tensor, index: Tensor) -> None:
    """Whether tokens or targets are rows of a packed matrix."""
    if numbers.numel() == 0:
        return
    rows = library.header(index).rows
    lowest, highest = (int(bound) for bound in torch.aminmax(numbers))
    if lowest < 0 or highest >= rows:
        wrong = lowest if lowest < 0 else highest
        raise IndexError(f"{name} {wrong} is out of range: the packed matrix has {rows} rows")
