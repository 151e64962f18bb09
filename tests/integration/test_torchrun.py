"""The real command under torchrun: ranks that are killed come back, and the run ends as if nothing had been."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from selfish_rnn.runs.folder import RunFolder
from tiny_runs import OPTIMIZERS, finished_run, tiny_words

pytestmark = pytest.mark.slow

CHANGES: dict[str, Any] = {"method": "rigl", "optimizer": OPTIMIZERS["snt-asgd"]}
KILLED = Path(__file__).parent / "killed_rank.py"


def torchrun(*words: object) -> subprocess.CompletedProcess[str]:
    arguments = [sys.executable, "-m", "torch.distributed.run", "--standalone", *map(str, words)]
    return subprocess.run(arguments, capture_output=True, text=True, timeout=300, check=False)


def losses(run: Path) -> list[float]:
    return [loss for record in RunFolder(run).metrics.read() for loss in (record.train_loss, record.valid_loss)]


def test_a_killed_rank_comes_back_and_the_run_ends_as_one_that_was_left_alone(texts: Path, tmp_path: Path) -> None:
    run, alone = tmp_path / "run", tmp_path / "alone"
    words = ["train", *tiny_words(texts, **CHANGES), "-r", run]
    done = torchrun("--nproc-per-node", 2, "--max-restarts", 1, KILLED, *words)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("error: a rank that trains together with rank 0 is gone (") == 1
    assert f"the last good checkpoint, of update 10, is kept. Continue with `selfish-rnn resume {run}`" in done.stderr
    assert "Traceback" not in done.stderr
    assert set(re.findall(r"leaves with (\d+) threads", done.stderr)) == {"0"}
    assert done.stdout.count("test perplexity") == 1, "only the first rank speaks"
    finished_run(texts, alone, sub_batches=2, **CHANGES)
    assert losses(run) == pytest.approx(losses(alone), rel=1e-5)
    assert RunFolder(run).topologies.read_bytes() == RunFolder(alone).topologies.read_bytes()
