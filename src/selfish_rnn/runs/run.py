"""Starting, continuing and opening runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from selfish_rnn.corpora import KNOWN_CORPORA, Corpus, Vocabulary, load_corpus, truncated
from selfish_rnn.experiment.presets import build_experiment, read_config, to_yaml
from selfish_rnn.experiment.settings import Experiment
from selfish_rnn.experiment.small_dense import resolve_model
from selfish_rnn.models import LanguageModel
from selfish_rnn.runs.folder import RunFolder
from selfish_rnn.runs.outcome import load_best, summarise
from selfish_rnn.training.build import check_before_training
from selfish_rnn.training.engine_choice import choose_engine
from selfish_rnn.training.events import Listener
from selfish_rnn.training.trainer import Trainer


def experiment_corpus(experiment: Experiment) -> Corpus:
    """The corpus of an experiment, cut to the training tokens it asks for."""
    corpus = load_corpus(experiment.corpus)
    return corpus if experiment.train_tokens is None else truncated(corpus, experiment.train_tokens)


@dataclass(frozen=True)
class Run:
    """An experiment in its folder."""

    experiment: Experiment
    folder: RunFolder
    notes: tuple[str, ...] = ()

    @classmethod
    def start(cls, experiment: Experiment, path: Path) -> Run:
        """A new run; corpus and model are looked at first, so that bad ones leave no folder behind."""
        corpus = experiment_corpus(experiment)
        experiment = resolve_model(experiment, len(corpus.vocabulary))
        check_before_training(experiment, corpus)
        choice = choose_engine(experiment, len(corpus.vocabulary))
        # A resumed run goes on with the engine that was chosen.
        experiment = experiment.model_copy(update={"engine": choice.engine})
        # Sums come out the same to the last bit only with the same number of threads, so a resumed run needs it.
        threads = experiment.threads or torch.get_num_threads()
        # A run may be resumed from another folder.
        text = experiment.corpus if experiment.corpus in KNOWN_CORPORA else str(Path(experiment.corpus).resolve())
        experiment = experiment.model_copy(update={"threads": threads, "corpus": text})
        folder = RunFolder.create(path, to_yaml(experiment))
        folder.write_corpus(corpus)
        notes = () if choice.reason is None else (f"engine {choice.engine}: {choice.reason}",)
        return cls(experiment, folder, notes)

    @classmethod
    def open(cls, path: Path, device: str | None = None, engine: str | None = None) -> Run:
        """A run that was started before, on the device and with the engine it was started with or another."""
        folder = RunFolder.open(path)
        settings = read_config(folder.config)
        if device is not None:
            settings["device"] = device
        if engine is not None:
            settings["engine"] = engine
        return cls(build_experiment(settings, str(folder.config)), folder)

    def corpus(self) -> Corpus:
        """The corpus the run was started with; one that was changed since is an error."""
        corpus = experiment_corpus(self.experiment)
        self.folder.check_corpus(corpus)
        return corpus

    def vocabulary(self) -> Vocabulary:
        return self.folder.read_vocabulary()

    def model(self) -> LanguageModel:
        """The best model so far."""
        return load_best(self.experiment, self.folder, len(self.vocabulary()))

    def trainer(self, listener: Listener | None = None) -> Trainer:
        """A trainer that stands where the run's last checkpoint does, or at its beginning."""
        corpus = self.corpus()
        choice = choose_engine(self.experiment, len(corpus.vocabulary))
        experiment = self.experiment.model_copy(update={"engine": choice.engine})
        trainer = Trainer(experiment, corpus, self.folder, listener)
        if self.folder.checkpoints.steps():
            trainer.load_checkpoint()
        else:
            self.folder.check_resumable()
            # Killed before its first checkpoint, perhaps just after its first record.
            self.folder.metrics.truncate_after(0)
        return trainer

    def execute(self, trainer: Trainer) -> dict[str, Any]:
        """Train to the end and write down the outcome."""
        with self.folder.locked():
            trainer.run()
            summary = summarise(trainer)
            self.folder.write_summary(summary)
        return summary
