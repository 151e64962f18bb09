"""The paper's small dense baseline: a dense network with as many parameters as a sparse one."""

from __future__ import annotations

from functools import cache

from selfish_rnn.experiment.methods import SMALL_DENSE
from selfish_rnn.experiment.settings import Experiment, ModelSettings

WIDTHS = ("embedding", "hidden", "hidden_last")
"""Settings of models that are widths of layers."""


def resolve_model(experiment: Experiment, vocabulary: int) -> Experiment:
    """Return the experiment that is trained: with a smaller dense model for the method ``small-dense``."""
    return small_dense(experiment, vocabulary) if experiment.method.name == SMALL_DENSE.name else experiment


def small_dense(experiment: Experiment, vocabulary: int) -> Experiment:
    """Return the experiment with a dense model that has as many parameters as the sparse one.

    All widths of the model are scaled by one factor, n/N with N the largest of them. n is chosen so that the number of
    parameters is nearest to

        (1 - sparsity) · (weights that would be sparse) + (all others, biases included)

    >>> experiment = build_experiment(read_preset("ptb-stacked-lstm")[0], "ptb-stacked-lstm")
    >>> small_dense(experiment, vocabulary=10_000).model.hidden  # 1500 wide at sparsity 0.67
    699
    """
    model, target = experiment.model, sparse_parameters(experiment, vocabulary)
    step: int = getattr(model, "chunk", 1)
    largest = max(max(width) if isinstance(width, tuple) else width for width in _widths(model).values())

    @cache
    def count(steps: int) -> int:
        return sum(_scaled(model, steps * step / largest, step).sizes(vocabulary))

    # The number of parameters never decreases with the width: find the first sufficient width by bisection.
    low, high = 1, max(largest // step, 1)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if count(middle) >= target else (middle + 1, high)
    best = min((low - 1 or 1, low), key=lambda steps: abs(count(steps) - target))
    settings = experiment.model_dump()
    settings["model"] = _scaled(model, best * step / largest, step).model_dump()
    settings["sparsity"] = 0.0
    return Experiment.model_validate(settings)


def sparse_parameters(experiment: Experiment, vocabulary: int) -> int:
    """Return the number of parameters of the sparse model, including biases and dense weights."""
    sparse, others = experiment.model.sizes(vocabulary)
    return others + round((1 - experiment.sparsity) * sparse)


def _widths(model: ModelSettings) -> dict[str, int | tuple[int, ...]]:
    return {name: getattr(model, name) for name in WIDTHS if hasattr(model, name)}


def _scaled(model: ModelSettings, factor: float, step: int) -> ModelSettings:
    """Scale all widths of a model, each to a positive number of whole steps."""

    def scale(width: int) -> int:
        return step * max(round(width * factor / step), 1)

    widths = _widths(model).items()
    scaled = {name: scale(width) if isinstance(width, int) else tuple(map(scale, width)) for name, width in widths}
    return model.model_copy(update=scaled)
