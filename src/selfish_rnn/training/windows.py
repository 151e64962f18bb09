"""Token streams as batches of windows."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from selfish_rnn.errors import UserError


def batched(stream: Tensor, batch_size: int, key: str = "batch_size") -> Tensor:
    """A stream as rows x batch: column b is the b-th contiguous piece; what does not fill a row is cut.

    ``key`` is the setting that a text too short for its batch size is blamed on.
    """
    rows = len(stream) // batch_size
    if rows < 2:
        raise UserError(
            f"a text of {len(stream)} tokens is too short for {key}={batch_size}: it takes at least "
            f"{2 * batch_size} tokens; give a longer text or a smaller batch size"
        )
    return stream[: rows * batch_size].view(batch_size, rows).t().contiguous()


def windows(rows: Tensor, window: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs and targets, the targets one row later, of consecutive windows; the last may be shorter."""
    for start in range(0, len(rows) - 1, window):
        yield window_at(rows, start, window)


def window_at(rows: Tensor, start: int, length: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets of the window of ``length`` rows (or what is left of them) at row ``start``."""
    stop = min(start + length, len(rows) - 1)
    return rows[start:stop], rows[start + 1 : stop + 1]


def draw_length(window: int, generator: torch.Generator) -> int:
    """The length of a variable window, as in AWD-LSTM.

    ``max(5, trunc(Normal(base, 5)))`` with ``base = window`` in 95 % of cases, else half of it; at most
    ``window + 20``, so that memory is bounded.
    """
    base = window if float(torch.rand((), generator=generator)) < 0.95 else window / 2
    length = int(torch.normal(base, 5.0, (1,), generator=generator))
    return min(max(5, length), window + 20)
