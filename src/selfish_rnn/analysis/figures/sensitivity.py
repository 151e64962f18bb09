"""Perplexity against one setting: sparsity, prune rate, growth interval; and against pruning."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from selfish_rnn.analysis.figures.style import MARKERS, colour, legend_below, one_panel, styled
from selfish_rnn.analysis.records import RunRecord

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Outcomes:
    """Perplexities of one model or method at several values of a setting; ``dense`` is that of its dense baseline."""

    label: str
    values: Sequence[float]
    perplexities: Sequence[float]
    spreads: Sequence[float] | None = None
    dense: float | None = None

    def __post_init__(self) -> None:
        lengths = {len(self.values), len(self.perplexities), len(self.spreads or self.values)}
        if len(lengths) != 1:
            raise ValueError(f"{self.label}: there must be as many perplexities (and spreads) as values")


def outcomes_by_setting(
    label: str, records: Iterable[RunRecord], setting: str, *, dense: float | None = None
) -> Outcomes:
    """Test perplexities of finished runs by a setting, averaged over runs that share its value; spread: one deviation.

    Example::

        outcomes_by_setting("stacked LSTM", map(read_run, folders), "sparsity")
    """
    found: dict[float, list[float]] = {}
    for record in records:
        if record.test_perplexity is None:
            raise ValueError(f"run {record.name} is not finished")
        value = record.settings.get(setting)
        if not isinstance(value, (int, float)):
            raise ValueError(f"run {record.name} has no number for the setting {setting!r}")
        found.setdefault(float(value), []).append(record.test_perplexity)
    values = sorted(found)
    return Outcomes(
        label,
        values,
        [statistics.fmean(found[value]) for value in values],
        [statistics.stdev(found[value]) if len(found[value]) > 1 else 0.0 for value in values],
        dense,
    )


@styled
def sparsity_sensitivity(outcomes: Sequence[Outcomes]) -> Figure:
    """Test perplexity against sparsity, the dense baseline of each model dashed in its colour."""
    return _drawn(outcomes, "sparsity")


@styled
def prune_rate_sensitivity(outcomes: Sequence[Outcomes]) -> Figure:
    """Test perplexity against the fraction of weights rewired at first."""
    return _drawn(outcomes, "initial prune rate")


@styled
def growth_interval(outcomes: Sequence[Outcomes]) -> Figure:
    """Test perplexity against the number of updates between two rewirings, on a logarithmic axis."""
    return _drawn(outcomes, "updates between rewirings", scale="log")


@styled
def pruning_comparison(outcomes: Sequence[Outcomes]) -> Figure:
    """Test perplexity of sparse training and of pruning against sparsity, spaced by how many weights are left.

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
    """Lines over the values, each drawn at its ``place`` and labelled with itself."""
    from matplotlib.ticker import NullLocator

    if not outcomes:
        raise ValueError("there are no outcomes to draw")
    figure, axes = one_panel()
    axes.set_xscale(scale)
    for index, one in enumerate(outcomes):
        axes.errorbar(
            [place(value) for value in one.values],
            one.perplexities,
            yerr=one.spreads if one.spreads and any(one.spreads) else None,
            color=colour(index),
            marker=MARKERS[index % len(MARKERS)],
            capsize=2,
            elinewidth=0.8,
            label=one.label,
        )
        if one.dense is not None:
            axes.axhline(one.dense, color=colour(index), linestyle="--", linewidth=0.9, zorder=1)
    if any(one.dense is not None for one in outcomes):
        axes.plot([], [], color="black", linestyle="--", linewidth=0.9, label="dense")
    ticks = sorted({value for one in outcomes for value in one.values})
    axes.set_xticks([place(tick) for tick in ticks], [f"{tick:g}" for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set(xlabel=setting, ylabel="test perplexity")
    legend_below(figure, axes, 2, last="dense")
    return figure
