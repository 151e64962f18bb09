"""A run's folder: what is in it and where."""

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
    """The files of one run.

    ``config.yaml`` is the complete experiment, ``corpus.json`` tells its texts from others, ``metrics.jsonl`` has a
    record per epoch, ``events/`` the same for TensorBoard, ``topologies.bin``
    every topology, ``checkpoints/`` what :command:`resume` continues from,
    ``model.safetensors`` is the best model, ``vocabulary.json`` its words, ``summary.json`` the outcome,
    ``averages/NAME.safetensors`` the best model of each additional average.
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
        """A folder for a new run; one that holds anything already is refused."""
        folder = cls(path)
        folder._refuse_used()
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise UserError(f"cannot make the run folder {path}: {reason}; give another one with --run") from error
        with folder.locked():
            folder._refuse_used()  # by another process, since
            write_atomically(folder.config, config.encode())
            folder.write_corpus(corpus)
        return folder

    def _refuse_used(self) -> None:
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
        """The folder of a run that was started before; whoever writes in it takes its lock first."""
        folder = cls(path)
        if not path.exists():
            raise UserError(f"{path} does not exist")
        if not folder.config.is_file():
            raise UserError(f"{path} is not the folder of a run: it has no config.yaml")
        return folder

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Be the only process that writes here; the system takes the lock back when the process ends, however.

        The lock is on the folder itself, so that it is there before any file is.
        """
        if os.name == "nt":  # which opens no folders
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
        """Refuse to begin anew in the folder of a run that has results but no checkpoint."""
        if self.summary.exists() or len(self.metrics.read()) > 1:
            raise UserError(
                f"{self.path} has results but no checkpoint to continue from; its model can be evaluated, or start a "
                "new run"
            )

    @classmethod
    def free_name(cls, parent: Path, name: str) -> Path:
        """``parent/name-1``, or the first number that is not taken."""
        paths = (parent / f"{name}-{number}" for number in itertools.count(1))
        return next(path for path in paths if not path.exists())

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        write_json(self.summary, summary)

    def write_corpus(self, corpus: Corpus) -> None:
        """Keep the words of a corpus, and what tells it from others."""
        corpus.vocabulary.save(self.vocabulary)
        tokens = {split: len(getattr(corpus, split)) for split in ("train", "valid", "test")}
        write_json(self.corpus, {"name": corpus.name, "tokens": tokens, "sha256": corpus.checksum()})

    def corpus_checksum(self) -> str | None:
        """What tells the corpus of the run from others, if it was written down and can be read."""
        try:
            found = json.loads(self.corpus.read_bytes())["sha256"]
        except (OSError, *WRONG_CONTENT):
            return None
        return found if isinstance(found, str) else None

    def check_corpus(self, corpus: Corpus) -> None:
        """Refuse a corpus that is not the one the run was started with."""
        expected = self.corpus_checksum()
        if expected is None:
            raise UserError(
                f"{self.corpus} is damaged, so that nothing tells whether the corpus {corpus.name} is still the one of "
                "this run: restore it from a copy, or if you know that it is, remove the file and continue with "
                f"`{self.resume_command}`"
            )
        if expected != corpus.checksum():
            raise UserError(
                f"the corpus {corpus.name} is no longer the one that {self.corpus} tells of: restore its files, or "
                "start a new run"
            )
        if self.read_vocabulary() != corpus.vocabulary:
            raise UserError(
                f"{self.vocabulary} has other words than the corpus {corpus.name}, which the run was started with: "
                f"{self._vocabulary_remedy}"
            )

    @property
    def _vocabulary_remedy(self) -> str:
        return (
            f"restore it from a copy, or remove it and {self.corpus.name} and write both again from the corpus with "
            f"`{self.resume_command}`"
        )

    def read_vocabulary(self) -> Vocabulary:
        """Return the words of the run; a missing or damaged file is an error that names the remedy."""
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

        Weights of a run with another identity, or trained with other words than ``vocabulary.json`` has, are refused.
        """
        path = self.model if average is None else self.average(average)
        if not path.exists() and not self.metrics.read():
            raise UserError(f"no epoch is finished yet: {self.resume_command}")
        tensors, metadata = load_tensors(path)
        if metadata.get("run", run) != run:
            raise UserError(
                f"{path} is the model of another run, of other settings than {self.config} has: restore it, or "
                f"continue with `{self.resume_command}`"
            )
        self.read_model_vocabulary(metadata)
        return SavedWeights.read(tensors, metadata, str(path))

    def read_model_vocabulary(self, metadata: Mapping[str, str]) -> Vocabulary:
        """Return the words of the best model; words that differ from those in its metadata are refused."""
        vocabulary = self.read_vocabulary()
        if metadata.get("vocabulary") not in (None, vocabulary.checksum()):  # earlier versions wrote none
            raise UserError(
                f"{self.vocabulary} has other words than {self.model} was trained with: {self._vocabulary_remedy}"
            )
        return vocabulary
