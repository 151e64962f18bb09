"""Masks as bits, one per position, for saving."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def pack_bits(mask: Tensor) -> Tensor:
    """A mask as a flat uint8 tensor of one bit per position."""
    return torch.from_numpy(np.packbits(mask.bool().flatten().cpu().numpy()))


def unpack_bits(bits: Tensor, like: Tensor) -> Tensor:
    """The mask of :func:`pack_bits`, with the shape, dtype and device of ``like``."""
    if bits.numel() != (like.numel() + 7) // 8:
        raise ValueError(f"a mask of {bits.numel()} bytes does not fit a matrix of shape {tuple(like.shape)}")
    mask = np.unpackbits(bits.to(torch.uint8).cpu().numpy(), count=like.numel())
    return torch.from_numpy(mask).view(like.shape).to(like)
