"""Communication of ranks that train together, and the point from which it costs more time than it saves.

Bytes are those of the loopback device, all headers included, so the script wants one of its own:

    unshare -rn python tools/benchmarks/data_parallel.py --out results/distributed/traffic.json
    python tools/benchmarks/data_parallel.py --bytes results/distributed/traffic.json \\
        --speed results/bench/lstm-1500-step/bench.json

The last prints the arithmetic of docs/distributed.md, from these bytes and the time of an update on one machine.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import distributed, multiprocessing

from selfish_rnn.corpora import Corpus, Vocabulary
from selfish_rnn.experiment.presets import build_experiment
from selfish_rnn.experiment.settings import Experiment
from selfish_rnn.system import machine
from selfish_rnn.training.trainer import Trainer
from selfish_rnn.training.windows import window_at

WORDS, COLUMNS = 10_000, 20
NETWORKS = {"dense": ("masked", 0.67), "packed 0.67": ("packed", 0.67), "packed 0.9": ("packed", 0.9)}
"""Engine and sparsity; the gradients of the masked engine are those of a dense network."""

GIGABIT = 1e9 / 8
NETWORK_SPEEDS = {"10 Gbit/s": 10 * GIGABIT * 0.9, "1 Gbit/s": GIGABIT * 0.9}
"""Bytes a second, each way: Ethernet, of which a tenth is lost to the protocols."""

LATENCY = 50e-6
"""Seconds from one machine to the next, of every message."""

MESSAGES = 4
"""Collectives of an update besides those of the gradients' bulk: ends of buckets, the loss, the pause."""


RANKS = (2, 4, 8, 16, 32, 64)
SHARED = (2, 4, 5, 10, 20)
"""Numbers of ranks of the tables: with 20 columns each, and those that divide 20 columns."""

MEASURED_WIDTH = 400
"""Units of the embedding and of the layers of the measured network."""

PAPER = {"matrices": 66_000_000, "others": 34_000}
"""The paper's Penn Treebank network, 1500 wide: positions of its matrices, and biases."""


def experiment(engine: str, sparsity: float) -> Experiment:
    model = {"name": "stacked-lstm", "embedding": MEASURED_WIDTH, "hidden": MEASURED_WIDTH}
    settings = {"model": model, "engine": engine, "sparsity": sparsity, "batch_size": COLUMNS, "threads": 1}
    return build_experiment({**settings, "optimizer": {"name": "sgd"}, "epochs": 1}, "benchmark")


def random_corpus() -> Corpus:
    text = torch.randint(WORDS, (COLUMNS * 10,), generator=torch.Generator().manual_seed(1))
    words = ("<eos>", *(f"word-{number}" for number in range(1, WORDS)))
    return Corpus("random words", Vocabulary(words, "whitespace"), text, text, text)


def sent() -> int:
    """Bytes that have gone over the loopback device of this network namespace."""
    result = re.search(r"^\s*lo:\s*(\d+)", Path("/proc/self/net/dev").read_text(), re.MULTILINE)
    assert result is not None
    return int(result.group(1))


def bytes_per_update(trainer: Trainer, rounds: int = 2) -> float:
    """Return the bytes that all ranks send in an update, without the first update."""
    inputs, targets = window_at(trainer.rows, 0, 2)
    trainer._update(inputs, targets, 1.0)
    before = sent()
    for _ in range(rounds):
        trainer._update(inputs, targets, 1.0)
    return (sent() - before) / rounds


def rank_work(rank: int, ranks: int, store: str, name: str, result: Any) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=ranks, timeout=timedelta(minutes=5)
    )
    engine, sparsity = NETWORKS[name]
    trainer = Trainer(experiment(engine, sparsity), random_corpus())
    distributed.barrier()
    measured = bytes_per_update(trainer)
    if rank == 0:
        numbers = sum(parameter.numel() for parameter in trainer.model.parameters())
        result[name] = {"ranks": ranks, "numbers": numbers, "bytes": measured}
    distributed.barrier()
    distributed.destroy_process_group()


def together(ranks: int, name: str) -> dict[str, Any]:
    """Return the cost of an update for all ranks."""
    context = multiprocessing.get_context("spawn")
    with TemporaryDirectory() as folder, context.Manager() as manager:
        found = manager.dict()
        arguments = (ranks, f"{folder}/store", name, found)
        processes = [context.Process(target=rank_work, args=(rank, *arguments)) for rank in range(ranks)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        result: dict[str, Any] = found[name]
        return result


def traffic() -> dict[str, Any]:
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    return {name: [together(ranks, name) for ranks in (2, 4)] for name in NETWORKS}


def ring(numbers: int, ranks: int) -> float:
    """Bytes a rank sends in a ring all-reduce of so many float32 numbers."""
    return 2 * (ranks - 1) / ranks * 4 * numbers


def update_seconds(bench: Path) -> dict[str, float]:
    """Return the seconds of an update with 20 columns on one machine, as measured by ``selfish-rnn bench``."""
    rows = [row for row in json.loads(bench.read_text())["rows"] if row["kind"] == "step"]
    of = {
        row["sparsity"]: {name: result["median_ms"] / 1000 for name, result in row["engines"].items()} for row in rows
    }
    return {"dense": of[0.67]["dense"], "packed 0.67": of[0.67]["packed"], "packed 0.9": of[0.9]["packed"]}


def paper_numbers(name: str) -> int:
    """Return the number of gradients of the paper's network that are sent."""
    density = 1 - NETWORKS[name][1] if name.startswith("packed") else 1
    return PAPER["others"] + round(density * PAPER["matrices"])


def overhead(measured: dict[str, Any], name: str) -> float:
    """Bytes that were sent over those of a ring's numbers, with the most ranks that were measured."""
    row = max(measured[name], key=lambda result: result["ranks"])
    return float(row["bytes"] / row["ranks"] / ring(row["numbers"], row["ranks"]))


@dataclass(frozen=True)
class Plan:
    """An update of the paper's network on several machines: what is measured on one, and the bytes of ranks."""

    seconds: dict[str, float]
    traffic: dict[str, Any]

    def wire(self, name: str, ranks: int, network: str) -> float:
        """Seconds on the network."""
        sent = overhead(self.traffic, name) * ring(paper_numbers(name), ranks)
        return sent / NETWORK_SPEEDS[network] + 2 * (ranks - 1) * LATENCY * MESSAGES

    def speed(self, name: str, ranks: int, network: str, share: bool) -> float:
        """Columns a second against one machine, with 20 columns for each rank or, shared, for all together."""
        wire, work = self.wire(name, ranks, network), self.seconds[name]
        return work / (work / ranks + wire) if share else ranks * work / (work + wire)

    def most_ranks(self, name: str, network: str, share: bool) -> int:
        """Ranks up to which each machine does at least half of what it does alone; one if two already do less."""
        counts = SHARED if share else RANKS
        paying = [ranks for ranks in counts if self.speed(name, ranks, network, share) >= ranks / 2]
        return max(paying, default=1)


def bytes_table(measured: dict[str, Any]) -> None:
    """Print the measurements, compared with the bytes of a ring all-reduce."""
    print("| network | ranks | bytes an update and rank, measured | 2(R-1)/R x 4 x numbers | against dense |")
    print("|---|--:|--:|--:|--:|")
    dense = {row["ranks"]: row["bytes"] for row in measured["dense"]}
    for name, rows in measured.items():
        for row in rows:
            ranks = row["ranks"]
            local, expected = row["bytes"] / ranks / 1e6, ring(row["numbers"], ranks) / 1e6
            print(f"| {name} | {ranks} | {local:.2f} MB | {expected:.2f} MB | {row['bytes'] / dense[ranks]:.3f} |")


def speed_tables(plan: Plan) -> None:
    """Time on the network, and speed against one machine, of the paper's network."""
    for title, share in (("20 columns for each rank", False), ("20 columns for all ranks together, at best", True)):
        print(f"\n| {title}: ranks | " + " | ".join(f"{name}: network, speed" for name in NETWORKS) + " |")
        print("|--:|" + "--:|" * len(NETWORKS))
        for ranks in SHARED if share else RANKS:
            cells = [
                f"{plan.wire(name, ranks, '10 Gbit/s'):.3f} s, {plan.speed(name, ranks, '10 Gbit/s', share):.1f}"
                for name in NETWORKS
            ]
            print(f"| {ranks} | " + " | ".join(cells) + " |")
    print("\n| ranks up to which a machine does half of what it does alone | " + " | ".join(NETWORKS) + " |")
    print("|---|" + "--:|" * len(NETWORKS))
    for network in NETWORK_SPEEDS:
        for way, share in (("for each rank", False), ("for all", True)):
            most = [str(plan.most_ranks(name, network, share)) for name in NETWORKS]
            print(f"| {network}, 20 columns {way} | " + " | ".join(most) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="measure bytes, write them here")
    parser.add_argument("--bytes", type=Path, metavar="TRAFFIC", help="print what was measured")
    parser.add_argument("--speed", type=Path, metavar="BENCH", help="print the arithmetic; wants --bytes, too")
    options = parser.parse_args()
    if options.out:
        record = {
            "command": shlex.join(["unshare", "-rn", "python", *sys.argv]),
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "machine": machine(),
            "traffic": traffic(),
        }
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(record, indent=1) + "\n")
    if options.bytes:
        measured = json.loads(options.bytes.read_text())["traffic"]
        bytes_table(measured)
        if options.speed:
            speed_tables(Plan(update_seconds(options.speed), measured))


if __name__ == "__main__":
    main()
