"""Experiments small enough to run in a fraction of a second, and what must be equal between two runs of one."""

from __future__ import annotations

import json
import math
import random
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from selfish_rnn.corpora import load_corpus
from selfish_rnn.engine.saving import SavedWeights
from selfish_rnn.experiment.presets import Settings, build_experiment, with_settings
from selfish_rnn.experiment.settings import Experiment
from selfish_rnn.files import load_tensors
from selfish_rnn.runs.folder import RunFolder
from selfish_rnn.runs.recording import Interrupted
from selfish_rnn.runs.run import Run
from selfish_rnn.topology import budget
from selfish_rnn.training.metrics import Listener, StepReport
from selfish_rnn.training.records import EpochRecord
from selfish_rnn.training.trainer import Trainer

WORDS = (
    "the", "a", "cat", "dog", "bird", "sees", "likes", "hears", "old", "new", "small", "house", "tree", "river", "and",
    "but", "then", "slowly",
)  # fmt: skip
UPDATES_PER_EPOCH = 10

TINY_MODELS: dict[str, dict[str, Any]] = {
    "stacked-lstm": {"embedding": 8, "hidden": 8},
    "stacked-gru": {"embedding": 8, "hidden": 8},
    "stacked-rnn": {"embedding": 8, "hidden": 8},
    "rhn": {"hidden": 8, "depth": 3},
    "on-lstm": {"embedding": 8, "hidden": 8, "layers": 2, "chunk": 2},
    "awd-lstm-mos": {"embedding": 8, "hidden": 8, "hidden_last": 6, "layers": 2, "experts": 3},
}
"""Options that make each model tiny."""


def write_corpus(folder: Path, train_lines: int = 68) -> Path:
    """Lines of six tokens: 408 to train on with the default, which 4 columns cut into 102 rows."""
    folder.mkdir(parents=True)
    source = random.Random(0)
    for split, lines in (("train", train_lines), ("valid", 20), ("test", 20)):
        text = "".join(" ".join(source.choices(WORDS, k=5)) + "\n" for _ in range(lines))
        (folder / f"{split}.txt").write_text(text)
    return folder


def tiny_settings(texts: Path, **changes: Any) -> Settings:
    """Ten updates per epoch, three epochs."""
    settings: Settings = {
        "corpus": str(texts),
        "model": {"name": "stacked-lstm", "embedding": 8, "hidden": 8, "layers": 2, "dropout": 0.2},
        "engine": "masked",
        "sparsity": 0.6,
        "prune_rate": 0.5,
        "rescale": False,
        "optimizer": {"name": "snt-asgd", "lr": 4.0},
        "epochs": 3,
        "batch_size": 4,
        "valid_batch_size": 4,
        "test_batch_size": 2,
        "window": 11,
        "clip": 0.25,
        "seed": 5,
        "threads": 1,
    }
    return with_settings(settings, changes)


def tiny_experiment(texts: Path, **changes: Any) -> Experiment:
    return build_experiment(tiny_settings(texts, **changes), "tiny")


OPTIMIZERS: dict[str, dict[str, Any]] = {
    "snt-asgd": {"name": "snt-asgd", "lr": 4.0, "average_from": 1},
    "nt-asgd": {"name": "nt-asgd", "lr": 4.0, "average_from": 1},
    "adam": {"name": "adam", "lr": 0.01},
    "momentum-sgd": {"name": "momentum-sgd", "lr": 0.5},
    "sgd": {"name": "sgd", "lr": 2.0},
}
"""Options under which each optimizer learns something in a tiny run."""


class Recorder(Listener):
    """A listener that remembers everything; ``at_step`` is called after every update."""

    def __init__(self, at_step: Callable[[StepReport], None] | None = None) -> None:
        self.trainer: Any = None
        self.steps: list[StepReport] = []
        self.epochs: list[EpochRecord] = []
        self.notes: list[str] = []
        self.pauses: list[int] = []
        self.bests: list[dict[str, Tensor]] = []
        self._at_step = at_step

    def on_start(self, trainer: Trainer) -> None:
        self.trainer = trainer

    def on_step(self, report: StepReport) -> None:
        self.steps.append(report)
        if self._at_step is not None:
            self._at_step(report)

    def on_pause(self, trainer: Trainer) -> None:
        self.pauses.append(trainer.state.step)

    def on_best(self, trainer: Trainer) -> None:
        saved = trainer.weights()
        self.bests.append(replace(saved, tensors={name: tensor.clone() for name, tensor in saved.tensors.items()}))

    def on_epoch(self, record: EpochRecord) -> None:
        self.epochs.append(record)

    def on_note(self, message: str) -> None:
        self.notes.append(message)


def epoch_record(epoch: int, **changes: Any) -> EpochRecord:
    """Return the record of an epoch of ten updates."""
    values = {"step": 10 * epoch, "seconds": 2.0 * epoch, "train_loss": 4.5, "valid_loss": 4.6}
    values |= {"train_perplexity": math.exp(4.5), "valid_perplexity": math.exp(4.6)}
    return EpochRecord(epoch=epoch, **{**values, **changes})


def tiny_trainer(texts: Path, *listeners: Listener, **changes: Any) -> Trainer:
    """A trainer at the beginning of a tiny experiment."""
    return Trainer(tiny_experiment(texts, **changes), load_corpus(texts), *listeners)


def trained(texts: Path, **changes: Any) -> Recorder:
    """What a tiny experiment told from its start to its end."""
    recorder = Recorder()
    tiny_trainer(texts, recorder, **changes).run()
    return recorder


def tiny_run(texts: Path, path: Path, **changes: Any) -> Run:
    """A tiny run that is started and not yet trained."""
    return Run.start(tiny_experiment(texts, **changes), path)


def finished_run(texts: Path, path: Path, **changes: Any) -> Recorder:
    """What a tiny run, trained in its folder, told."""
    recorder = Recorder()
    tiny_run(texts, path, **changes).train(recorder)
    return recorder


def stop_after(run: Run, updates: int) -> Recorder:
    """Train until so many updates are done in this process, then ask to stop, as Ctrl-C does."""

    def ask(_: object) -> None:
        if len(recorder.steps) == updates:
            signal.raise_signal(signal.SIGINT)

    recorder = Recorder(ask)
    with pytest.raises(Interrupted):
        run.train(recorder)
    return recorder


def run_in_parts(texts: Path, path: Path, stop_at: int, **changes: Any) -> None:
    """A run that is asked to stop after some update and then continued."""
    stop_after(tiny_run(texts, path, **changes), stop_at)
    Run.open(path).train()


def budget_of(trainer: Trainer) -> int:
    """How many weights must exist, from the shapes and the sparsity alone."""
    shapes = [topology.shape for topology in (weight.topology for weight in trainer.sparsifier.weights)]
    return budget(shapes, 1 - trainer.experiment.sparsity)


def result_of(run: Path) -> dict[str, Any]:
    """Everything a finished run leaves that must not depend on how often it was interrupted."""
    folder = RunFolder(run)
    state = folder.checkpoints.load().state
    del state["trainer"]["state"]["seconds"], state["experiment"]["checkpoint_every"]
    records = [record.to_json() for record in folder.metrics.read()]
    summary = json.loads(folder.summary.read_text()) if folder.summary.exists() else {"seconds": 0.0}
    summary.pop("peak_memory_mib", None)
    for timed in (*records, summary):
        del timed["seconds"]
    averages = {path.name: load_tensors(path) for path in sorted(folder.averages.glob("*"))}
    return bits(
        {
            "model": load_tensors(folder.model),
            "averages": averages,
            "metrics": records,
            "summary": summary,
            "checkpoint": state,
        }
    )


def bits(value: Any) -> Any:
    """The same nested value with its tensors as bytes, so that ``==`` compares every bit."""
    if isinstance(value, Tensor):
        return str(value.dtype), tuple(value.shape), value.detach().contiguous().numpy().tobytes()
    if isinstance(value, dict):
        return {key: bits(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [bits(item) for item in value]
    if isinstance(value, SavedWeights):
        return bits(value.tensors)
    return value


def tiny_words(texts: Path, **changes: Any) -> list[str]:
    """The tiny experiment as words of the command line, with every setting that the default preset makes."""
    words = []
    for key, value in tiny_settings(texts, **changes).items():
        if isinstance(value, dict):
            words += [f"{key}.{inner}={_word(item)}" for inner, item in value.items()]
        else:
            words.append(f"{key}={_word(value)}")
    return words


def _word(value: Any) -> str:
    return "null" if value is None else str(value)
