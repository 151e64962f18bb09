"""Cases, rows and items: the runs behind a table or figure, independent of scale and seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from selfish_rnn.experiment.presets import assignment

METHOD_OVERRIDES: dict[str, tuple[str, ...]] = {
    "by-matrix": ("method=selfish", "method.pool=matrix"),
    "no-gate-redistribution": ("method=selfish", "method.pool=gate", "method.redistribution=gate"),
    "gates-by-magnitude": ("method=selfish", "method.redistribution=gates-by-magnitude"),
    "gates-by-gradient": ("method=selfish", "method.redistribution=gates-by-gradient"),
    "gradient-growth": ("method=selfish", "method.growth=gradient"),
}
"""Variants of Selfish with one part replaced, by the name used in reports. All other names are those of METHODS."""

DENSE = ("dense", "small-dense")
"""Methods that train without zeros."""


@dataclass(frozen=True)
class Case:
    """Network, method and optimizer of a run, before scale and seed are chosen.

    >>> Case("stacked-lstm", "static", sparsity=0.68).overrides(updates=720)
    ('method=static', 'optimizer.name=snt-asgd', 'sparsity=0.68')

    Attributes:
        network: Name of a network of the scale.
        method: Name in METHODS or in :data:`METHOD_OVERRIDES`.
        optimizer: Name of an optimizer.
        sparsity: Sparsity (default: that of the preset).
        changes: Further ``key=value`` overrides.
        rewire_every: Interval between rewirings, in intervals of the scale. One interval is an epoch in the paper.
        average: One of several averages of a run (see :class:`~selfish_rnn.reproduce.scales.Scale`): ``nt`` is NT-ASGD
            with the starts and restarts of the scale; ``nt-start`` and ``snt-start`` average from the first start to
            the end; ``nt-trigger`` and ``snt-trigger`` start at the epoch of the non-monotone trigger. A scale that
            keeps one average per run trains a run for each.
        untuned: True if the settings chosen by tuning are left out.
    """

    network: str
    method: str = "selfish"
    optimizer: str = "snt-asgd"
    sparsity: float | None = None
    changes: tuple[str, ...] = ()
    rewire_every: float = 1.0
    average: str = ""
    untuned: bool = False

    def overrides(self, updates: int) -> tuple[str, ...]:
        """Return the case as ``key=value`` overrides of a preset that rewires every `updates` updates."""
        interval = max(round(self.rewire_every * updates), 1)
        return (
            *METHOD_OVERRIDES.get(self.method, (assignment("method", self.method),)),
            assignment("optimizer.name", self.optimizer),
            *(() if self.sparsity is None else (assignment("sparsity", self.sparsity),)),
            *(() if self.rewire_every == 1 else (assignment("rewire_every", interval),)),
            *self.changes,
        )


@dataclass(frozen=True)
class Row:
    """Line of a table or point of a figure.

    Attributes:
        label: Name of the row.
        case: Case that reproduces it; None for numbers that the paper quotes from other work.
        group: Heading of several rows.
        paper: Numbers of the paper, by name.
        x: Position of a point on the x-axis of the figure.
        on_demand: True if only a tuning that asks for the run trains it; the plan leaves it out.
    """

    label: str
    case: Case | None = None
    group: str = ""
    paper: Mapping[str, float] = field(default_factory=dict)
    x: float | None = None
    on_demand: bool = False


@dataclass(frozen=True)
class Item:
    """Table or figure.

    Attributes:
        name: Name on the command line.
        title: Heading.
        source: Place in the paper.
        rows: Lines or points.
        kind: Renderer: ``perplexity``, ``flops``, ``gates``, ``large-weights``, ``distances``, ``time`` or ``pareto``.
        conclusion: Statement of the paper about its own numbers.
        min_seeds: Smallest number of seeds that the item needs.
        max_seeds: Largest number of seeds that the item uses.
        seeds: Seeds that replace those of the scale.
        scales: Scales that have the item (empty: all).
    """

    name: str
    title: str
    source: str
    rows: tuple[Row, ...]
    kind: str = "perplexity"
    conclusion: str = ""
    min_seeds: int = 1
    max_seeds: int | None = None
    seeds: tuple[int, ...] = ()
    scales: tuple[str, ...] = ()

    @property
    def cases(self) -> tuple[Case, ...]:
        """Cases of all rows, without repetitions."""
        return tuple(dict.fromkeys(row.case for row in self.rows if row.case is not None))

    @property
    def planned_cases(self) -> tuple[Case, ...]:
        """Cases of the plan: all but those of ``on_demand`` rows."""
        return tuple(dict.fromkeys(row.case for row in self.rows if row.case is not None and not row.on_demand))
