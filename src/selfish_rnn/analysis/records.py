"""What a run wrote down, read back: the settings, every epoch, the outcome, and the topologies of its best model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from selfish_rnn.errors import UserError
from selfish_rnn.experiment.model_settings import MODEL_SETTINGS
from selfish_rnn.experiment.presets import read_config
from selfish_rnn.files import load_tensors, read_json
from selfish_rnn.runs.folder import RunFolder
from selfish_rnn.topology import Topology
from selfish_rnn.training.saved_weights import MASK

Densities = Mapping[str, Mapping[str, float]]
"""Of each matrix the density of each gate; of a matrix with several gates also of ``"all"`` of it."""


@dataclass(frozen=True)
class EpochRecord:
    """One line of ``metrics.jsonl``."""

    epoch: int
    step: int
    train_perplexity: float
    valid_perplexity: float
    seconds: float
    averaging: bool = False
    learning_rate: float = 0.0
    prune_rate: float = 0.0
    active_weights: int = 0
    total_weights: int = 0
    density: Densities = field(default_factory=dict)
    weights_above: Mapping[str, int] = field(default_factory=dict)
    """Of each matrix how many weights are larger than 0.1."""

    @property
    def sparsity(self) -> float:
        return 1 - self.active_weights / self.total_weights if self.total_weights else 0.0


@dataclass(frozen=True)
class RunRecord:
    """A run as its folder tells of it; ``summary`` is ``None`` while the run is not finished.

    Example::

        record = read_run("results/quickstart")
        record.test_perplexity, record.averaging_starts, [epoch.valid_perplexity for epoch in record.epochs]
    """

    name: str
    settings: Mapping[str, Any]
    epochs: Sequence[EpochRecord]
    corpus: Mapping[str, Any] = field(default_factory=dict)
    summary: Mapping[str, Any] | None = None
    path: Path | None = None

    @property
    def finished(self) -> bool:
        return self.summary is not None

    @property
    def seed(self) -> int | None:
        return self.settings.get("seed")

    @property
    def method(self) -> str:
        return section_name(self.settings.get("method"))

    @property
    def optimizer(self) -> str:
        return section_name(self.settings.get("optimizer"))

    @property
    def test_perplexity(self) -> float | None:
        return None if self.summary is None else self.summary["test_perplexity"]

    @property
    def valid_perplexity(self) -> float:
        """The lowest so far, which is the one of the best model."""
        return min(epoch.valid_perplexity for epoch in self.epochs)

    @property
    def seconds(self) -> float:
        return self.epochs[-1].seconds

    @property
    def averaging_starts(self) -> list[int]:
        """The epochs at whose end averaging was on and had not been at the end of the one before."""
        before = [False, *(epoch.averaging for epoch in self.epochs)]
        return [epoch.epoch for epoch, was_on in zip(self.epochs, before, strict=False) if epoch.averaging > was_on]

    @property
    def restarts(self) -> list[int]:
        """The epochs after which averaging started anew."""
        return [epoch for epoch in self.settings.get("restart_at") or () if epoch < self.epochs[-1].epoch]

    def topologies(self) -> dict[str, Topology]:
        """The topology of each sparse matrix of the best model; none where the folder does not hold the model."""
        return {} if self.path is None else _read_topologies(RunFolder(self.path), self.settings)


def section_name(section: Any) -> str:
    """The name in a section of the settings, which may be written as the name alone."""
    return str(section.get("name", "")) if isinstance(section, Mapping) else str(section or "")


def read_run(path: str | Path) -> RunRecord:
    """Read the folder of a run, or a folder with only its small files; nothing is written.

    These are config.yaml and metrics.jsonl and, where they are there, corpus.json and summary.json.
    """
    folder = RunFolder.open(Path(path))
    return RunRecord(
        name=folder.path.resolve().name,
        settings=read_config(folder.config),
        epochs=_epochs(folder),
        corpus=read_json(folder.corpus) if folder.corpus.exists() else {},
        summary=_summary(folder.summary),
        path=folder.path,
    )


def _summary(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    summary = read_json(path)
    missing = [key for key in ("test_perplexity", "valid_perplexity") if not _is_number(summary.get(key))]
    if missing:
        raise UserError(f"{path} has no number for {missing[0]}: restore it from a copy, or train the run again")
    return summary


def _epochs(folder: RunFolder) -> tuple[EpochRecord, ...]:
    path, lines = folder.metrics.path, folder.metrics.read()
    if not lines and folder.summary.exists():
        raise UserError(f"{path} has no epochs of a finished run: restore it from a copy, or train the run again")
    if not lines:
        raise UserError(f"no epoch of {folder.path} is finished yet: {folder.resume_command}, or leave it out")
    return tuple(_epoch(line, number, path) for number, line in enumerate(lines, start=1))


_NUMBERS = ("epoch", "step", "train_perplexity", "valid_perplexity", "seconds")


def _epoch(line: Mapping[str, Any], number: int, path: Path) -> EpochRecord:
    missing = [key for key in _NUMBERS if not _is_number(line.get(key))]
    if missing:
        raise UserError(f"line {number} of {path} has no number for {missing[0]}; delete that line")
    known = {key: line[key] for key in EpochRecord.__dataclass_fields__ if key in line}
    return EpochRecord(**known, weights_above=line.get("weights_above_0.1", {}))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _read_topologies(folder: RunFolder, settings: Mapping[str, Any]) -> dict[str, Topology]:
    if not folder.model.exists():
        return {}
    tensors, metadata = load_tensors(folder.model)
    words = len(folder.read_model_vocabulary(metadata))
    try:
        model = MODEL_SETTINGS[settings["model"]["name"]].model_validate(settings["model"])
        outline = model.outline(words)
        return {
            each.name: Topology.from_saved(tensors[each.name + MASK], each.shape, each.gates)
            for each in outline.sparse_matrices()
            if each.name + MASK in tensors
        }
    except (KeyError, TypeError, ValueError) as error:
        reason = f"is damaged or does not fit config.yaml ({error})"
        raise UserError(f"{folder.model} {reason}: restore it from a copy") from error
