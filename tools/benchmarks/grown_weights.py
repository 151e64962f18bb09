"""Initial second moment of grown weights: the quickstart with Adam and AdamW under several rules.

    cd benchmarks
    python grown_weights.py --list                                      # the names of all cases
    python grown_weights.py --list | xargs -n 1 python grown_weights.py --out ../results/grown-weights
    python grown_weights.py --table ../results/grown-weights            # their test perplexities

A case such as ``adam-0.0-selfish-matrix-seed1`` is one run of the quickstart preset: optimizer, its first beta, method,
rule and seed; one line of ``runs.jsonl`` is written for it. The rules: ``matrix``, what the library does, is the mean
over the surviving weights of the matrix; ``row`` the mean over those of the row, or of the matrix where none survives;
``zero`` what SET and RigL were published with; ``age`` starts at zero, too, but counts the steps of every weight for
itself, so that the correction for a young average is that weight's own. SNFS keeps what the optimizer remembers of all
positions, whatever the rule.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Adam, AdamW, Optimizer

from selfish_rnn.engine import PackedWeight
from selfish_rnn.experiment.presets import build_experiment, read_preset
from selfish_rnn.runs.run import Run
from selfish_rnn.sparsifier import optimizer_state
from selfish_rnn.training import build as optimizers

SEEDS = (1, 2, 3)
GROWING = ("selfish", "set", "dsr", "rigl")
NOT_GROWING = ("static", "static-er", "gmp", "snfs", "dense")
"""Nothing is grown, or, by SNFS, nothing is reset: one rule is as good as another."""


def cases() -> list[str]:
    """The most telling ones first."""
    table = [("adam", 0.0, method, rule) for method in GROWING for rule in ("zero", "matrix")]
    table += [("adam", 0.0, method, "matrix") for method in NOT_GROWING]
    choice = [(name, beta, "selfish", rule) for name, beta in (("adam", 0.9), ("adamw", 0.0), ("adamw", 0.9))
              for rule in ("zero", "matrix")]  # fmt: skip
    choice += [("adam", beta, "selfish", rule) for beta in (0.0, 0.9) for rule in ("row", "age")]
    choice += [(name, beta, "static", "matrix") for name, beta in (("adam", 0.9), ("adamw", 0.0), ("adamw", 0.9))]
    first = [case for case in table if case[2] in ("selfish", "static")]
    ordered = [
        *itertools.product(first, SEEDS),
        *itertools.product([case for case in table if case not in first], SEEDS[:1]),
        *((case, seed) for seed in SEEDS for case in choice),
        *((case, seed) for seed in SEEDS[1:] for case in table if case not in first),
    ]
    return ["-".join(map(str, (*case, f"seed{seed}"))) for case, seed in ordered]


class AgedAdam(Adam):
    """Adam that counts the steps of every weight for itself; what starts afresh starts at age 0."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            first, second = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                gradient = parameter.grad.add(parameter, alpha=group["weight_decay"])
                state = self.state[parameter]
                if not state:
                    state.update({key: torch.zeros_like(parameter) for key in ("age", "exp_avg", "exp_avg_sq")})
                state["age"].add_(1)
                state["exp_avg"].lerp_(gradient, 1 - first)
                state["exp_avg_sq"].mul_(second).addcmul_(gradient, gradient, value=1 - second)
                mean = state["exp_avg"] / (1 - first ** state["age"])
                length = (state["exp_avg_sq"] / (1 - second ** state["age"])).sqrt_().add_(group["eps"])
                parameter.addcdiv_(mean, length, value=-group["lr"])


def with_means_of_rows(rewire: Any) -> Any:
    """``PackedWeight.rewire``, with second moments at the mean over the surviving weights of the row."""

    @torch.no_grad()
    def rewired(weight: PackedWeight, removed: Tensor, grown: Tensor, optimizers: Sequence[Optimizer] = ()) -> None:
        rewire(weight, removed, grown, optimizers)
        positions, places = weight.sorted()
        rows, fresh = positions // weight.shape[1], torch.isin(positions, grown)
        for optimizer in optimizers:
            moment = optimizer.state[weight.values]["exp_avg_sq"]
            result = moment[places]
            counts = torch.zeros(weight.shape[0]).index_add_(0, rows, (~fresh).float())
            sums = torch.zeros(weight.shape[0]).index_add_(0, rows[~fresh], result[~fresh])
            means = torch.where(counts[rows] > 0, sums[rows] / counts[rows], result)
            moment[places[fresh]] = means[fresh]

    return rewired


def run(case: str) -> dict[str, Any]:
    name, beta, remainder = case.split("-", 2)
    method, rule, seed = remainder.rsplit("-", 2)
    masked = method in ("snfs", "dense")
    if rule in ("zero", "age"):
        optimizer_state.SECOND_MOMENTS = frozenset()
    if rule == "row":
        PackedWeight.rewire = with_means_of_rows(PackedWeight.rewire)  # type: ignore[method-assign]
    optimizers._OPTIMIZERS["adam"] = AdamW if name == "adamw" else AgedAdam if rule == "age" else Adam
    settings = read_preset("quickstart")[0] | {
        "method": method,
        "seed": int(seed.removeprefix("seed")),
        "engine": "masked" if masked else "packed",
        "threads": 1,
        "optimizer": {
            "name": "adam",
            "betas": [float(beta), 0.999],
            "weight_decay": 0.01 if name == "adamw" else 1.2e-6,
        },
    }
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        summary = Run.start(build_experiment(settings, case), Path(folder) / "run").train()
    kept = ("valid_perplexity", "test_perplexity", "active_weights", "engine", "seconds")
    return {
        "case": case,
        **{key: summary[key] for key in kept},
        "torch": torch.__version__,
        "machine": platform.platform(),
        "date": time.strftime("%Y-%m-%d"),
    }


RULES = {
    "zero": "zero",
    "matrix": "mean of the matrix",
    "row": "mean of the row",
    "age": "own step count",
}
OPTIMIZERS = {
    "adam-0.0": "Adam, betas (0, 0.999), the paper's",
    "adam-0.9": "Adam, betas (0.9, 0.999)",
    "adamw-0.0": "AdamW (decay 0.01), betas (0, 0.999)",
    "adamw-0.9": "AdamW (decay 0.01), betas (0.9, 0.999)",
}


def tables(folder: Path) -> tuple[list[str], list[str]]:
    """Test perplexities as rows of Markdown: of the rules by optimizer, and of the methods; mean and every seed."""
    result: dict[tuple[str, str, str], dict[str, float]] = defaultdict(dict)
    for line in (folder / "runs.jsonl").read_text().splitlines():
        record = json.loads(line)
        name, beta, remainder = record["case"].split("-", 2)
        method, rule, seed = remainder.rsplit("-", 2)
        result[f"{name}-{beta}", method, rule][seed] = record["test_perplexity"]

    def cell(*of: str) -> str:
        values = [value for _, value in sorted(result.get(of, {}).items())]
        entry = f" ({', '.join(f'{value:.1f}' for value in values)})" if len(values) > 1 else ""
        return f"{statistics.mean(values):.2f}{entry}" if values else "-"

    def row(*cells: str) -> str:
        return f"| {' | '.join(cells)} |"

    rules = [row("", *RULES.values(), "static topology"), row(*["---"] * (len(RULES) + 2))]
    for key, label in OPTIMIZERS.items():
        rules.append(row(label, *(cell(key, "selfish", rule) for rule in RULES), cell(key, "static", "matrix")))
    first = next(iter(OPTIMIZERS))
    methods = [row(OPTIMIZERS[first], "before: zero", "after: mean of the matrix"), row(*["---"] * 3)]
    methods += [row(method, cell(first, method, "zero"), cell(first, method, "matrix")) for method in GROWING]
    methods += [row(method, "the same", cell(first, method, "matrix")) for method in NOT_GROWING]
    return rules, methods


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("case", nargs="*")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path)
    given = parser.parse_args()
    if given.list:
        print("\n".join(cases()))
    elif given.table is not None:
        print("\n\n".join("\n".join(rows) for rows in tables(given.table)))
    elif given.out is None:
        sys.exit("--out says where the results go")
    else:
        given.out.mkdir(parents=True, exist_ok=True)
        for case in given.case:
            line = json.dumps(run(case))
            with (given.out / "runs.jsonl").open("a") as file:
                file.write(line + "\n")
