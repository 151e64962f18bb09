"""Runs a drill at any length and writes what it came to:

    python tests/drills/run.py operators --tries 5000 --seed 1 --out results/drills/operators.json

``all`` makes the long version of each, with the numbers of tries in ``LONG``, and writes into the folder ``--out``.
Ends with 1 if anything failed.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
import tempfile
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # of what the tests share

import corpus_drill
import file_drill
import kill_drill
import operator_drill
import rank_drill
import ray_drill
import setting_drill
import stream_drill
import sweep_drill
from drill import Outcome, Patience

DRILLS = {
    "kill": kill_drill.kill_drill,
    "signal": kill_drill.signal_drill,
    "disk": kill_drill.disk_drill,
    "files": file_drill.drill,
    "settings": setting_drill.drill,
    "corpora": corpus_drill.drill,
    "operators": operator_drill.drill,
    "streams": stream_drill.drill,
    "sweep": sweep_drill.drill,
    "ranks": rank_drill.drill,
    "ray": ray_drill.drill,
}

LONG = {
    "kill": 300, "signal": 60, "disk": 30, "files": 5000, "settings": 20_000, "corpora": 100, "operators": 5000,
    "streams": 10_000,
    "sweep": 40, "ranks": 25, "ray": 8,
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("drill", choices=(*DRILLS, "all"))
    parser.add_argument("--tries", type=int, help="how often (default: LONG)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, help="stop after so long, with what was tried by then")
    parser.add_argument("--out", type=Path, help="a JSON file to write")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.minutes is not None:
        Patience.end = time.monotonic() + 60 * options.minutes
    os.environ["SELFISH_RNN_CACHE"] = tempfile.mkdtemp(prefix="drill-cache-")
    chosen = list(DRILLS) if options.drill == "all" else [options.drill]
    failed = 0
    for name in chosen:
        outcome = DRILLS[name](options.tries or LONG[name], options.seed)
        show(outcome)
        failed += outcome.failed
        if options.out is not None:
            path = options.out / f"{name}.json" if options.drill == "all" else options.out
            outcome.write(path, shlex.join(["python", *sys.argv]))
    shutil.rmtree(os.environ["SELFISH_RNN_CACHE"])
    return 1 if failed else 0


def show(outcome: Outcome) -> None:
    print(f"{outcome.name}: {outcome.tried} tried, {outcome.failed} failed, {outcome.seconds:.0f} s")
    print("  " + ", ".join(f"{kind} {count}" for kind, count in outcome.kinds.most_common()))
    for failure in outcome.failures[:5]:
        print("  FAILED " + failure[-600:], flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
