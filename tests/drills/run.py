"""Runs a drill at any length and writes what it came to:

    python tests/drills/run.py operators --tries 5000 --seed 1 --out results/drills/operators.json

Ends with 1 if anything failed.
"""

from __future__ import annotations

import argparse
import importlib
import shlex
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # of what the tests share

DRILLS = ("operators", "ranks")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("drill", choices=DRILLS)
    parser.add_argument("--tries", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="a JSON file to write")
    options = parser.parse_args()
    torch.set_num_threads(1)
    outcome = importlib.import_module(f"{options.drill.removesuffix('s')}_drill").drill(options.tries, options.seed)
    print(f"{outcome.name}: {outcome.tried} tried, {outcome.failed} failed, {outcome.seconds:.0f} s")
    print("  " + ", ".join(f"{kind} {count}" for kind, count in outcome.kinds.most_common()))
    for failure in outcome.failures[:5]:
        print("  FAILED " + failure[-600:])
    if options.out is not None:
        outcome.write(options.out, shlex.join(["python", *sys.argv]))
    return 1 if outcome.failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
