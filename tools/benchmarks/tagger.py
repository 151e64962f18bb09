"""A tagger of two bidirectional LSTM layers over sentences of different lengths (``PackedSequence``), in both engines.

    python tools/benchmarks/tagger.py results/tagger/lstm-512.json --threads 2

First both engines train the same steps from the same start, with a rewiring after every ten: are the losses the same?
Then steps are timed in turns (forward and backward pass, clipping, Adam); ratios are medians over the rounds of
dense / own time in the same round, with the lowest and the highest. Torch runs a dense LSTM with oneDNN or without: the
faster one counts. With one thread it is processor time, which a busy machine hardly lengthens.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from selfish_rnn import Sparsifier, pack, system
from selfish_rnn.engine import library
from selfish_rnn.files import write_atomically

WORDS, TAGS, SENTENCES, LONGEST = 5000, 20, 32, 40
SPARSE = ("masked", "packed")
ENGINES = ("dense", "dense without oneDNN", *SPARSE)


class Tagger(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 256, padding_idx=0)
        self.rnn = nn.LSTM(256, hidden, 2, batch_first=True, bidirectional=True)
        self.output = nn.Linear(2 * hidden, TAGS)

    def forward(self, words: Tensor, lengths: Tensor) -> Tensor:
        sequences = pack_padded_sequence(self.embedding(words), lengths, batch_first=True, enforce_sorted=False)
        hidden, _ = pad_packed_sequence(self.rnn(sequences)[0], batch_first=True, total_length=LONGEST)
        scores: Tensor = self.output(hidden)
        return scores


def batch(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Words (0 behind the end of a sentence, few of them often), how many there are, and their tags.

    A tag follows from the word and from whether the next one is odd.
    """
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(5, LONGEST + 1, (SENTENCES,), generator=generator)
    inside = torch.arange(LONGEST) < lengths.unsqueeze(1)
    words = (1 + (WORDS - 1) * torch.rand(SENTENCES, LONGEST, generator=generator) ** 8).long() * inside
    return words, lengths, ((words + words.roll(-1, 1) % 2) % TAGS).masked_fill(~inside, -100)


class Training:
    """One engine: its model, its optimizer, its steps."""

    def __init__(self, engine: str, hidden: int, sparsity: float, rewirings: int) -> None:
        torch.manual_seed(0)
        self.model = Tagger(hidden)
        self.onednn = engine != "dense without oneDNN"
        self.sparsifier = None
        if engine in SPARSE:
            self.sparsifier = Sparsifier(self.model, sparsity=sparsity, rewirings=rewirings, seed=1)
        if engine == "packed":
            pack(self.model, strict=True)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.005)

    def step(self, seed: int) -> float:
        torch.backends.mkldnn.enabled = self.onednn  # type: ignore[assignment]
        words, lengths, tags = batch(seed)
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(words, lengths).flatten(0, 1), tags.flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.item()

    def losses(self, steps: int) -> list[float]:
        result = []
        for number in range(steps):
            result.append(self.step(number))
            if self.sparsifier is not None and number % 10 == 9:
                self.sparsifier.rewire()
        return result


def measure(hidden: int, sparsity: float, steps: int, rounds: int, clock: Callable[[], float]) -> dict[str, Any]:
    trained = {engine: Training(engine, hidden, sparsity, steps // 10).losses(steps) for engine in SPARSE}
    apart = max(abs(first - second) / abs(first) for first, second in zip(*trained.values(), strict=True))
    trainings = {engine: Training(engine, hidden, sparsity, 1) for engine in ENGINES}
    seconds: dict[str, list[float]] = {engine: [] for engine in ENGINES}
    for number in range(rounds + 2):  # two to warm up
        for engine, training in trainings.items():
            start = clock()
            training.step(number)
            seconds[engine].append(clock() - start)
    taken = {engine: result[2:] for engine, result in seconds.items()}
    medians = {engine: statistics.median(result) for engine, result in taken.items()}
    baseline = min(("dense", "dense without oneDNN"), key=lambda engine: medians[engine])

    def over(engine: str) -> dict[str, float]:
        ratios = sorted(first / second for first, second in zip(taken[engine], taken["packed"], strict=True))
        return {"median": statistics.median(ratios), "lowest": ratios[0], "highest": ratios[-1]}

    return {
        "hidden": hidden,
        "sparsity": sparsity,
        "weights": {engine: sum(p.numel() for p in entry.model.parameters()) for engine, entry in trainings.items()},
        "losses": trained,
        "largest relative difference of losses": apart,
        "seconds": taken,
        "baseline": baseline,
        "masked / packed": over("masked"),
        "dense / packed": over(baseline),
    }


parser = argparse.ArgumentParser()
parser.add_argument("out", type=Path)
parser.add_argument("--hidden", type=int, default=512)
parser.add_argument("--sparsity", type=float, default=0.9)
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--rounds", type=int, default=15)
options = parser.parse_args()
torch.set_num_threads(options.threads)
clock = time.process_time if options.threads == 1 else time.perf_counter
found = measure(options.hidden, options.sparsity, options.steps, options.rounds, clock)
print(f"losses of {options.steps} steps, packed beside masked: largest relative difference", end=" ")
print(f"{found['largest relative difference of losses']:.1e}")
for engine, taken in found["seconds"].items():
    print(f"{engine}: {1e3 * statistics.median(taken):.0f} ms a step")
for ratio in ("dense / packed", "masked / packed"):
    print(f"{ratio}: {found[ratio]['median']:.2f} ({found[ratio]['lowest']:.2f}-{found[ratio]['highest']:.2f})")
record = {
    "command": "python " + " ".join(sys.argv),
    "date": datetime.now(UTC).isoformat(timespec="seconds"),
    "machine": system.machine(),
    "threads": options.threads,
    "kernels": library.target(),
    "torch": torch.__version__,
    **found,
}
options.out.parent.mkdir(parents=True, exist_ok=True)
write_atomically(options.out, (json.dumps(record, indent=1) + "\n").encode())
