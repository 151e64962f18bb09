"""Figures of runs: learning curves, weight sizes, and perplexity against a setting."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from selfish_rnn.analysis.figures.style import DASHES, GREY, MARKERS, colour, legend_below, line_look, one_panel, styled
from selfish_rnn.analysis.networks import short_names
from selfish_rnn.analysis.records import RunRecord

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@styled
def learning_curves(records: Sequence[RunRecord], *, labels: Sequence[str] | None = None) -> Figure:
    """Draw validation perplexity by epoch. A circle marks the start of averaging, a dotted line a restart.

    Example::

        learning_curves([read_run("runs/selfish"), read_run("runs/static")], labels=["Selfish", "Static"])
    """
    figure, axes = one_panel()
    for index, (record, label) in enumerate(zip(records, _labels(records, labels), strict=True)):
        by_epoch = {epoch.epoch: epoch.valid_perplexity for epoch in record.epochs}
        axes.plot(list(by_epoch), list(by_epoch.values()), label=label, **line_look(index))
        starts = record.averaging_starts
        axes.plot(starts, [by_epoch[epoch] for epoch in starts], "o", color=colour(index), mfc="white", zorder=3)
    for epoch in sorted({epoch for record in records for epoch in record.restarts}):
        axes.axvline(epoch, color=GREY, linestyle=":", linewidth=0.8, zorder=1)
    if any(record.averaging_starts for record in records):
        axes.plot([], [], "o", color=GREY, mfc="white", label="averaging starts")
    if any(record.restarts for record in records):
        axes.plot([], [], color=GREY, linestyle=":", linewidth=0.8, label="restart")
    axes.set(xlabel="epoch", ylabel="validation perplexity", yscale="log")
    _plain_numbers(axes.yaxis)
    _whole_numbers(axes.xaxis)
    legend_below(figure, axes, 2)
    return figure


@styled
def weights_above_threshold(records: Sequence[RunRecord], *, matrices: Sequence[str] | None = None) -> Figure:
    """Draw the number of weights above 0.1, with a colour for each matrix and a line style for each record.

    For a run with SNT-ASGD and one with NT-ASGD it shows the effect of averaging on young weights.

    Args:
        records: At most four. Line styles are named after the optimizers, or after the runs if these are equal.
        matrices: Names of matrices in the model (default: those of recurrent layers, or all).
    """
    if not 1 <= len(records) <= len(DASHES):
        raise ValueError(f"one to {len(DASHES)} records have different line styles, got {len(records)}")
    recorded = list(records[0].epochs[-1].weights_above)
    chosen = list(matrices or [name for name in recorded if "weight_" in name] or recorded)
    missing = [name for name in chosen if any(name not in record.epochs[0].weights_above for record in records)]
    if missing:
        raise ValueError(f"not every record has the matrix {missing[0]}; the first one has {', '.join(recorded)}")
    optimizers = [record.optimizer.upper() for record in records]
    kinds = optimizers if len(set(optimizers)) == len(records) else [record.name for record in records]
    figure, axes = one_panel()
    for index, (name, short) in enumerate(zip(chosen, short_names(chosen), strict=True)):
        for record, dashes in zip(records, DASHES, strict=False):
            axes.plot(
                [epoch.epoch for epoch in record.epochs],
                [epoch.weights_above[name] / 1000 for epoch in record.epochs],
                color=colour(index),
                linestyle=dashes,
                label=short if record is records[0] else "_",
            )
    for kind, dashes in zip(kinds, DASHES, strict=False):
        axes.plot([], [], color=GREY, linestyle=dashes, label=kind)
    axes.set(xlabel="epoch", ylabel="thousand weights above 0.1")
    axes.set_ylim(bottom=0)
    _whole_numbers(axes.xaxis)
    legend_below(figure, axes, 3)
    return figure


@styled
def time_against_perplexity(records: Sequence[RunRecord], *, labels: Sequence[str] | None = None) -> Figure:
    """Draw the lowest validation perplexity so far against training time. A marker ends each run."""
    figure, axes = one_panel()
    for index, (record, label) in enumerate(zip(records, _labels(records, labels), strict=True)):
        lowest = float("inf")
        points = []
        for epoch in record.epochs:
            lowest = min(lowest, epoch.valid_perplexity)
            points.append((epoch.seconds / 60, lowest))
        axes.plot(
            [minutes for minutes, _ in points],
            [perplexity for _, perplexity in points],
            marker=MARKERS[index % len(MARKERS)],
            markevery=[len(points) - 1],
            label=label,
            **line_look(index),
        )
    axes.set(xlabel="minutes of training", ylabel="lowest validation perplexity", yscale="log")
    axes.set_xlim(left=0)
    _plain_numbers(axes.yaxis)
    legend_below(figure, axes, 2)
    return figure


def _labels(records: Sequence[RunRecord], labels: Sequence[str] | None) -> Sequence[str]:
    if not records:
        raise ValueError("there is no record to draw")
    if labels is not None and len(labels) != len(records):
        raise ValueError(f"{len(records)} records need the same number of labels, got {len(labels)}")
    return labels or [record.name for record in records]


def _plain_numbers(axis: object) -> None:
    """Format ticks as 50, 100, 200 instead of powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))  # type: ignore[attr-defined]
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))  # type: ignore[attr-defined]
    axis.set_minor_formatter(NullFormatter())  # type: ignore[attr-defined]


def _whole_numbers(axis: object) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True))  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Outcomes:
    """Perplexities of a model or method at several values of a setting; ``dense`` is the dense baseline."""

    label: str
    values: Sequence[float]
    perplexities: Sequence[float]
    spreads: Sequence[float] | None = None
    dense: float | None = None

    def __post_init__(self) -> None:
        lengths = {len(self.values), len(self.perplexities), len(self.spreads or self.values)}
        if len(lengths) != 1:
            raise ValueError(f"{self.label}: values, perplexities and spreads must have the same length")


def outcomes_by_setting(
    label: str, records: Iterable[RunRecord], setting: str, *, dense: float | None = None
) -> Outcomes:
    """Return test perplexities of finished runs by a setting, with means and standard deviations over equal values.

    Example::

        outcomes_by_setting("stacked LSTM", map(read_run, folders), "sparsity")
    """
    tests: dict[float, list[float]] = {}
    for record in records:
        if record.test_perplexity is None:
            raise ValueError(f"run {record.name} is not finished")
        value = record.settings.get(setting)
        if not isinstance(value, (int, float)):
            raise ValueError(f"run {record.name} has no number for the setting {setting!r}")
        tests.setdefault(float(value), []).append(record.test_perplexity)
    values = sorted(tests)
    return Outcomes(
        label,
        values,
        [statistics.fmean(tests[value]) for value in values],
        [statistics.stdev(tests[value]) if len(tests[value]) > 1 else 0.0 for value in values],
        dense,
    )


@styled
def sparsity_sensitivity(outcomes: Sequence[Outcomes]) -> Figure:
    """Draw test perplexity against sparsity, with dense baselines as dashed lines."""
    return _drawn(outcomes, "sparsity")


@styled
def prune_rate_sensitivity(outcomes: Sequence[Outcomes]) -> Figure:
    """Draw test perplexity against the fraction of weights rewired at first."""
    return _drawn(outcomes, "initial prune rate")


@styled
def growth_interval(outcomes: Sequence[Outcomes]) -> Figure:
    """Draw test perplexity against the number of updates between two rewirings, on a logarithmic axis."""
    return _drawn(outcomes, "updates between rewirings", scale="log")


@styled
def pruning_comparison(outcomes: Sequence[Outcomes]) -> Figure:
    """Draw test perplexity of sparse training and pruning against sparsity, spaced by the number of weights.

    Sparsities 0.8, 0.9 and 0.95 halve what is left each time, so they are drawn equally far apart.
    """
    return _drawn(outcomes, "sparsity", scale="log", place=lambda sparsity: 1 / (1 - sparsity))


def _drawn(
    outcomes: Sequence[Outcomes],
    setting: str,
    *,
    scale: str = "linear",
    place: Callable[[float], float] = lambda value: value,
) -> Figure:
    """Draw lines over the values, at the positions that ``place`` returns."""
    from matplotlib.ticker import NullLocator

    if not outcomes:
        raise ValueError("there are no outcomes to draw")
    figure, axes = one_panel()
    axes.set_xscale(scale)
    for index, outcome in enumerate(outcomes):
        axes.errorbar(
            [place(value) for value in outcome.values],
            outcome.perplexities,
            yerr=outcome.spreads if outcome.spreads and any(outcome.spreads) else None,
            color=colour(index),
            marker=MARKERS[index % len(MARKERS)],
            capsize=2,
            elinewidth=0.8,
            label=outcome.label,
        )
        if outcome.dense is not None:
            axes.axhline(outcome.dense, color=colour(index), linestyle="--", linewidth=0.9, zorder=1)
    if any(outcome.dense is not None for outcome in outcomes):
        axes.plot([], [], color="black", linestyle="--", linewidth=0.9, label="dense")
    ticks = sorted({value for outcome in outcomes for value in outcome.values})
    axes.set_xticks([place(tick) for tick in ticks], [f"{tick:g}" for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set(xlabel=setting, ylabel="test perplexity")
    legend_below(figure, axes, 2, last="dense")
    return figure
