"""Windows of batched token streams."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from selfish_rnn.errors import UserError


def batched(stream: Tensor, batch_size: int, key: str = "batch_size") -> Tensor:
    """Return a stream as rows x batch, without the last tokens, which do not fill a row.

    Column b is the b-th contiguous piece.

    ``key`` is the setting that the error for a too short text names.
    """
    rows = len(stream) // batch_size
    if rows < 2:
        raise UserError(
            f"a text of {len(stream)} tokens is too short for {key}={batch_size}: it takes at least "
            f"{2 * batch_size} tokens; give a longer text or a smaller batch size"
        )
    return stream[: rows * batch_size].view(batch_size, rows).t().contiguous()


def windows(rows: Tensor, window: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield inputs and targets of consecutive windows, the targets one row later; the last window may be shorter."""
    for start in range(0, len(rows) - 1, window):
        yield window_at(rows, start, window)


def window_at(rows: Tensor, start: int, length: int) -> tuple[Tensor, Tensor]:
    """Return inputs and targets of the window of at most ``length`` rows at row ``start``."""
    stop = min(start + length, len(rows) - 1)
    return rows[start:stop], rows[start + 1 : stop + 1]


def draw_length(window: int, generator: torch.Generator) -> int:
    """Draw the length of a variable window, as in AWD-LSTM.

    ``max(5, trunc(Normal(base, 5)))`` with ``base = window`` in 95 % of cases, else half of it. The result is at most
    ``window + 20``, so that memory is bounded.
    """
    base = window if float(torch.rand((), generator=generator)) < 0.95 else window / 2
    length = int(torch.normal(base, 5.0, (1,), generator=generator))
    return min(max(5, length), window + 20)
