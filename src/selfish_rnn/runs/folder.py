"""A run's folder: what is in it and where."""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from selfish_rnn.corpora import Corpus, Vocabulary
from selfish_rnn.errors import UserError
from selfish_rnn.files import write_atomically
from selfish_rnn.runs.checkpoints import CheckpointStore
from selfish_rnn.runs.logs import MetricsLog


class RunFolder:
    """The files of one run.

    ``config.yaml`` is the complete experiment, ``corpus.json`` tells its texts from others, ``metrics.jsonl`` has a
    record per epoch, ``events/`` the same for TensorBoard, ``checkpoints/`` what :command:`resume` continues from,
    ``model.safetensors`` is the best model, ``vocabulary.json`` its words, ``summary.json`` the outcome.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.metrics = MetricsLog(path / "metrics.jsonl")
        self.events = path / "events"
        self.checkpoints = CheckpointStore(path / "checkpoints")
        self.model = path / "model.safetensors"
        self.vocabulary = path / "vocabulary.json"
        self.corpus = path / "corpus.json"
        self.summary = path / "summary.json"

    @classmethod
    def create(cls, path: Path, config: str) -> RunFolder:
        """A folder for a new run; one that holds anything already is refused."""
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            if not (path / "config.yaml").exists():
                raise UserError(f"{path} exists and is not empty; give another folder with --run")
            raise UserError(
                f"{path} already holds a run; give another folder with --run, or continue that run with "
                f"`selfish-rnn resume {shlex.quote(str(path))}`"
            )
        folder = cls(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise UserError(f"cannot make the run folder {path}: {reason}; give another one with --run") from error
        write_atomically(folder.config, config.encode())
        return folder

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from training this run; the system lets go of it when the process ends, however."""
        try:
            import fcntl
        except ImportError:  # not on Windows
            yield
            return
        with open(self.config, "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(f"another process is training the run in {self.path}; wait for it to end") from None
            yield

    def check_resumable(self) -> None:
        """Refuse to begin anew in the folder of a run that has results but no checkpoint."""
        if self.summary.exists() or len(self.metrics.read()) > 1:
            raise UserError(
                f"{self.path} has results but no checkpoint to continue from; its model can be evaluated, or start a "
                "new run"
            )

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """The folder of a run that was started before."""
        folder = cls(path)
        if not folder.config.is_file():
            raise UserError(f"{path} is not the folder of a run: it has no config.yaml")
        return folder

    @classmethod
    def free_name(cls, parent: Path, name: str) -> Path:
        """``parent/name-1``, or the first number that is not taken."""
        number = 1
        while (parent / f"{name}-{number}").exists():
            number += 1
        return parent / f"{name}-{number}"

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        write_atomically(self.summary, json.dumps(summary, indent=2).encode() + b"\n")

    def write_corpus(self, corpus: Corpus) -> None:
        """Keep the words of a corpus, and what tells it from others."""
        write_atomically(self.vocabulary, corpus.vocabulary.to_json().encode())
        tokens = {split: len(getattr(corpus, split)) for split in ("train", "valid", "test")}
        description = {"name": corpus.name, "tokens": tokens, "sha256": corpus.checksum()}
        write_atomically(self.corpus, json.dumps(description, indent=2).encode() + b"\n")

    def check_corpus(self, corpus: Corpus) -> None:
        """Refuse a corpus that is not the one the run was started with."""
        if not self.corpus.exists():  # killed right after its start
            self.write_corpus(corpus)
        if json.loads(self.corpus.read_text())["sha256"] != corpus.checksum():
            raise UserError(
                f"the corpus {corpus.name} is no longer the one that {self.corpus} tells of: restore its files, or "
                "start a new run"
            )

    def read_vocabulary(self) -> Vocabulary:
        if not self.vocabulary.exists():
            raise UserError(
                f"{self.vocabulary} is missing: restore it, or continue with `selfish-rnn resume {self.path}`"
            )
        return Vocabulary.load(self.vocabulary)
