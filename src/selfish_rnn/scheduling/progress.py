"""Where a run stands, read from its folder while another process trains it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

TAIL_BYTES = 65536
"""More than the record of an epoch takes."""


@dataclass(frozen=True)
class RunProgress:
    """The last epoch a run has finished, of how many, with what perplexity, and how long it will still take."""

    epoch: int = 0
    epochs: int | None = None
    perplexity: float | None = None
    seconds_left: float | None = None


def read_progress(folder: Path) -> RunProgress:
    """The progress of a run; a folder that is not there yet, or a line half-written, is no progress."""
    record = _last_record(folder / "metrics.jsonl")
    epochs = _epochs(folder / "config.yaml")
    if record is None:
        return RunProgress(epochs=epochs)
    epoch, seconds = int(record["epoch"]), float(record["seconds"])
    left = seconds / epoch * (epochs - epoch) if epochs is not None and epoch else None
    return RunProgress(epoch, epochs, float(record["valid_perplexity"]), left)


def _last_record(path: Path) -> dict[str, float] | None:
    try:
        with open(path, "rb") as file:
            file.seek(0, 2)
            file.seek(max(file.tell() - TAIL_BYTES, 0))
            lines = file.read().split(b"\n")
    except OSError:
        return None
    # What follows the last line break is still being written.
    for line in reversed(lines[:-1]):
        try:
            record: dict[str, float] = json.loads(line)
        except ValueError:
            continue
        return record
    return None


def _epochs(path: Path) -> int | None:
    try:
        found = re.search(r"^epochs: (\d+)$", path.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found.group(1)) if found else None
