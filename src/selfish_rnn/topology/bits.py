"""Masks as bits, one per position, for saving."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor


def pack_bits(mask: Tensor) -> Tensor:
    """A mask as a flat uint8 tensor of one bit per position."""
    return torch.from_numpy(np.packbits(mask.bool().flatten().cpu().numpy()))


def unpack_bits(bits: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The mask (bool) of :func:`pack_bits`."""
    size = math.prod(shape)
    if bits.numel() != (size + 7) // 8:
        raise ValueError(f"a mask of {bits.numel()} bytes does not fit a matrix of shape {shape}")
    mask = np.unpackbits(bits.to(torch.uint8).cpu().numpy(), count=size)
    return torch.from_numpy(mask).bool().view(shape)
