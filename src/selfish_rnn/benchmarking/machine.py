"""On what something was measured."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path
from typing import Any

import torch

from selfish_rnn import __version__
from selfish_rnn.engine import native


def machine() -> dict[str, Any]:
    """The processor, how much of it was used, and the software; ``load`` is how busy it was at that moment."""
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "kernels": native.target() if native.available() else None,
        "load": [round(load, 2) for load in os.getloadavg()] if hasattr(os, "getloadavg") else None,
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "selfish_rnn": __version__,
    }


def processor() -> str:
    """The name its maker gave it, where the system tells."""
    information = Path("/proc/cpuinfo")
    if information.exists():
        found = re.search(r"^model name\s*:\s*(.+)$", information.read_text(), re.MULTILINE)
        if found:
            return found.group(1).strip()
    return platform.processor() or platform.machine()
