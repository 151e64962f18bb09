"""On what something was measured."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from typing import Any

import torch

from selfish_rnn import __version__
from selfish_rnn.engine import library
from selfish_rnn.system import processor


def machine() -> dict[str, Any]:
    """The processor, how much of it was used, and the software; ``busy`` the share others took."""
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "kernels": library.target() if library.available() else None,
        "busy": busy(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "selfish_rnn": __version__,
    }


def busy(seconds: float = 0.5) -> float | None:
    """The share of the machine's cores that is at work while this process sleeps; nothing where that is not told."""
    before = _ticks()
    if before is None:
        return None
    time.sleep(seconds)
    after = _ticks()
    assert after is not None
    passed = after[0] - before[0]
    return round(1 - (after[1] - before[1]) / passed, 2) if passed else 0.0


def _ticks() -> tuple[int, int] | None:
    """Of all cores since the system was started: all ticks, and those without work."""
    statistics = Path("/proc/stat")
    if not statistics.exists():
        return None
    ticks = [int(number) for number in statistics.read_text().splitlines()[0].split()[1:9]]
    return sum(ticks), ticks[3] + ticks[4]
