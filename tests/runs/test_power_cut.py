"""What a power cut leaves: the order of system calls around a checkpoint, as the kernel sees them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SAVE = """
import sys
from pathlib import Path
import torch
from selfish_rnn.files import append
from selfish_rnn.runs.checkpoints import CheckpointStore
CheckpointStore(Path(sys.argv[1]) / "checkpoints").save({"weights": torch.ones(9), "step": 7}, 7)
append(Path(sys.argv[1]) / "metrics.jsonl", b"{}")
"""


def traced(folder: Path) -> list[str]:
    """Syncs, renames and new folders in their order, each with the file it is about."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    log = folder / "trace"
    calls = "trace=fsync,fdatasync,rename,renameat,renameat2,mkdir,mkdirat"
    command = ["strace", "-f", "-y", "-e", calls, "-o", str(log), sys.executable, "-c", SAVE, str(folder)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    if "ptrace" in done.stderr or not log.exists():
        pytest.skip("strace may not trace here")
    assert done.returncode == 0, done.stderr
    found = []
    for line in log.read_text().splitlines():
        call = re.match(r"\d+ +(\w+)\(", line)
        if call is None or str(folder) not in line or "= -1" in line:
            continue
        kind = {"fdatasync": "fsync"}.get(call.group(1), re.sub(r"(at|at2)$", "", call.group(1)))
        paths = re.findall(rf"{re.escape(str(folder))}([^\">]*)", line)
        found.append(f"{kind} {paths[-1] or '/'}")
    return found


def place(path: str) -> str:
    """A file by its own name, wherever it lies while it is written."""
    return Path(path).name


@pytest.mark.slow
def test_data_is_on_the_disk_before_its_name_and_its_name_before_what_refers_to_it(tmp_path: Path) -> None:
    calls = traced(tmp_path)
    order = []
    for call in calls:
        kind, _, path = call.partition(" ")
        if kind == "fsync" and path in ("/checkpoints", "/"):
            order.append(f"sync folder {path}")
        elif kind == "fsync":
            order.append(f"sync {place(path)}")
        elif kind == "rename":
            order.append(f"rename {place(path)}")
    folder = "sync folder /checkpoints"
    saved = [
        "sync step-7.safetensors", "rename step-7.safetensors", folder,
        "sync step-7.json", "rename step-7.json", folder,
    ]  # fmt: skip
    wanted = iter(order)
    assert all(any(step == call for call in wanted) for step in saved), order
    assert order.index("sync folder /") < order.index("sync step-7.safetensors"), "the new folder has its name first"
    assert order[-2:] == ["sync metrics.jsonl", "sync folder /"]
