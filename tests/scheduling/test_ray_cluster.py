"""Runs on a real Ray cluster of two nodes on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from selfish_rnn.scheduling.ray_cluster import RayCluster
from selfish_rnn.scheduling.scheduler import Progress, run
from selfish_rnn.scheduling.sweep import Sweep

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'selfish-rnn[ray]'")

SETTINGS = {
    "epochs": 3, "train_tokens": 6000, "model": {"hidden": 8, "embedding": 8}, "engine": "masked", "threads": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    made.second = made.add_node(num_cpus=1)
    yield made
    made.shutdown()


def sweep(folder: Path) -> Sweep:
    folder.mkdir()
    path = folder / "sweep.yaml"
    path.write_text(yaml.safe_dump({"settings": SETTINGS, "grid": {"seed": [1, 2, 3]}}))
    return Sweep.read(path, folder / "runs")


def results(found: Sweep) -> list[dict[str, Any]]:
    return [{key: value for key, value in result.items() if key != "seconds"} for result in found.results()]


@pytest.mark.slow
def test_a_sweep_survives_the_loss_of_a_node_and_gives_what_local_processes_give(tmp_path: Path, cluster: Any) -> None:
    here = sweep(tmp_path / "here")
    assert not run(here.jobs(), 2).failed
    there = sweep(tmp_path / "there")
    lost = threading.Event()

    def lose_the_second_node(progress: Progress) -> None:
        begun = [job for job in progress.running if (job.folder / "metrics.jsonl").exists()]
        if len(begun) == 2 and not lost.is_set():
            lost.set()
            cluster.remove_node(cluster.second, allow_graceful=False)

    with RayCluster(cluster.address) as nodes:
        until = time.monotonic() + 60
        while nodes.processors < 2 and time.monotonic() < until:
            time.sleep(0.1)
        progress = run(there.jobs(), 2, lose_the_second_node, nodes.launch)
    assert lost.is_set()
    assert [outcome.state for outcome in progress.outcomes] == ["finished"] * 3
    assert progress.killed
    assert results(there) == results(here)


@pytest.mark.slow
def test_the_example_searches_with_ray_tune(tmp_path: Path) -> None:
    missing = "Ray Tune is not installed: pip install 'ray[tune]'"
    pytest.importorskip("ray.tune", reason=missing, exc_type=ImportError)  # pandas, for example, may be missing
    example = Path(__file__).parents[2] / "examples" / "ray_tune.py"
    words = [sys.executable, str(example), "--samples", "3", "--epochs", "2", "--tokens", "1500"]
    environment = {**os.environ, "HOME": str(tmp_path), "RAY_DEDUP_LOGS": "0"}
    told = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert told.returncode == 0, told.stderr[-2000:]
    assert "best valid perplexity" in told.stdout
    assert "3 trials" in told.stdout
