"""Folder of a run and its files."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from selfish_rnn.corpora import Corpus, Vocabulary
from selfish_rnn.engine.saving import SavedWeights
from selfish_rnn.errors import UserError
from selfish_rnn.files import is_partial, load_tensors, lock, remove_partial, write_atomically, write_json
from selfish_rnn.runs.checkpoints import WRONG_CONTENT, CheckpointStore
from selfish_rnn.runs.logs import MetricsLog


class RunFolder:
    """Files of one run.

    Attributes:
        config: ``config.yaml``, the complete experiment.
        corpus: ``corpus.json``, name, sizes and checksum of the corpus.
        vocabulary: ``vocabulary.json``, the words.
        metrics: ``metrics.jsonl``, a record per epoch.
        events: ``events/``, the same for TensorBoard.
        topologies: ``topologies.bin``, the topology after every rewiring.
        checkpoints: ``checkpoints/``, the states that ``selfish-rnn resume`` continues from.
        model: ``model.safetensors``, the best model.
        averages: ``averages/``, the best model of each additional average.
        summary: ``summary.json``, the results of a finished run.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.metrics = MetricsLog(path / "metrics.jsonl")
        self.events = path / "events"
        self.topologies = path / "topologies.bin"
        self.checkpoints = CheckpointStore(path / "checkpoints")
        self.model = path / "model.safetensors"
        self.averages = path / "averages"
        self.vocabulary = path / "vocabulary.json"
        self.corpus = path / "corpus.json"
        self.summary = path / "summary.json"

    @classmethod
    def create(cls, path: Path, config: str, corpus: Corpus) -> RunFolder:
        """Create the folder of a new run; it must be empty or absent."""
        folder = cls(path)
        folder._check_unused()
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise UserError(f"cannot create the run folder {path}: {reason}; give another one with --run") from error
        with folder.locked():
            folder._check_unused()  # another process may have used it meanwhile
            write_atomically(folder.config, config.encode())
            folder.write_corpus(corpus)
        return folder

    def _check_unused(self) -> None:
        path = self.path
        if not path.exists() or (path.is_dir() and all(map(is_partial, path.iterdir()))):
            return
        if not self.config.exists():
            raise UserError(f"{path} exists and is not empty; give another folder with --run")
        raise UserError(
            f"{path} already holds a run; give another folder with --run, or continue that run with "
            f"`{self.resume_command}`"
        )

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Return the folder of an existing run; take its lock before you write to it."""
        folder = cls(path)
        if not path.exists():
            raise UserError(f"{path} does not exist")
        if not folder.config.is_file():
            raise UserError(f"{path} is not the folder of a run: it has no config.yaml")
        return folder

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the folder inside a block; the system releases it when the process ends.

        The lock is on the folder itself, so it exists before any file.
        """
        if os.name == "nt":  # Windows cannot open folders
            yield
            return
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            if not lock(descriptor):
                raise UserError(f"another process is training the run in {self.path}; wait for it to end")
            for folder in (self.path, self.averages):
                if folder.is_dir():
                    remove_partial(folder)
            yield
        finally:
            os.close(descriptor)

    @property
    def resume_command(self) -> str:
        return f"selfish-rnn resume {shlex.quote(str(self.path))}"

    def check_resumable(self) -> None:
        """Raise an error if the run has results but no checkpoint, because training would start over."""
        if self.summary.exists() or len(self.metrics.read()) > 1:
            raise UserError(
                f"{self.path} has results but no checkpoint to continue from; its model can be evaluated, or start a "
                "new run"
            )

    @classmethod
    def free_name(cls, parent: Path, name: str) -> Path:
        """Return ``parent/name-1``, or the first number that is free."""
        paths = (parent / f"{name}-{number}" for number in itertools.count(1))
        return next(path for path in paths if not path.exists())

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        write_json(self.summary, summary)

    def write_corpus(self, corpus: Corpus) -> None:
        """Write the vocabulary of a corpus, and its name, sizes and checksum."""
        corpus.vocabulary.save(self.vocabulary)
        tokens = {split: len(getattr(corpus, split)) for split in ("train", "valid", "test")}
        write_json(self.corpus, {"name": corpus.name, "tokens": tokens, "sha256": corpus.checksum()})

    def corpus_checksum(self) -> str | None:
        """Return the checksum of the run's corpus, or None if its file is missing or damaged."""
        try:
            checksum = json.loads(self.corpus.read_bytes())["sha256"]
        except (OSError, *WRONG_CONTENT):
            return None
        return checksum if isinstance(checksum, str) else None

    def check_corpus(self, corpus: Corpus) -> None:
        """Raise an error if a corpus is not the one the run was started with."""
        expected = self.corpus_checksum()
        if expected is None:
            raise UserError(
                f"{self.corpus} is damaged, so the corpus {corpus.name} cannot be compared with that of this run: "
                "restore the file from a copy. If you are sure that the corpus is unchanged, remove the file and "
                f"continue with `{self.resume_command}`"
            )
        if expected != corpus.checksum():
            raise UserError(
                f"the corpus {corpus.name} differs from the one in {self.corpus}: restore its files, or start a new run"
            )
        if self.read_vocabulary() != corpus.vocabulary:
            raise UserError(
                f"{self.vocabulary} has other words than the corpus {corpus.name}, with which the run was started: "
                f"{self._vocabulary_remedy}"
            )

    @property
    def _vocabulary_remedy(self) -> str:
        return (
            f"restore it from a copy, or remove it and {self.corpus.name} and write both again from the corpus with "
            f"`{self.resume_command}`"
        )

    def read_vocabulary(self) -> Vocabulary:
        """Return the vocabulary of the run; a missing or damaged file is an error that names the remedy."""
        if not self.vocabulary.exists():
            raise UserError(f"{self.vocabulary} is missing: {self._vocabulary_remedy}")
        try:
            return Vocabulary.load(self.vocabulary)
        except UserError as error:
            raise UserError(f"{error}: {self._vocabulary_remedy}") from error

    def average(self, name: str) -> Path:
        """Return the file of the best model of an additional average."""
        return self.averages / f"{name}.safetensors"

    def read_model(self, run: str, average: str | None = None) -> SavedWeights:
        """Return the weights of the best model so far, or of an additional average.

        A model of a run with another identity, or with other words than ``vocabulary.json``, is an error.
        """
        path = self.model if average is None else self.average(average)
        if not path.exists() and not self.metrics.read():
            raise UserError(f"no epoch is finished yet: {self.resume_command}")
        tensors, metadata = load_tensors(path)
        if metadata.get("run", run) != run:
            raise UserError(
                f"{path} is the model of a run with other settings than {self.config}: restore it, or "
                f"continue with `{self.resume_command}`"
            )
        self.read_model_vocabulary(metadata)
        return SavedWeights.read(tensors, metadata, str(path))

    def read_model_vocabulary(self, metadata: Mapping[str, str]) -> Vocabulary:
        """Return the vocabulary; raise an error if the model's metadata name another one."""
        vocabulary = self.read_vocabulary()
        if metadata.get("vocabulary") not in (None, vocabulary.checksum()):  # earlier versions did not write it
            raise UserError(
                f"{self.vocabulary} has other words than {self.model} was trained with: {self._vocabulary_remedy}"
            )
        return vocabulary
