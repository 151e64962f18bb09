"""The FLOPs of whole trainings: of an experiment before it is run, and of a run from what happened in it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from selfish_rnn.analysis.flops.counting import MatrixUse, word_uses
from selfish_rnn.analysis.records import read_run
from selfish_rnn.errors import UserError
from selfish_rnn.experiment.settings import Experiment
from selfish_rnn.experiment.small_dense import small_dense
from selfish_rnn.runs.run import Run
from selfish_rnn.runs.topologies import TopologyHistory
from selfish_rnn.topology.gates import WHOLE

WITH_MOMENTUM = ("adam", "momentum-sgd")
"""Optimizers whose momentum a method that goes by it keeps of all positions, at every update."""

Densities = Mapping[str, float]


@dataclass(frozen=True)
class TrainingFlops:
    """FLOPs of training from the first update to the last and of inference on one sample, and the same if dense.

    A sample is one window of a training batch, as in the paper: 20 x 35 words. ``note`` says what is not exact.
    """

    training: float
    inference: float
    dense_training: float
    dense_inference: float
    note: str = ""

    @property
    def training_ratio(self) -> float:
        return self.training / self.dense_training

    @property
    def inference_ratio(self) -> float:
        return self.inference / self.dense_inference


@dataclass(frozen=True)
class Stretch:
    """A part of a training during which densities stay: so many words, of them a share with dense gradients."""

    words: float
    densities: Densities
    dense_share: float = 0.0


def experiment_flops(experiment: Experiment, vocabulary: int, train_tokens: int) -> TrainingFlops:
    """The FLOPs that an experiment takes, from its settings alone.

    >>> from selfish_rnn.experiment.presets import build_experiment, read_preset
    >>> experiment = build_experiment(read_preset("ptb-stacked-lstm")[0], "ptb-stacked-lstm")
    >>> counted = experiment_flops(experiment, vocabulary=10_000, train_tokens=929_589)
    >>> f"{counted.dense_training:.4g} {counted.dense_inference:.4g} {counted.training_ratio:.2f}"
    '3.123e+16 7.14e+10 0.33'
    """
    method = experiment.method.build()
    words, sample = experiment.epochs * train_tokens, experiment.batch_size * experiment.window
    dense = language_model_uses(experiment, vocabulary)
    if experiment.method.configured.smaller_model:
        uses = language_model_uses(small_dense(experiment, vocabulary), vocabulary)
        return total_flops(uses, [Stretch(words, {})], {}, sample, dense=(dense, words))
    if experiment.method.configured.group_lasso:
        raise UserError(
            f"method {experiment.method.name}: how many units die is known only after a run; give its folder instead "
            "of a preset"
        )
    densities = _planned_densities(experiment, vocabulary, train_tokens)
    dense_share = _dense_share(experiment, train_tokens)
    stretches = [Stretch(words / len(densities), each, dense_share) for each in densities]
    note = ""
    if method.rewires and method.redistribution.counts is not None:
        note = "as allocated at the start; the method moves weights between layers"
    return total_flops(dense, stretches, densities[-1], sample, note=note)


def run_flops(run: Run, dense: Experiment | None = None) -> TrainingFlops:
    """The FLOPs that a run took, from the densities it wrote down, up to where it is now.

    Beside them stand those of its own network if it were dense, or of the network of ``dense``: a small dense run says
    nothing of the network it is smaller than.
    """
    experiment, folder = run.experiment, run.folder
    record = read_run(folder.path)
    train_tokens = record.corpus.get("tokens", {}).get("train")
    if train_tokens is None:
        raise UserError(f"{folder.corpus} has no number of training tokens: restore it from a copy")
    summary = record.summary or {}
    vocabulary = summary.get("vocabulary") or len(run.vocabulary)
    uses = language_model_uses(experiment, vocabulary)
    history = TopologyHistory(folder.topologies)
    sizes = {use.name: use.size for use in uses}
    words = len(record.epochs) * train_tokens
    densities = [{name: gates[WHOLE] for name, gates in epoch.density.items()} for epoch in record.epochs]
    final = densities[-1]
    if "density" in summary:
        final = {name: gates[WHOLE] for name, gates in summary["density"].items()}
    dense_share = _dense_share(experiment, train_tokens)
    steps = record.epochs[-1].step
    stretches = [Stretch(train_tokens, each, dense_share) for each in densities]
    if experiment.rewire_every is not None and history.path.exists():
        # Densities may change inside an epoch, which its record tells nothing of.
        stretches = [
            Stretch(words * updates / steps, {name: count / sizes[name] for name, count in counts.items()}, dense_share)
            for updates, counts in _between(history, steps)
        ]
    reference = uses if dense is None else language_model_uses(dense, vocabulary)
    return total_flops(uses, stretches, final, experiment.batch_size * experiment.window, dense=(reference, words))


def _between(history: TopologyHistory, steps: int) -> Iterator[tuple[int, Mapping[str, int]]]:
    """Numbers of updates, and how many weights each matrix had during them."""
    records = list(history.counts())
    ends = [*(moment.step for moment, _ in records[1:]), steps]
    for (moment, counts), end in zip(records, ends, strict=True):
        yield min(end, steps) - moment.step, counts


def total_flops(
    uses: Sequence[MatrixUse],
    stretches: Sequence[Stretch],
    final: Densities,
    sample: int,
    *,
    dense: tuple[Sequence[MatrixUse], float] | None = None,
    note: str = "",
) -> TrainingFlops:
    """All stretches together; matrices without a density are dense."""
    reference, words = dense or (uses, sum(stretch.words for stretch in stretches))
    training = 0.0
    for stretch in stretches:
        for use in uses:
            density = stretch.densities.get(use.name, 1.0)
            masked, whole = (use.training(density, dense_gradient=each) for each in (False, True))
            training += stretch.words * (masked + stretch.dense_share * (whole - masked))
    return TrainingFlops(
        training,
        sample * sum(use.inference(final.get(use.name, 1.0)) for use in uses),
        words * sum(use.training(1.0) for use in reference),
        sample * sum(use.inference(1.0) for use in reference),
        note,
    )


def _planned_densities(experiment: Experiment, vocabulary: int, train_tokens: int) -> list[Densities]:
    """What the experiment's method gives each matrix from rewiring to rewiring."""
    method = experiment.method.build()
    chosen = {each.name: each.shape for each in experiment.model.outline(vocabulary).sparse_matrices()}
    planned = _rewirings(experiment, train_tokens)
    shapes = list(chosen.values())
    moments = range(planned) if method.prunes else range(1)
    counts = (method.counts(shapes, experiment.sparsity, done, planned) for done in moments)
    return [
        {name: count / math.prod(shape) for (name, shape), count in zip(chosen.items(), each, strict=True)}
        for each in counts
    ]


def _dense_share(experiment: Experiment, train_tokens: int) -> float:
    """The share of updates at which the gradient of all positions is computed."""
    method = experiment.method.build()
    if method.signal is None:
        return 0.0
    if method.signal.kept_by_optimizer and experiment.optimizer.name in WITH_MOMENTUM:
        return 1.0
    return _rewirings(experiment, train_tokens) / (experiment.epochs * _updates(experiment, train_tokens))


def _rewirings(experiment: Experiment, train_tokens: int) -> int:
    if experiment.rewire_every is None:
        return experiment.epochs
    return max(experiment.epochs * _updates(experiment, train_tokens) // experiment.rewire_every, 1)


def _updates(experiment: Experiment, train_tokens: int) -> int:
    """Of one epoch."""
    return max(math.ceil((train_tokens // experiment.batch_size - 1) / experiment.window), 1)


def language_model_uses(experiment: Experiment, vocabulary: int) -> list[MatrixUse]:
    """What each matrix of the experiment's model does for one word."""
    return word_uses(experiment.model.outline(vocabulary))
