"""Record of a run, read from its folder: settings, epochs, outcome, and topologies of the best model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from selfish_rnn.engine.saving import SavedWeights
from selfish_rnn.errors import UserError, unknown
from selfish_rnn.experiment.presets import explain, read_config
from selfish_rnn.experiment.settings import MODEL_SETTINGS
from selfish_rnn.files import load_tensors, read_json
from selfish_rnn.models import LanguageModel
from selfish_rnn.runs.folder import RunFolder
from selfish_rnn.topology import Topology
from selfish_rnn.topology.layout import read_topology
from selfish_rnn.training.records import Count, Densities, EpochRecord, Number, validated

Size = Annotated[int, Field(strict=True, gt=0, lt=2**63)]


@dataclass(frozen=True)
class RunRecord:
    """Run as stored in its folder. ``summary`` is None while the run is unfinished.

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
        """Lowest validation perplexity so far, that of the best model."""
        return min(epoch.valid_perplexity for epoch in self.epochs)

    @property
    def seconds(self) -> float:
        return self.epochs[-1].seconds

    @property
    def averaging_starts(self) -> list[int]:
        """Epochs in which averaging started."""
        before = [False, *(epoch.averaging for epoch in self.epochs)]
        return [epoch.epoch for epoch, was_on in zip(self.epochs, before, strict=False) if epoch.averaging > was_on]

    @property
    def restarts(self) -> list[int]:
        """Epochs after which averaging restarted."""
        return [epoch for epoch in self.settings.get("restart_at") or () if epoch < self.epochs[-1].epoch]

    def topologies(self) -> dict[str, Topology]:
        """Return the topology of each sparse matrix of the best model; empty if the folder has no model."""
        return {} if self.path is None else _read_topologies(RunFolder(self.path), self.settings)


def section_name(section: Any) -> str:
    """Return the name in a section of the settings, which may be the name alone."""
    return str(section.get("name", "")) if isinstance(section, Mapping) else str(section or "")


def read_run(path: str | Path) -> RunRecord:
    """Read the folder of a run, or a folder with only its small files.

    These are config.yaml and metrics.jsonl and, where they are there, corpus.json and summary.json.
    """
    folder = RunFolder.open(Path(path))
    settings = read_config(folder.config)
    validated(_SETTINGS, settings, f"{folder.config}", _FROM_A_COPY)
    corpus = read_json(folder.corpus) if folder.corpus.exists() else {}
    validated(_CORPUS, corpus, f"{folder.corpus}", _FROM_A_COPY)
    return RunRecord(
        name=folder.path.resolve().name,
        settings=settings,
        epochs=_epochs(folder),
        corpus=corpus,
        summary=_summary(folder.summary),
        path=folder.path,
    )


_FROM_A_COPY = "restore it from a copy"
_OR_AGAIN = "restore it from a copy, or train the run again"


class _Settings(BaseModel):
    """Settings that reports and figures use. Other settings may be of any version."""

    corpus: str | None = None
    epochs: Count | None = None
    restart_at: list[Count] | None = None
    seed: Annotated[int, Field(strict=True)] | None = None
    train_tokens: Count | None = None


class _Corpus(BaseModel):
    name: str = ""
    sha256: str = ""
    tokens: Mapping[str, Size] = {}


class _Summary(BaseModel):
    model_config = ConfigDict(extra="allow")

    test_perplexity: Number
    valid_perplexity: Number
    best_epoch: Count = 0
    peak_memory_mib: Number = 0
    vocabulary: Annotated[Size, Field(lt=2**31)] = 1
    density: Densities = {}


_SETTINGS, _CORPUS, _SUMMARY = TypeAdapter(_Settings), TypeAdapter(_Corpus), TypeAdapter(_Summary)


def _summary(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    summary = read_json(path)
    validated(_SUMMARY, summary, f"{path}", _OR_AGAIN)
    return summary


def _epochs(folder: RunFolder) -> tuple[EpochRecord, ...]:
    path, epochs = folder.metrics.path, tuple(folder.metrics.read())
    if not epochs and folder.summary.exists():
        raise UserError(f"{path} has no epochs of a finished run: {_OR_AGAIN}")
    if not epochs:
        raise UserError(f"no epoch of {folder.path} is finished yet: {folder.resume_command}, or leave it out")
    for number, epoch in enumerate(epochs, start=1):
        if _gates(epoch) != _gates(epochs[-1]):
            raise UserError(f"line {number} of {path} has a density of other matrices than the last line: {_OR_AGAIN}")
    return epochs


def _gates(epoch: EpochRecord) -> dict[str, set[str]]:
    return {name: set(gates) for name, gates in epoch.density.items()}


def _read_topologies(folder: RunFolder, settings: Mapping[str, Any]) -> dict[str, Topology]:
    if not folder.model.exists():
        return {}
    tensors, metadata = load_tensors(folder.model)
    saved = SavedWeights.read(tensors, metadata, str(folder.model))
    words = len(folder.read_model_vocabulary(metadata))
    outline = _outline(folder, settings, words)
    try:
        return {
            matrix.name: read_topology(saved.tensors, matrix.name, matrix.shape, matrix.gates)
            for matrix in outline.sparse_matrices()
            if matrix.name in saved.shapes
        }
    except ValueError as error:
        reason = f"is damaged or does not fit config.yaml ({error})"
        raise UserError(f"{folder.model} {reason}: {_FROM_A_COPY}") from error


def _outline(folder: RunFolder, settings: Mapping[str, Any], words: int) -> LanguageModel:
    """Return the model of a run on the meta device."""
    section = settings.get("model")
    name = section_name(section)
    if not isinstance(section, Mapping) or name not in MODEL_SETTINGS:
        raise UserError(f"{folder.config}: {unknown('model', name, MODEL_SETTINGS)}; {_FROM_A_COPY}")
    try:
        return MODEL_SETTINGS[name].model_validate(section).outline(words)
    except UserError as error:
        raise UserError(f"{folder.config}: model: {error}; {_FROM_A_COPY}") from None
    except ValidationError as error:
        raise UserError(f"{folder.config}: model.{explain(error, MODEL_SETTINGS[name])}; {_FROM_A_COPY}") from None
