"""What the checkpoint tests share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from selfish_rnn.runs.checkpoints import CheckpointStore


def state_of(step: int) -> dict[str, Any]:
    return {"weights": torch.full((5, 7), float(step)), "ages": torch.arange(9, dtype=torch.int32), "epoch": step}


def store_of(folder: Path, *steps: int) -> CheckpointStore:
    store = CheckpointStore(folder)
    for step in steps:
        store.save(state_of(step), step)
    return store


def visible(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))
