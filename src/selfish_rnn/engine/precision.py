"""Precision of the packed products: float32, or bfloat16 operands with float32 sums."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from selfish_rnn.engine import library
from selfish_rnn.engine.index import Known
from selfish_rnn.engine.library import Pointed, address
from selfish_rnn.errors import unknown

PRECISIONS = ("float32", "bfloat16")

FEWEST_TOKENS = 32
"""Tokens from which bfloat16 pays: every call rounds all weights of its matrices."""

_BFLOAT16_TARGETS = (None, "emulation", "avx512_bf16")
_CHUNK, _WIDE = 32, 64

_logger = logging.getLogger("selfish_rnn.engine")


def bfloat16_target() -> str | None:
    """Return the bfloat16 kernels in use: ``"avx512_bf16"``, ``"emulation"``, or None if there are none.

    The emulation belongs to the portable kernels: ``library.use_target("portable")`` selects it on any processor.
    """
    return _BFLOAT16_TARGETS[library.kernels().selfish_bf16_target()]


def check_precision(precision: str) -> None:
    """Raise an error for an unknown precision, and warn if this processor computes in float32 instead."""
    if precision not in PRECISIONS:
        raise ValueError(unknown("precision", precision, PRECISIONS))
    if precision == "bfloat16" and bfloat16_target() is None:
        _warn_about_float32()


@functools.cache
def _warn_about_float32() -> None:
    _logger.warning(
        "bfloat16 needs a processor with AVX512_BF16 (AMD Zen 4 or later, Intel Xeon since Cooper Lake): this one has "
        "none, packed layers compute in float32"
    )


def precision_of(precision: str, tokens: int) -> str:
    """Return the precision of a product of so many tokens with weights that were packed with ``precision``.

    Under ``torch.autocast("cpu", torch.bfloat16)`` it is bfloat16 for all packed weights. Few tokens are float32.
    """
    if precision == "float32" and not _autocast_to_bfloat16():
        return "float32"
    if tokens < FEWEST_TOKENS:
        return "float32"
    if bfloat16_target() is None:
        _warn_about_float32()
        return "float32"
    return "bfloat16"


def _autocast_to_bfloat16() -> bool:
    return torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16


_indexes = Known[Tensor]()


def bfloat16_index(index: Tensor) -> Tensor:
    """Return the index of the bfloat16 kernels that belongs to a valid index; it is derived once for a topology."""
    known = _indexes.get(index)
    if known is not None:
        return known
    kernels = library.kernels()
    derived = torch.empty(kernels.selfish_bf16_index_bytes(address(index)), dtype=torch.uint8, device="cpu")
    kernels.selfish_bf16_index_build(address(index), address(derived))
    return _indexes.remember(index, derived)


def run_in_workspace(
    function: str,
    *groups: Mapping[str, Pointed | int | None],
    floats: Mapping[str, int] | None = None,
    **fields: Pointed | int | None,
) -> dict[str, Tensor]:
    """Call a bfloat16 kernel that takes a structure, with as much work memory as it asks for; return that memory.

    ``floats`` are the sizes of further pieces, by the names of their fields.
    """
    needed = library.run(function, *groups, **fields)
    memory = library.workspace(work=needed, **(floats or {}))
    library.run(function, *groups, memory, **fields)
    return memory


def call_in_workspace(function: str, *arguments: Any) -> None:
    """Call a bfloat16 kernel whose last argument is its work memory, with as much as it asks for."""
    kernel = getattr(library.kernels(), function)
    kernel(*arguments, address(library.workspace(work=kernel(*arguments, None))["work"]))


def step_columns(batch: int) -> int:
    """Return the columns of a step of a recurrence, empty ones included; see ``kernels/bf16_window.hpp``."""
    panels = max(math.ceil(batch / _CHUNK), 1)
    columns = math.ceil(batch / panels)
    return panels * next(width for width in (4, 8, 16, 20, 24, 32) if columns <= width)


def wide_columns(tokens: int) -> int:
    """Return the columns of the wide panels of a window, empty ones included."""
    return _WIDE * math.ceil(tokens / _WIDE)


def operand_floats(tokens: int, features: int) -> int:
    """Return how many floats of memory the operands of so many tokens take."""
    return wide_columns(tokens) * features // 2


def operand_rows(operands: Tensor, tokens: int, features: int) -> Tensor:
    """Return operands as tokens x features, in memory of their own."""
    rows = torch.empty(tokens, features, dtype=torch.float32, device="cpu")
    library.kernels().selfish_bf16_rows(address(operands), features, tokens, address(rows))
    return rows
