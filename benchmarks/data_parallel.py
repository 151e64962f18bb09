"""What ranks that train the paper's LSTM together send each other, and from where on that takes longer than it saves.

Bytes are those of the loopback device, all headers included, so the script wants one of its own:

    unshare -rn python benchmarks/data_parallel.py traffic --out results/distributed/traffic.json
    python benchmarks/data_parallel.py seconds --out results/distributed/seconds.json
    python benchmarks/data_parallel.py table results/distributed

``table`` prints the arithmetic of docs/distributed.md.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import subprocess
import sys
import time
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

WORDS, COLUMNS, WINDOW = 10_000, 20, 35
NETWORKS = {"dense": ("masked", 0.67), "packed 0.67": ("packed", 0.67), "packed 0.9": ("packed", 0.9)}
"""Engine and sparsity; the gradients of the masked engine are those of a dense network."""

GIGABIT = 1e9 / 8
NETWORK_SPEED = 10 * GIGABIT * 0.9
"""Bytes a second, each way: 10 Gbit/s Ethernet, of which a tenth is lost to the protocols."""

LATENCY = 50e-6
"""Seconds from one machine to the next, of every message."""

MESSAGES = 4
"""Collectives of an update besides those of the gradients' bulk: ends of buckets, the loss, the pause."""


def experiment(engine: str, sparsity: float, columns: int, threads: int) -> Experiment:
    settings = {"engine": engine, "sparsity": sparsity, "batch_size": columns, "threads": threads}
    return build_experiment({**settings, "optimizer": {"name": "sgd"}, "epochs": 1}, "benchmark")


def random_corpus() -> Corpus:
    text = torch.randint(WORDS, (COLUMNS * 4 * WINDOW,), generator=torch.Generator().manual_seed(1))
    words = ("<eos>", *(f"word-{number}" for number in range(1, WORDS)))
    return Corpus("random words", Vocabulary(words, "whitespace"), text, text, text)


def sent() -> int:
    """Bytes that have gone over the loopback device of this network namespace."""
    found = re.search(r"^\s*lo:\s*(\d+)", Path("/proc/self/net/dev").read_text(), re.MULTILINE)
    assert found is not None
    return int(found.group(1))


def updates(trainer: Trainer, window: int, rounds: int) -> tuple[float, float]:
    """Bytes and the shortest seconds of an update; the first is not counted."""
    inputs, targets = window_at(trainer.rows, 0, window)
    trainer._update(inputs, targets, 1.0)
    before, seconds = sent(), []
    for _ in range(rounds):
        start = time.perf_counter()
        trainer._update(inputs, targets, 1.0)
        seconds.append(time.perf_counter() - start)
    return (sent() - before) / rounds, min(seconds)


def rank_work(rank: int, ranks: int, store: str, name: str, window: int, rounds: int, found: Any) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=ranks, timeout=timedelta(minutes=5)
    )
    engine, sparsity = NETWORKS[name]
    trainer = Trainer(experiment(engine, sparsity, COLUMNS, 1), random_corpus())
    distributed.barrier()
    measured = updates(trainer, window, rounds)
    if rank == 0:
        numbers = sum(parameter.numel() for parameter in trainer.model.parameters())
        found[name] = {"ranks": ranks, "numbers": numbers, "bytes": measured[0], "seconds": measured[1]}
    distributed.barrier()
    distributed.destroy_process_group()


def together(ranks: int, name: str, window: int, rounds: int) -> dict[str, Any]:
    """What an update of some ranks costs them all."""
    context = multiprocessing.get_context("spawn")
    with TemporaryDirectory() as folder, context.Manager() as manager:
        found = manager.dict()
        arguments = (ranks, f"{folder}/store", name, window, rounds, found)
        processes = [context.Process(target=rank_work, args=(rank, *arguments)) for rank in range(ranks)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        result: dict[str, Any] = found[name]
        return result


def traffic() -> dict[str, Any]:
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    several = {"packed 0.9": (2, 4)}
    return {name: [together(ranks, name, window=2, rounds=2) for ranks in several.get(name, (2,))] for name in NETWORKS}


def alone(name: str, columns: int, rounds: int) -> float:
    engine, sparsity = NETWORKS[name]
    trainer = Trainer(experiment(engine, sparsity, columns, torch.get_num_threads()), random_corpus())
    return updates(trainer, WINDOW, rounds)[1]


def seconds() -> dict[str, Any]:
    """Of an update in one process of as many threads as there are cores, and in two of one thread each."""
    found: dict[str, Any] = {}
    for name in NETWORKS:
        columns = (20,) if name == "dense" else (20, 10, 5, 2, 1)
        found[name] = {str(each): alone(name, each, 2) for each in columns}
    found["packed 0.67"]["2 ranks of 1 thread, 20"] = together(2, "packed 0.67", WINDOW, 2)["seconds"]
    return found


def ring(numbers: int, ranks: int) -> float:
    """Bytes a rank sends in a ring all-reduce of so many float32 numbers."""
    return 2 * (ranks - 1) / ranks * 4 * numbers


def table(folder: Path) -> None:
    """Traffic, time on the network, and speed against one machine; batches of 20 columns for each rank."""
    measured = json.loads((folder / "traffic.json").read_text())["traffic"]
    times = json.loads((folder / "seconds.json").read_text())["seconds"]
    print("| network | ranks | bytes an update and rank, measured | 2(R-1)/R x 4 x numbers | against dense |")
    print("|---|--:|--:|--:|--:|")
    for name, rows in measured.items():
        for row in rows:
            own, dense = row["bytes"] / row["ranks"], ring(measured["dense"][0]["numbers"], row["ranks"])
            print(
                f"| {name} | {row['ranks']} | {own / 1e6:.1f} MB | {ring(row['numbers'], row['ranks']) / 1e6:.1f} MB "
                f"| {own / dense:.3f} |"
            )
    print("\n| ranks | " + " | ".join(f"{name}: network, speed" for name in NETWORKS) + " |")
    print("|--:|" + "--:|" * len(NETWORKS))
    for ranks in (2, 4, 8, 16, 32, 64):
        cells = []
        for name in NETWORKS:
            wire = ring(measured[name][0]["numbers"], ranks) / NETWORK_SPEED + 2 * (ranks - 1) * LATENCY * MESSAGES
            cells.append(f"{wire:.3f} s, {ranks * times[name]['20'] / (times[name]['20'] + wire):.1f}")
        print(f"| {ranks} | " + " | ".join(cells) + " |")
    print(
        "\n| ranks sharing 20 columns | " + " | ".join(f"{name}: speed" for name in NETWORKS if name != "dense") + " |"
    )
    print("|--:|--:|--:|")
    for ranks in (2, 4, 10, 20):
        cells = []
        for name in NETWORKS:
            if name != "dense":
                wire = ring(measured[name][0]["numbers"], ranks) / NETWORK_SPEED + 2 * (ranks - 1) * LATENCY * MESSAGES
                cells.append(f"{times[name]['20'] / (times[name][str(COLUMNS // ranks)] + wire):.2f}")
        print(f"| {ranks} | " + " | ".join(cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("traffic", "seconds", "table"))
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.what == "table":
        table(options.folder)
        return
    found = {"traffic": traffic, "seconds": seconds}[options.what]()
    record = {
        "command": shlex.join(["python", *sys.argv]),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": machine(),
        options.what: found,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
