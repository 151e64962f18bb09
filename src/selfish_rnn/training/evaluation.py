"""Perplexity of a model on a token stream."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from selfish_rnn.corpora import Corpus
from selfish_rnn.experiment.model_settings import Section
from selfish_rnn.experiment.settings import Count, Experiment
from selfish_rnn.models import LanguageModel, detach
from selfish_rnn.training.parallel.ranks import ALONE, Ranks
from selfish_rnn.training.windows import batched, windows


@torch.no_grad()
def evaluate(model: LanguageModel, stream: Tensor, *, batch_size: int, window: int, ranks: Ranks = ALONE) -> float:
    """Mean negative log-probability per token, dropout off.

    The text is cut into ``batch_size`` pieces of equal length, through each of which the state is carried from
    zero; the few tokens that do not fill a row are left out. Ranks that evaluate together share the pieces.
    """
    device = next(model.parameters()).device
    rows = batched(stream, batch_size)[:, ranks.share(batch_size)].to(device)
    columns = rows.shape[1]
    was_training = model.training
    model.eval()
    state = model.initial_state(columns)
    total = torch.zeros((), dtype=torch.float64)
    for inputs, targets in windows(rows, window) if columns else ():
        encoded = model.encode(inputs, state)
        total += model.loss(encoded.output, targets).cpu().double() * len(inputs)
        state = detach(encoded.state)
    model.train(was_training)
    return ranks.sum(float(total) * columns / batch_size) / (len(rows) - 1)


def perplexity(loss: float) -> float:
    """``exp(loss)``, infinite where that overflows."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


class EvaluationSettings(Section):
    """How the texts of an experiment are cut for its evaluation."""

    valid_batch_size: Count = 20
    test_batch_size: Count = 20
    window: Count = 35

    @classmethod
    def of(cls, experiment: Experiment) -> EvaluationSettings:
        return cls.model_validate(experiment.model_dump(include=set(cls.model_fields)))


def evaluate_splits(
    model: LanguageModel, settings: Experiment | EvaluationSettings, corpus: Corpus, ranks: Ranks = ALONE
) -> dict[str, float]:
    """Perplexity on the validation and test text."""
    sizes = {"valid": settings.valid_batch_size, "test": settings.test_batch_size}
    return {
        f"{split}_perplexity": perplexity(
            evaluate(model, getattr(corpus, split), batch_size=size, window=settings.window, ranks=ranks)
        )
        for split, size in sizes.items()
    }
