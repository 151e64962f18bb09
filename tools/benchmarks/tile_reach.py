"""Cost of a weight by the reach of its tile: its activations are in the first cache or beyond.

::

    python tools/benchmarks/tile_reach.py --out results/wide/tile-reach.json

Large tiles with 40 weights a line, of ever more columns: a panel of 64 tokens is 256 bytes of each. Timed are products
(SpMM) and gradients of the weights (SDDMM), one thread, the best of many short calls, in seconds of the processor;
the time to bring rows into panels and back, that of the same call on a matrix of as many rows and columns and hardly a
weight, is taken off.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from selfish_rnn.engine import PackedWeight
from selfish_rnn.engine import index as tiling
from selfish_rnn.engine.functional import linear
from selfish_rnn.system import machine

COLUMNS = (64, 128, 192, 512, 1024, 2048, 4096, 8192, 16384, 32768)
TOKENS, LINE, WEIGHTS = 64, 40, 1_200_000


def weight(columns: int, line: int) -> PackedWeight:
    """A matrix in one tile of columns, each row with ``line`` weights at random."""
    rows = WEIGHTS // LINE
    order = (
        torch.rand(rows, columns).argsort(1)[:, :line].sort(1).values if columns < 2048 else _drawn(rows, columns, line)
    )
    positions = (order + torch.arange(rows)[:, None] * columns).flatten().unique()
    # Narrower than large tiles are made for such a density: the tile is given, not chosen.
    of = tiling.Tiling.of
    cut = tiling.Tiling((*range(0, rows, 8192), rows), 1, columns)
    tiling.Tiling.of = classmethod(lambda *_: cut)  # type: ignore[assignment,method-assign]
    try:
        return PackedWeight((rows, columns), positions, torch.randn(len(positions)))
    finally:
        tiling.Tiling.of = of  # type: ignore[method-assign]


def _drawn(rows: int, columns: int, line: int) -> Tensor:
    return torch.randint(columns, (rows, line))


def best(call: Callable[[], object], seconds: float) -> float:
    times, stop = [], time.perf_counter() + seconds
    while len(times) < 20 or time.perf_counter() < stop:
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return min(times)


def measure(columns: int, seconds: float) -> dict[str, float]:
    """Nanoseconds of a weight and 64 tokens."""
    result: dict[str, float] = {"columns": columns, "kib": columns * TOKENS * 4 / 1024}
    x = torch.randn(TOKENS, columns)
    took: dict[str, list[float]] = {"spmm": [], "sddmm": []}
    for line in (LINE, 1):
        packed = weight(columns, line)
        with torch.no_grad():
            took["spmm"].append(best(lambda: linear(x, packed), seconds))  # noqa: B023
        y = linear(x, packed)
        d = torch.randn_like(y)
        gradient = lambda: torch.autograd.grad(y, packed.values, d, retain_graph=True)  # noqa: B023, E731
        took["sddmm"].append(best(gradient, seconds))
        result.setdefault("weights", packed.count)
        few = packed.count
    for name, (many, hardly_any) in took.items():
        result[f"{name}_ns"] = 1e9 * (many - hardly_any) / (result["weights"] - few)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each timing")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = []
    for columns in COLUMNS:
        rows.append(measure(columns, options.seconds))
        print({name: round(value, 2) for name, value in rows[-1].items()}, flush=True)
    report = {"command": " ".join(["python", *sys.argv]), "date": time.strftime("%Y-%m-%d"), "machine": machine()}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({**report, "tokens": TOKENS, "tiles": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
