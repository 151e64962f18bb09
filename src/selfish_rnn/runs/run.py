"""Runs: experiments in folders, from start to summary."""

from __future__ import annotations

import contextlib
import gc
import itertools
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from selfish_rnn.corpora import (
    KNOWN_CORPORA,
    Corpus,
    Vocabulary,
    load_corpus,
    truncated,
    unigram_perplexity,
    with_frequent_words,
)
from selfish_rnn.engine import available
from selfish_rnn.engine.saving import SavedWeights, make_sparse
from selfish_rnn.errors import RankLostError, ReportedByRankZero, UserError
from selfish_rnn.experiment.comparison import changed_settings, identity
from selfish_rnn.experiment.presets import build_experiment, read_config, to_yaml
from selfish_rnn.experiment.settings import Experiment
from selfish_rnn.experiment.small_dense import resolve_model
from selfish_rnn.files import WriteError, load_tensors
from selfish_rnn.models import LanguageModel
from selfish_rnn.runs.folder import RunFolder
from selfish_rnn.runs.recording import RunRecorder, StopRequest, TopologyRecorder
from selfish_rnn.runs.topologies import TopologyHistory
from selfish_rnn.system import peak_memory, processor, releasing_memory
from selfish_rnn.topology import Topology
from selfish_rnn.training.build import check_before_training
from selfish_rnn.training.engine_choice import EngineChoice, choose_engine
from selfish_rnn.training.evaluation import evaluate_splits
from selfish_rnn.training.metrics import DivergedError, Listener
from selfish_rnn.training.ranks import Ranks
from selfish_rnn.training.trainer import Trainer


class DivergedRunError(UserError):
    """Training diverged (NaN or infinity). The command line exits with code 3."""

    exit_code = 3


def experiment_corpus(experiment: Experiment) -> Corpus:
    """Return the corpus of an experiment, reduced to its training tokens and vocabulary."""
    corpus = load_corpus(experiment.corpus)
    if experiment.train_tokens is not None:
        corpus = truncated(corpus, experiment.train_tokens)
    if experiment.vocabulary is not None:
        corpus = with_frequent_words(corpus, experiment.vocabulary)
    return corpus


def _choose_engine(experiment: Experiment, words: int) -> EngineChoice:
    """Choose the engine for the part of a batch that one rank computes at a time."""
    parts = experiment.sub_batches * Ranks.here().size
    return choose_engine(experiment.model_copy(update={"sub_batches": parts}), words)


class Run:
    """An experiment in its folder: :meth:`start` a new run or :meth:`open` an existing one, then :meth:`train` it.

    >>> run = Run.start(experiment, Path("runs/first"))
    >>> summary = run.train()
    >>> Run.open(Path("runs/first")).model()
    """

    def __init__(self, experiment: Experiment, folder: RunFolder) -> None:
        self.experiment = experiment
        self.folder = folder
        self._choice: EngineChoice | None = None

    @classmethod
    def start(cls, experiment: Experiment, path: Path, *, again: bool = False) -> Run:
        """Create a new run after checking its corpus and model, so that a bad experiment leaves no folder.

        With ``again``, an existing run with the same settings is opened instead: for a command that is repeated after
        its processes were lost.
        """
        corpus = experiment_corpus(experiment)
        words = len(corpus.vocabulary)
        experiment = resolve_model(experiment, words)
        # Store absolute paths and the chosen engine for a resume from another folder. Store the number of threads,
        # because sums are equal to the last bit only with the same number.
        text = experiment.corpus if experiment.corpus in KNOWN_CORPORA else str(Path(experiment.corpus).resolve())
        experiment = experiment.model_copy(update={"corpus": text})
        if again and RunFolder(path).config.is_file():
            return cls._reopened(experiment, path)
        check_before_training(experiment, corpus)
        choice = _choose_engine(experiment, words)
        threads = experiment.threads or torch.get_num_threads()
        experiment = experiment.model_copy(update={"engine": choice.engine, "threads": threads})
        run = cls(experiment, RunFolder.create(path, to_yaml(experiment), corpus))
        run.corpus, run._choice = corpus, choice
        return run

    @classmethod
    def _reopened(cls, experiment: Experiment, path: Path) -> Run:
        run = cls.open(path)
        changed = changed_settings(run.experiment.model_dump(mode="json"), experiment)
        if changed:
            raise UserError(
                f"{path} contains a run with other settings, in {', '.join(changed)}: give another folder with --run, "
                f"or continue that run with `{run.folder.resume_command}`"
            )
        return run

    @classmethod
    def open(cls, path: Path, device: str | None = None, engine: str | None = None) -> Run:
        """Open an existing run, on the device and with the engine of its start or with others."""
        folder = RunFolder.open(path)
        changes = {"device": device, "engine": engine}
        settings = read_config(folder.config) | {key: value for key, value in changes.items() if value is not None}
        return cls(build_experiment(settings, str(folder.config)), folder)

    @cached_property
    def corpus(self) -> Corpus:
        """Corpus that the run was started with; a corpus that has changed since is an error."""
        corpus = experiment_corpus(self.experiment)
        if self.folder.corpus.exists():
            self.folder.check_corpus(corpus)
        return corpus

    @cached_property
    def vocabulary(self) -> Vocabulary:
        return self.folder.read_vocabulary()

    def model(self) -> LanguageModel:
        """Return the best model so far, ready to evaluate; its words are ``model.vocabulary``."""
        model = self._model(self._weights(), len(self.vocabulary))
        model.vocabulary = self.vocabulary
        return model

    def unfinished(self) -> str | None:
        """Return a message with the epoch of the best model if the run is not finished, else None."""
        if self.folder.summary.exists():
            return None
        _, about = load_tensors(self.folder.model)
        epochs = f"of epoch {about['epoch']} of {self.experiment.epochs}" if "epoch" in about else "of its first epochs"
        return f"the run in {self.folder.path} is not finished; this is its best model so far, {epochs}"

    def _weights(self, average: str | None = None) -> SavedWeights:
        return self.folder.read_model(identity(self.experiment), average)

    def _model(self, weights: SavedWeights, words: int) -> LanguageModel:
        experiment = self.experiment
        packed = experiment.engine == "packed" and torch.device(experiment.device).type == "cpu" and available()
        model = make_sparse(lambda: experiment.model.outline(words), weights, str(self.folder.model), packed=packed)
        return model.to(experiment.device).eval()

    @property
    def topologies(self) -> TopologyHistory:
        """History of all topologies of the run, unless ``keep_topologies`` is false."""
        return TopologyHistory(self.folder.topologies)

    def topology(self, epoch: int) -> Mapping[str, Topology]:
        """Return the topology of every sparse matrix after an epoch's rewiring; epoch 0 is the start.

        >>> Run.open(Path("runs/mine")).topology(epoch=5)["rnn.weight_hh_l0"].density
        0.33
        """
        return self.topologies.topologies(epoch=epoch)

    def train(self, *listeners: Listener) -> dict[str, Any]:
        """Train to the end from the current state of the run; write and return the summary.

        No file is changed, or read in order to change it, before the folder's lock is held. Of several ranks only rank
        0 uses the folder.
        """
        ranks = Ranks.here()
        # Rank 0 takes the lock and reads the corpus for all ranks. After training, the best models are loaded again and
        # evaluated, because the last network need not be the best one.
        with contextlib.ExitStack() as stack, self._explained_errors(ranks):
            ranks.from_main(lambda: stack.enter_context(self.folder.locked()))
            corpus, choice = ranks.from_main(self._prepare)
            self.experiment = self.experiment.model_copy(update={"engine": choice.engine})
            outcome = self._train(ranks, corpus, choice, *listeners)
            summary = {**self._evaluate_best(ranks, corpus), **outcome}
            for name, about in outcome.get("averages", {}).items():
                about |= self._evaluate_best(ranks, corpus, name)
            summary |= {"peak_memory_mib": peak_memory(), "processor": processor()}
            if ranks.is_main:
                self.folder.write_summary(summary)
            return summary

    def _evaluate_best(self, ranks: Ranks, corpus: Corpus, average: str | None = None) -> dict[str, float]:
        """Evaluate the best model, or that of an additional average, on the validation and test text."""
        # The best model is another network than the last one, whose memory must be free by now.
        gc.collect()
        with releasing_memory():
            best = self._model(ranks.from_main(lambda: self._weights(average)), len(corpus.vocabulary))
        return evaluate_splits(best, self.experiment, corpus, ranks)

    def _prepare(self) -> tuple[Corpus, EngineChoice]:
        corpus = self.corpus
        if not self.folder.corpus.exists():  # the run was killed right after its start
            self.folder.write_corpus(corpus)
        return corpus, self._choice or _choose_engine(self.experiment, len(corpus.vocabulary))

    def _train(self, ranks: Ranks, corpus: Corpus, choice: EngineChoice, *listeners: Listener) -> dict[str, Any]:
        """Train to the end; return the summary without the evaluation of the best model."""
        stop = StopRequest()
        recorder = RunRecorder(self.folder, stop, ranks)
        recorders = [TopologyRecorder(self.topologies)] if self.experiment.keep_topologies and ranks.is_main else []
        trainer = Trainer(self.experiment, corpus, *recorders, recorder, *listeners)
        notes = recorder.resume(trainer)
        if choice.reason is not None:
            notes.append(f"engine {choice.engine}: {choice.reason}")
        for listener, note in itertools.product(listeners, notes):
            listener.on_note(note)
        with stop:
            trainer.run()
        return self._outcome(trainer)

    @contextlib.contextmanager
    def _explained_errors(self, ranks: Ranks) -> Iterator[None]:
        """Explain errors of training: add which checkpoint remains and what to do."""
        try:
            yield
        except WriteError as error:
            raise UserError(f"{error}, then continue with `{self.folder.resume_command}`") from error
        except RankLostError as error:
            raise RankLostError(
                f"{error}; {self._last_checkpoint()}. Continue with `{self.folder.resume_command}`, under torchrun "
                "with any number of ranks; with --max-restarts torchrun does so itself"
            ) from error
        except DivergedError as error:
            if not ranks.is_main:  # all ranks have the same loss
                raise ReportedByRankZero(str(error)) from error
            experiment = self.experiment
            raise DivergedRunError(
                f"training diverged: {error}; {self._last_checkpoint()}. Try a smaller optimizer.lr (now "
                f"{experiment.optimizer.lr:g}), a "
                f"smaller clip (now {experiment.clip}) or a smaller prune_rate (now {experiment.prune_rate:g}) in a "
                "new run"
            ) from error

    def _last_checkpoint(self) -> str:
        steps = self.folder.checkpoints.steps()
        return f"the last good checkpoint, of update {steps[-1]}, is kept" if steps else "there is no checkpoint yet"

    def _outcome(self, trainer: Trainer) -> dict[str, Any]:
        state, network = trainer.state, trainer.state.best
        # A packed matrix contains existing weights only, so the sparsifier counts its positions.
        others = sum(parameter.numel() for parameter in trainer.model.parameters()) - sum(
            weight.parameter.numel() for weight in trainer.sparsifier.weights
        )
        averages = {
            name: {"best_epoch": best.epoch, "averaging": best.averaging}
            for name, best in trainer.averages.best.items()
        }
        return {
            "unigram_perplexity": unigram_perplexity(trainer.corpus),
            "vocabulary": len(trainer.corpus.vocabulary),
            "best_epoch": state.best_epoch,
            "epochs": state.epoch,
            "steps": state.step,
            **network,
            **({"averages": averages} if averages else {}),
            "active_parameters": others + network["active_weights"],
            "total_parameters": others + network["total_weights"],
            "seconds": state.seconds,
            "engine": self.experiment.engine,
            "threads": torch.get_num_threads(),
            "ranks": trainer.ranks.size,
            "seed": self.experiment.seed,
        }
