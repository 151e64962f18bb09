"""A sweep on a real Ray cluster of two nodes, of which one is lost, as is the process of one run; each try is a run.

All runs finish, and come to what the same sweep comes to with processes of this machine.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml
from drill import Outcome, source

from forked_runs import fork, warm
from selfish_rnn.scheduling.ray_cluster import RayCluster
from selfish_rnn.scheduling.scheduler import Progress, run
from selfish_rnn.scheduling.sweep import Sweep
from tiny_runs import result_of

SETTINGS = {
    "epochs": 6, "train_tokens": 6000, "model": {"hidden": 8, "embedding": 8}, "engine": "masked", "threads": 1,
}  # fmt: skip


class Disturbance:
    """A listener of the scheduler that kills the process of a run, and later a node."""

    def __init__(self, cluster: Any, node: Any, seed: int) -> None:
        self.done: list[str] = []
        self._cluster, self._node, self._draw = cluster, node, source(seed, 0)

    def __call__(self, progress: Progress) -> None:
        begun = [job for job in progress.running if (job.folder / "metrics.jsonl").exists()]
        if not self.done and begun:
            processes = _runs_on_nodes()
            with suppress(ProcessLookupError, IndexError):
                os.kill(self._draw.choice(processes), signal.SIGKILL)
                self.done.append("the process of a run killed")
        elif len(self.done) == 1 and progress.outcomes and begun and len(progress.running) == 2:
            self._cluster.remove_node(self._node, allow_graceful=False)
            self.done.append("a node killed")


def drill(tries: int, seed: int) -> Outcome:
    from ray.cluster_utils import Cluster

    outcome, started = Outcome("ray", seed), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="drill-") as name, warm(Path(name) / "warm"):
        grid = Path(name) / "sweep.yaml"
        grid.write_text(yaml.safe_dump({"settings": SETTINGS, "grid": {"seed": list(range(1, tries + 1))}}))
        here, there = (Sweep.read(grid, Path(name) / folder) for folder in ("here", "there"))
        run(here.jobs(), 1, launch=fork)
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        disturbance = Disturbance(cluster, cluster.add_node(num_cpus=1), seed)
        with RayCluster(cluster.address) as nodes:
            while nodes.processors < 2:
                time.sleep(0.1)
            progress = run(there.jobs(), 2, disturbance, nodes.launch)
        cluster.shutdown()
        outcome.kinds.update(disturbance.done)
        outcome.kinds["started again"] = len(progress.killed)
        for one in here.runs:
            path = there.path(one)
            if not (path / "summary.json").exists() or result_of(path) != result_of(here.path(one)):
                outcome.fail(f"{one.name} is not finished, or came to another result")
            else:
                outcome.count("finished with the result of a local process")
        if len(disturbance.done) < 2:
            outcome.failures.append(f"the sweep was over before all that was to be killed was: {disturbance.done}")
            outcome.failed += 1
    outcome.seconds = time.monotonic() - started
    return outcome


def _runs_on_nodes() -> list[int]:
    """Processes of this drill's runs; its cache has a name that no other process was given."""
    mark = f"SELFISH_RNN_CACHE={os.environ['SELFISH_RNN_CACHE']}\0".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if b"selfish_rnn" in words and mark in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found
