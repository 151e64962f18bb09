"""Compare sparse training methods on five small tasks that are not language models.

    python tools/benchmarks/small_tasks.py results/small-tasks/runs.jsonl            # finished runs are skipped
    python tools/benchmarks/small_tasks.py results/small-tasks/runs.jsonl --table    # print the tables, train nothing

Every task generates its data: no download. A run trains one network for a few hundred updates on one thread, in about
three seconds, and appends one line of JSON with its score, settings, machine, date and commit. `dense` is the network
itself, `small dense` a narrower one with as many parameters as the sparse one; all other methods are those of the
method table. `--rules paper` binds by the rules of the paper's presets: every matrix becomes sparse, and no starting
weight is rescaled. `--rules library` uses the defaults of `Sparsifier`, `--rules er` those with `allocation="er"`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from selfish_rnn import Sparsifier, system

METHODS = ("dense", "small dense", "static", "selfish", "set", "rigl", "gmp")
DENSE = METHODS[:2]
SPARSITIES = (0.67, 0.9, 0.95)
REWIRINGS = 20
TRAINING, TEST = 4000, 1000
"""Number of generated sequences."""

RULES: dict[str, dict[str, Any]] = {
    "library": {},
    "paper": {"min_side": 1, "rescale": False},
    "er": {"allocation": "er"},
}
"""Arguments of `Sparsifier` for each set of rules."""


class Data(NamedTuple):
    """Inputs, sequences first, and targets: classes, or numbers to predict."""

    inputs: Tensor
    targets: Tensor


# Networks


class Reader(nn.Module):
    """A recurrent layer that reads a sequence, and a linear layer that answers after its last step or after each."""

    def __init__(self, rnn: nn.GRU | nn.LSTM, outputs: int, every_step: bool = False) -> None:
        super().__init__()
        self.rnn = rnn
        self.output = nn.Linear(rnn.hidden_size * (2 if rnn.bidirectional else 1), outputs)
        self.every_step = every_step

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.rnn(x)[0]
        answers: Tensor = self.output(hidden if self.every_step else hidden[:, -1])
        return answers


class Forecaster(Reader):
    """A reader that predicts the change from each value to the next."""

    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)


class Tagger(nn.Module):
    """A bidirectional LSTM over embedded words that answers after each."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, max(width // 2, 1))
        rnn = nn.LSTM(self.embedding.embedding_dim, width, batch_first=True, bidirectional=True)
        self.reader = Reader(rnn, 4, every_step=True)

    def forward(self, words: Tensor) -> Tensor:
        answers: Tensor = self.reader(self.embedding(words))
        return answers


# Data


def uniform(generator: torch.Generator, low: float, high: float, *shape: int) -> Tensor:
    """Draw uniformly between two numbers."""
    return low + (high - low) * torch.rand(shape, generator=generator)


GLYPHS = """
.###. ..#.. .###. .###. ...#. ##### .###. ##### .###. .###.
#...# .##.. #...# #...# ..##. #.... #.... ....# #...# #...#
#..## ..#.. ....# ....# .#.#. ####. #.... ...#. #...# #...#
#.#.# ..#.. ...#. ..##. #..#. ....# ####. ..#.. .###. .####
##..# ..#.. ..#.. ....# ##### ....# #...# ..#.. #...# ....#
#...# ..#.. .#... #...# ...#. #...# #...# .#... #...# ....#
.###. .###. ##### .###. ...#. .###. .###. .#... .###. .###.
"""


def digits(size: int, generator: torch.Generator) -> Data:
    """Draw noisy digits of 8 x 8 pixels, shifted at random and read row by row."""
    rows = [line.split() for line in GLYPHS.split("\n") if line]
    glyphs = torch.tensor([[[pixel == "#" for pixel in row[digit]] for row in rows] for digit in range(10)]).float()
    classes = torch.randint(10, (size,), generator=generator)
    down = torch.randint(2, (size, 1), generator=generator) + torch.arange(7)
    right = torch.randint(4, (size, 1), generator=generator) + torch.arange(5)
    images = torch.zeros(size, 8, 8)
    images[torch.arange(size)[:, None, None], down[:, :, None], right[:, None, :]] = glyphs[classes]
    contrast = uniform(generator, 0.5, 1.0, size, 1, 1)
    return Data(contrast * images + 0.3 * torch.randn(images.shape, generator=generator), classes)


def shapes(size: int, generator: torch.Generator) -> Data:
    """Draw sine, square, triangle and sawtooth waves of one input, in noise."""
    classes = torch.randint(4, (size, 1), generator=generator)
    period = uniform(generator, 10, 25, size, 1)
    phase = (torch.arange(40) / period + uniform(generator, 0, 1, size, 1)) % 1
    sine = (2 * math.pi * phase).sin()
    waves = torch.stack([sine, sine.sign(), 4 * (phase - 0.5).abs() - 1, 2 * phase - 1])
    series = waves.gather(0, classes.expand(size, 40).unsqueeze(0)).squeeze(0)
    return Data((series + 0.4 * torch.randn(series.shape, generator=generator)).unsqueeze(-1), classes.squeeze(1))


def forecast(size: int, generator: torch.Generator) -> Data:
    """Draw sums of two waves of random phase, with noise; the target is the next value."""
    steps = torch.arange(41.0)
    first, second = (uniform(generator, 0, 2 * math.pi, size, 1) for _ in range(2))
    period = uniform(generator, 12, 20, size, 1)
    series = (2 * math.pi * steps / period + first).sin() + 0.5 * (1.1 * steps + second).sin()
    series = (series + 0.1 * torch.randn(series.shape, generator=generator)).unsqueeze(-1)
    return Data(series[:, :-1], series[:, 1:])


def adding(size: int, generator: torch.Generator) -> Data:
    """Draw 24 numbers and mark one in each half; the target is the sum of the two."""
    numbers = torch.rand(size, 24, generator=generator)
    marks = torch.zeros(size, 24)
    for start in (0, 12):
        marks[torch.arange(size), start + torch.randint(12, (size,), generator=generator)] = 1
    return Data(torch.stack([numbers, marks], -1), (numbers * marks).sum(1, keepdim=True))


def tags(size: int, generator: torch.Generator) -> Data:
    """Draw words; a tag says whether the word four to the left and the word two to the right are odd."""
    words = torch.randint(20, (size, 20), generator=generator)
    odd = functional.pad(words % 2, (4, 2))
    return Data(words, 2 * odd[:, :20] + odd[:, 6:])


def keywords(size: int, generator: torch.Generator) -> Data:
    """Draw tones that glide over 20 frequency bands; the class is the pair of start and end region."""
    classes = torch.randint(8, (size,), generator=generator)
    start, bend, end = (10 * ((classes >> bit) & 1)[:, None] + uniform(generator, 0, 9, size, 1) for bit in range(3))
    time_ = torch.linspace(0, 1, 25) ** uniform(generator, 0.6, 1.6, size, 1)
    tone = (1 - time_) ** 2 * start + 2 * time_ * (1 - time_) * bend + time_**2 * end
    bands = (-0.5 * (torch.arange(20) - tone.unsqueeze(-1)) ** 2).exp()
    return Data(bands + 0.4 * torch.randn(bands.shape, generator=generator), classes)


# Scores


def accuracy(answers: Tensor, data: Data) -> float:
    """Return the percentage of right classes."""
    return 100 * (answers.argmax(-1) == data.targets).float().mean().item()


def skill(answers: Tensor, data: Data) -> float:
    """Return how much of the squared error of "the same as now" is avoided, in percent."""
    persistence = functional.mse_loss(data.inputs, data.targets)
    return 100 * (1 - functional.mse_loss(answers, data.targets) / persistence).item()


def explained(answers: Tensor, data: Data) -> float:
    """Return how much of the targets' variance is explained, in percent."""
    return 100 * (1 - functional.mse_loss(answers, data.targets) / data.targets.var(correction=0)).item()


@dataclass(frozen=True)
class Task:
    """A network of a width, its data and its training."""

    model: Callable[[int], nn.Module]
    width: int
    data: Callable[[int, torch.Generator], Data]
    score: Callable[[Tensor, Data], float]
    updates: int

    def loss(self, answers: Tensor, targets: Tensor) -> Tensor:
        if targets.is_floating_point():
            return functional.mse_loss(answers, targets)
        return functional.cross_entropy(answers.flatten(0, -2), targets.flatten())


TASKS = {
    "digits": Task(lambda width: Reader(nn.GRU(8, width, batch_first=True), 10), 96, digits, accuracy, 600),
    "shapes": Task(lambda width: Reader(nn.GRU(1, width, batch_first=True), 4), 96, shapes, accuracy, 300),
    "forecast": Task(
        lambda width: Forecaster(nn.LSTM(1, width, batch_first=True), 1, every_step=True),
        64,
        forecast,
        skill,
        400,
    ),
    "adding": Task(lambda width: Reader(nn.GRU(2, width, batch_first=True), 1), 64, adding, explained, 500),
    "tagger": Task(Tagger, 64, tags, accuracy, 400),
    "keywords": Task(
        lambda width: Reader(nn.GRU(20, width, num_layers=2, batch_first=True), 8),
        64,
        keywords,
        accuracy,
        300,
    ),
}


# Runs


@dataclass(frozen=True)
class Run:
    """One training; dense networks have sparsity 0, `small dense` the sparsity of the network it is compared with."""

    task: str
    method: str
    sparsity: float
    rules: str
    seed: int

    @property
    def key(self) -> tuple[Any, ...]:
        return tuple(asdict(self).values())


def bind(model: nn.Module, run: Run, updates: int) -> Sparsifier:
    method = "selfish" if run.method in DENSE else run.method
    return Sparsifier(
        model,
        sparsity=run.sparsity,
        method=method,
        rewirings=REWIRINGS,
        rewire_every=updates // REWIRINGS,
        **RULES[run.rules],
    )


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def narrower(task: Task, count: int) -> nn.Module:
    """Build the dense network with the number of parameters nearest to `count`."""
    width = min(range(1, task.width + 1), key=lambda width: abs(parameters(task.model(width)) - count))
    return task.model(width)


def build(task: Task, run: Run) -> tuple[nn.Module, Sparsifier | None]:
    torch.manual_seed(run.seed)
    model = task.model(task.width)
    if run.method == "dense":
        return model, None
    sparsifier = bind(model, run, task.updates)
    if run.method == "small dense":
        count = parameters(model) - sparsifier.total_weights + sparsifier.active_weights
        torch.manual_seed(run.seed)
        return narrower(task, count), None
    return model, sparsifier


def train(run: Run) -> dict[str, Any]:
    """Train one network and return its record."""
    torch.set_num_threads(1)
    task = TASKS[run.task]
    generator = torch.Generator().manual_seed(0)  # the same data in every run
    training, test = task.data(TRAINING, generator), task.data(TEST, generator)
    model, sparsifier = build(task, run)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 0.01, task.updates)
    start = time.process_time()
    for _ in range(task.updates):
        batch = torch.randint(TRAINING, (32,))
        optimizer.zero_grad()
        task.loss(model(training.inputs[batch]), training.targets[batch]).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    seconds = time.process_time() - start
    zeros = 0 if sparsifier is None else sparsifier.total_weights - sparsifier.active_weights
    with torch.no_grad():
        score = task.score(model.eval()(test.inputs), test)
    return {
        **asdict(run),
        "score": round(score, 3),
        "parameters": parameters(model) - zeros,
        "seconds": round(seconds, 2),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": system.machine(),
        "torch": torch.__version__,
        "commit": commit(),
    }


def commit() -> str:
    """Return the commit of the source, with a plus sign if files have changed."""
    command = ("git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty=+", "--exclude=*")
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def planned(
    tasks: Iterable[str], methods: Iterable[str], sparsities: Iterable[float], rules: Iterable[str], seeds: int
) -> Iterator[Run]:
    """List all runs; dense networks have no sparsity, and none but sparse ones depends on rules."""
    for rule, task, method in itertools.product(rules, tasks, methods):
        for sparsity, seed in itertools.product((0.0,) if method == "dense" else sparsities, range(seeds)):
            if method not in DENSE or rule == "library":
                yield Run(task, method, sparsity, rule, seed)


def records(file: Path) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Read finished runs by their keys; a line that an interruption cut off is skipped."""
    finished = {}
    for line in file.read_text().splitlines() if file.exists() else ():
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        finished[Run(*(record[name] for name in Run.__dataclass_fields__)).key] = record
    return finished


def train_all(runs: Sequence[Run], file: Path, jobs: int) -> None:
    """Train what is not finished, and append one line per run."""
    finished = records(file)
    missing = [run for run in runs if run.key not in finished]
    file.parent.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(jobs) as pool, file.open("a") as lines:
        futures = [pool.submit(train, run) for run in missing]
        for number, future in enumerate(as_completed(futures), 1):
            record = future.result()
            lines.write(json.dumps(record) + "\n")
            lines.flush()
            print(f"{number}/{len(missing)}", *(record[key] for key in ("task", "method", "sparsity", "rules", "seed")))


# Tables

ROWS = (
    ("dense", "dense", "library"),
    ("small dense", "small dense", "library"),
    ("static", "static", "library"),
    ("Selfish", "selfish", "library"),
    ("SET", "set", "library"),
    ("RigL", "rigl", "library"),
    ("GMP", "gmp", "library"),
    ('static, `allocation="er"`', "static", "er"),
    ('Selfish, `allocation="er"`', "selfish", "er"),
    ("static, the paper's rules", "static", "paper"),
    ("Selfish, the paper's rules", "selfish", "paper"),
)
"""Title, method and rules of every row."""


def cell(scores: Sequence[float]) -> str:
    """Format the mean and the standard deviation over seeds."""
    if not scores:
        return "-"
    spread = f" ± {statistics.stdev(scores):.1f}" if len(scores) > 1 else ""
    return f"{statistics.mean(scores):.1f}{spread}"


def table(finished: Iterable[dict[str, Any]], sparsity: float) -> list[str]:
    """Render the Markdown rows of one sparsity: methods below one another, tasks side by side."""
    scores: dict[tuple[str, str, str], list[float]] = {}
    sizes: dict[tuple[str, str], int] = {}
    for record in finished:
        if record["sparsity"] in (0.0, sparsity):
            scores.setdefault((record["task"], record["method"], record["rules"]), []).append(record["score"])
            if record["rules"] == "library":
                sizes[record["task"], record["method"]] = record["parameters"]
    tasks = [task for task in TASKS if (task, "dense") in sizes]
    lines = [f"| S = {sparsity:g} | " + " | ".join(tasks) + " |", "| --- |" + " --- |" * len(tasks)]
    for title, method, rule in ROWS:
        cells = [cell(scores.get((task, method, rule), [])) for task in tasks]
        if set(cells) != {"-"}:
            lines.append(f"| {title} | " + " | ".join(cells) + " |")
    counts = [f"{sizes[task, 'dense']:,} / {sizes.get((task, 'static'), 0):,}" for task in tasks]
    return [*lines, "| parameters, dense / sparse | " + " | ".join(counts) + " |"]


def tables(file: Path) -> list[list[str]]:
    """Render the table of every sparsity that has results."""
    finished = list(records(file).values())
    sparsities = {record["sparsity"] for record in finished} - {0.0}
    return [table(finished, sparsity) for sparsity in sorted(sparsities)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="JSON lines, one per run")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--sparsities", nargs="+", type=float, default=SPARSITIES)
    parser.add_argument("--rules", nargs="+", choices=RULES, default=list(RULES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="processes of one thread each")
    parser.add_argument("--table", action="store_true", help="print the tables and train nothing")
    options = parser.parse_args()
    if not options.table:
        os.environ["OMP_NUM_THREADS"] = "1"
        runs = planned(options.tasks, options.methods, options.sparsities, options.rules, options.seeds)
        train_all(list(runs), options.file, options.jobs)
    for rows in tables(options.file):
        print("\n".join(rows), end="\n\n")


if __name__ == "__main__":
    main()
