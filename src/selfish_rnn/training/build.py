"""The parts of an experiment: its model, what keeps it sparse, and a look at both before training starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from selfish_rnn.corpora import Corpus
from selfish_rnn.experiment.settings import Experiment
from selfish_rnn.models import MODELS, LanguageModel
from selfish_rnn.sparsifier import SparseTraining, Sparsifier
from selfish_rnn.sparsifier.intrinsic import IntrinsicSparseStructures
from selfish_rnn.training.windows import batched


def build_model(experiment: Experiment, vocabulary: int) -> LanguageModel:
    """The language model the experiment describes, on its device, with weights drawn from the experiment's seed."""
    torch.manual_seed(_start_seed(experiment))
    return new_model(experiment.model.model_dump(), vocabulary).to(experiment.device)


def new_model(settings: Mapping[str, Any], vocabulary: int) -> LanguageModel:
    """A language model as its section of the settings describes it."""
    options = {key: value for key, value in settings.items() if key != "name"}
    return MODELS[settings["name"]](vocabulary, **options)


def build_sparsifier(experiment: Experiment, model: LanguageModel, rewirings: int) -> SparseTraining:
    """What keeps the model sparse as the experiment's method says, over a run of so many rewirings."""
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
    batched(corpus.train, experiment.batch_size, "batch_size")
    batched(corpus.valid, experiment.valid_batch_size, "valid_batch_size")
    batched(corpus.test, experiment.test_batch_size, "test_batch_size")
    with torch.device("meta"):  # takes neither time nor memory
        model = new_model(experiment.model.model_dump(), len(corpus.vocabulary))
    if experiment.method.configured.group_lasso:
        model.unit_layers()
