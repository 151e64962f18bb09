"""Cost of checks in steps at 512 units and sparsity 0.9: of kernel indices, and of NaN or infinite numbers.

    python tools/benchmarks/operator_checks.py --out results/operator-checks.json

The checks of operators in one step are written down as they are called, and then called again alone; those of an update
are timed where they happen, in memory as the optimizer leaves it. The least of many times counts.
"""

from __future__ import annotations

import argparse
import functools
import json
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from selfish_rnn.engine import pack
from selfish_rnn.engine.int8 import operators as int8
from selfish_rnn.engine.int8.quantization import quantize
from selfish_rnn.engine.operators import common
from selfish_rnn.models.stacked import StackedRNN
from selfish_rnn.optim import SNTASGD
from selfish_rnn.optim.averaged import AveragedSGD
from selfish_rnn.sparsifier import Sparsifier
from selfish_rnn.system import machine
from selfish_rnn.training.metrics import nonfinite_weight

HIDDEN, WORDS, WINDOW, COLUMNS = 512, 10_000, 35, 20

CHECKS = (
    *((common, name) for name in ("contiguous", "contiguous_if", "row_numbers", "check_weight", "check_gates")),
    *((common, name) for name in ("check_shape", "check_sizes", "check_together", "window_shape")),
    (int8, "windows_shape"),
)

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SNT-ASGD, averaging": functools.partial(SNTASGD, lr=0.1),
    "Adam": functools.partial(torch.optim.Adam, lr=1e-5),
    "SGD": functools.partial(torch.optim.SGD, lr=0.1),
}

Call = Callable[[], Any]


@contextmanager
def written_down() -> Iterator[list[Call]]:
    """All checks that are called in this block, those inside of others left out."""
    calls: list[Call] = []
    depth = 0

    def noting(function: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any) -> Any:
            nonlocal depth
            if depth == 0:
                calls.append(functools.partial(function, *arguments))
            depth += 1
            try:
                return function(*arguments)
            finally:
                depth -= 1

        return noted

    patches = [patch.object(module, name, noting(getattr(module, name))) for module, name in CHECKS]
    for item in patches:
        item.start()
    try:
        yield calls
    finally:
        for item in patches:
            item.stop()


def least(call: Call, rounds: int) -> float:
    """Seconds of the processor, which a busy machine does not make more of."""
    times = []
    for _ in range(rounds):
        start = time.thread_time()
        call()
        times.append(time.thread_time() - start)
    return min(times)


def measured(step: Call, rounds: int) -> dict[str, float]:
    step()
    with written_down() as calls:
        step()
    whole, checks = least(step, rounds), least(lambda: [call() for call in calls], 500) if calls else 0.0
    return {
        "step_ms": round(1e3 * whole, 3),
        "checks": len(calls),
        "checks_us": round(1e6 * checks, 2),
        "percent": round(100 * checks / whole, 4),
    }


def measured_updates(model: Any, tokens: torch.Tensor, optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """Whole updates, and in each of them the look at all weights and all that the optimizer remembers."""
    if isinstance(optimizer, AveragedSGD):
        optimizer.start_averaging()
    steps, checks = [], []
    for _ in range(40):
        start = time.thread_time()
        optimizer.zero_grad()
        model.loss(model.encode(tokens, model.initial_state(COLUMNS)).output, tokens).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        stepped = time.thread_time()
        assert nonfinite_weight(model, optimizer) is None
        steps.append(stepped - start)
        checks.append(time.thread_time() - stepped)
    step, check = min(steps), min(checks)
    return {
        "step_ms": round(1e3 * step, 3),
        "checks": 1,
        "checks_us": round(1e6 * check, 2),
        "percent": round(100 * check / step, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model: Any = StackedRNN(WORDS, embedding=HIDDEN, hidden=HIDDEN)
    Sparsifier(model, sparsity=0.9, rewirings=1).detach()
    pack(model)
    tokens = torch.randint(WORDS, (WINDOW, COLUMNS))

    def train() -> None:
        model.zero_grad()
        model.loss(model.encode(tokens, model.initial_state(COLUMNS)).output, tokens).backward()

    result = {"training, 35 x 20 words": measured(train, 10)}
    for name, optimizer in OPTIMIZERS.items():
        result[f"update by {name}, 35 x 20 words"] = measured_updates(model, tokens, optimizer(model.parameters()))
    small = quantize(model)
    with torch.no_grad():
        for steps, columns, rounds in ((WINDOW, COLUMNS, 10), (1, COLUMNS, 100), (1, 1, 500)):
            some = tokens[:steps, :columns]
            step = functools.partial(small, some, small.initial_state(columns))
            result[f"int8, {steps} x {columns} words"] = measured(step, rounds)
        word = small.next_word()
        result["int8, the next word in one call"] = measured(lambda: word(3), 1000)
    record = {
        "command": shlex.join(["python", *sys.argv]),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": machine(),
        "steps": result,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
