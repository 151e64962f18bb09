"""Making the model of an experiment sparse."""

from __future__ import annotations

from selfish_rnn.intrinsic import IntrinsicStructure
from selfish_rnn.models import LanguageModel
from selfish_rnn.sparsifier import Sparsifier
from selfish_rnn.topology.methods import GROUP_LASSO
from selfish_rnn.training.settings import Experiment


def build_sparsifier(experiment: Experiment, model: LanguageModel, rewirings: int) -> Sparsifier | IntrinsicStructure:
    """What keeps the model sparse as the experiment's method says, over a run of so many rewirings."""
    method = experiment.method.build()
    if method.removal == GROUP_LASSO:
        return IntrinsicStructure(model, strength=experiment.method.strength)
    return Sparsifier(
        model,
        sparsity=experiment.sparsity,
        method=method,
        prune_rate=experiment.prune_rate,
        updates=rewirings,
        schedule=experiment.prune_schedule,
        update_every=experiment.rewire_every,
        exclude=model.dense_parameters,
        rescale=experiment.rescale,
        seed=experiment.seed,
    )
