"""What the examples print: sparse beside dense, with accuracy, weights, time and the size of the file."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import nn

from selfish_rnn import Sparsifier, save_packed
from selfish_rnn.engine import PackedWeight


@dataclass
class Outcome:
    """One training: ``score`` is what the example measures."""

    name: str
    score: float
    weights: int
    seconds: float
    file_bytes: int


class Clock:
    seconds = 0.0


@contextmanager
def timed() -> Iterator[Clock]:
    clock, start = Clock(), time.perf_counter()
    yield clock
    clock.seconds = time.perf_counter() - start


def outcome(name: str, score: float, clock: Clock, model: nn.Module, sparsifier: Sparsifier | None) -> Outcome:
    return Outcome(name, score, weight_count(model, sparsifier), clock.seconds, file_size(model))


def weight_count(model: nn.Module, sparsifier: Sparsifier | None) -> int:
    """Count the weights of all matrices, sparse or dense."""
    stored = sum(parameter.numel() for name, parameter in model.named_parameters() if "bias" not in name)
    masked = [weight for weight in sparsifier.weights if weight.parameter.ndim > 1] if sparsifier else []
    return stored - sum(weight.size - weight.count for weight in masked)


def file_size(model: nn.Module) -> int:
    """Bytes of the file with the model: only existing weights, if it is packed."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "model"
        if any(isinstance(module, PackedWeight) for module in model.modules()):
            save_packed(model, file)
        else:
            torch.save(model.state_dict(), file)
        return file.stat().st_size


def show(measure: str, outcomes: list[Outcome]) -> None:
    print(f"{'':16s} {measure:>12s} {'weights':>10s} {'seconds':>8s} {'file, kB':>9s}")
    for each in outcomes:
        size = each.file_bytes / 1000
        print(f"{each.name:16s} {each.score:12.3f} {each.weights:10,d} {each.seconds:8.1f} {size:9,.0f}")
