"""The parts of an experiment: its model, what keeps it sparse, and a look at both before training starts."""

from __future__ import annotations

import contextlib
import math

import torch

from selfish_rnn.corpora import Corpus
from selfish_rnn.engine import pack
from selfish_rnn.experiment.settings import Experiment
from selfish_rnn.models import LanguageModel
from selfish_rnn.sparsifier import SparseTraining, Sparsifier
from selfish_rnn.sparsifier.deferred import deferred_init
from selfish_rnn.sparsifier.intrinsic import IntrinsicSparseStructures
from selfish_rnn.training.parallel import Ranks, refuse_uneven_parts
from selfish_rnn.training.windows import batched


def build_network(experiment: Experiment, vocabulary: int, rewirings: int) -> tuple[LanguageModel, SparseTraining]:
    """The language model the experiment describes, and what keeps it sparse over a run of so many rewirings.

    Weights and topology are drawn from the experiment's seed, the same for either engine. For the packed one no matrix
    is ever made whole.
    """
    packed = experiment.engine == "packed"
    torch.manual_seed(_start_seed(experiment))
    with deferred_init() if packed else contextlib.nullcontext():
        model = experiment.model.build(vocabulary)
    model = model.to(experiment.device)
    sparsifier = _build_sparsifier(experiment, model, rewirings)
    return pack(model) if packed else model, sparsifier


def planned_rewirings(experiment: Experiment, rows: int) -> int:
    """How often a run on batches of so many rows rewires: after its epochs, or every so many of its updates."""
    if experiment.rewire_every is None:
        return experiment.epochs
    updates = experiment.epochs * math.ceil((rows - 1) / experiment.window)
    return max(updates // experiment.rewire_every, 1)


def _build_sparsifier(experiment: Experiment, model: LanguageModel, rewirings: int) -> SparseTraining:
    if experiment.method.configured.group_lasso:
        return IntrinsicSparseStructures(model, strength=experiment.method.strength, exclude=model.dense_parameters)
    sparsifier = Sparsifier(
        model,
        sparsity=experiment.sparsity,
        method=experiment.method.build(),
        prune_rate=experiment.prune_rate,
        rewirings=rewirings,
        schedule=experiment.prune_schedule,
        rewire_every=experiment.rewire_every,
        exclude=model.dense_parameters,
        min_side=1,  # as in the paper, every matrix becomes sparse
        rescale=experiment.rescale,
        seed=_start_seed(experiment),
    )
    if experiment.start_seed is not None:  # one start for several runs, each of which then goes its own way
        torch.manual_seed(experiment.seed)
        sparsifier.reseed(experiment.seed)
    return sparsifier


def _start_seed(experiment: Experiment) -> int:
    return experiment.seed if experiment.start_seed is None else experiment.start_seed


def check_before_training(experiment: Experiment, corpus: Corpus) -> None:
    """Find what would stop the run later: a text too short for its batches, settings that do not fit together."""
    ranks = Ranks.here().size
    refuse_uneven_parts(experiment, experiment.sub_batches * ranks, ranks)
    batched(corpus.train, experiment.batch_size, "batch_size")
    batched(corpus.valid, experiment.valid_batch_size, "valid_batch_size")
    batched(corpus.test, experiment.test_batch_size, "test_batch_size")
    model = experiment.model.outline(len(corpus.vocabulary))
    if experiment.method.configured.group_lasso:
        model.unit_layers()
