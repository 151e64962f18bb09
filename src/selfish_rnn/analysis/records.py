"""What a run wrote down, read back: the settings, every epoch, the outcome, and the topologies of its best model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from selfish_rnn.errors import UserError

if TYPE_CHECKING:  # torch takes a second to import
    from selfish_rnn.topology import Topology

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
        return {} if self.path is None else _read_topologies(self.path, self.settings)


def section_name(section: Any) -> str:
    """The name in a section of the settings, which may be written as the name alone."""
    return str(section.get("name", "")) if isinstance(section, Mapping) else str(section or "")


def read_run(path: str | Path) -> RunRecord:
    """Read the folder of a run, or a folder with only its small files; nothing is written.

    These are config.yaml and metrics.jsonl and, where they are there, corpus.json and summary.json.
    """
    folder = Path(path)
    if not (folder / "config.yaml").is_file():
        raise UserError(f"{folder} is not the folder of a run: it has no config.yaml")
    return RunRecord(
        name=folder.resolve().name,
        settings=_settings(folder / "config.yaml"),
        epochs=_epochs(folder / "metrics.jsonl"),
        corpus=_json_object(folder / "corpus.json") if (folder / "corpus.json").exists() else {},
        summary=_summary(folder / "summary.json"),
        path=folder,
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error


def _settings(path: Path) -> dict[str, Any]:
    try:
        settings = yaml.safe_load(_text(path))
    except yaml.YAMLError as error:
        raise UserError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(settings, dict):
        raise UserError(f"{path} must hold keys and values, such as `epochs: 20`")
    return settings


def _json_object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(_text(path))
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise UserError(f"{path} must hold a JSON object")
    return found


def _summary(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    summary = _json_object(path)
    missing = [key for key in ("test_perplexity", "valid_perplexity") if not _is_number(summary.get(key))]
    if missing:
        raise UserError(f"{path} has no number for {missing[0]}: restore it from a copy, or train the run again")
    return summary


def _epochs(path: Path) -> tuple[EpochRecord, ...]:
    from selfish_rnn.runs.logs import MetricsLog

    if not path.exists():
        raise UserError(f"{path} is missing: restore it from a copy, or train the run again")
    lines = MetricsLog(path).read()
    if not lines:
        raise UserError(f"{path} has no finished epoch yet: wait for the first, or leave this run out")
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


def _read_topologies(folder: Path, settings: Mapping[str, Any]) -> dict[str, Topology]:
    model, vocabulary = folder / "model.safetensors", folder / "vocabulary.json"
    if not model.exists() or not vocabulary.exists():
        return {}
    import torch
    from safetensors import SafetensorError, safe_open

    from selfish_rnn.corpora import Vocabulary
    from selfish_rnn.models import MODELS
    from selfish_rnn.sparsifier.selection import choose_weights
    from selfish_rnn.topology import Topology
    from selfish_rnn.training.saved_weights import MASK

    options = dict(settings["model"])
    with torch.device("meta"):  # shapes and gates are all that is wanted of it
        network = MODELS[options.pop("name")](len(Vocabulary.load(vocabulary)), **options)
    try:
        with safe_open(model, framework="pt") as file:
            saved = set(file.keys())
            return {
                name: Topology.from_saved(file.get_tensor(name + MASK), tuple(weight.shape), gates)
                for name, weight, gates in choose_weights(network, None, network.dense_parameters)
                if name + MASK in saved
            }
    except (OSError, SafetensorError, ValueError) as error:
        raise UserError(f"{model} is damaged or does not fit config.yaml ({error}): restore it from a copy") from error
