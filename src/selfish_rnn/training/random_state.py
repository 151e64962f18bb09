"""The random generators of torch, which dropout draws from."""

from __future__ import annotations

from typing import Any

import torch


def random_state(device: str) -> dict[str, Any]:
    """Where the generators stand: the CPU's and, on a GPU, its own."""
    on_gpu = device != "cpu"
    return {"cpu": torch.get_rng_state(), "gpu": torch.cuda.get_rng_state(device) if on_gpu else None}


def restore_random_state(state: dict[str, Any], device: str) -> None:
    """Set them back; a run that moved from one kind of device to another goes on with other random numbers."""
    torch.set_rng_state(state["cpu"])
    if state["gpu"] is not None and device != "cpu":
        torch.cuda.set_rng_state(state["gpu"], device)
