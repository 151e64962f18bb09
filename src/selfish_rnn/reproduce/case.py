"""What a line of a table or a point of a figure trains, before it is known at which scale and with which seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from selfish_rnn.experiment.presets import assignment

METHOD_WORDS: dict[str, tuple[str, ...]] = {
    "by-matrix": ("method=selfish", "method.pool=matrix"),
    "no-gate-redistribution": ("method=selfish", "method.pool=gate", "method.redistribution=gate"),
    "gates-by-magnitude": ("method=selfish", "method.redistribution=gates-by-magnitude"),
    "gates-by-gradient": ("method=selfish", "method.redistribution=gates-by-gradient"),
    "gradient-growth": ("method=selfish", "method.growth=gradient"),
}
"""Selfish with a part replaced, under the name the reports use; every other name is one of the method table."""

DENSE = ("dense", "small-dense")
"""Methods without a sparsity of their own."""


@dataclass(frozen=True)
class Case:
    """A network trained by a method with an optimizer; ``changes`` are further ``key=value`` words.

    ``sparsity`` is the preset's if none is given. ``rewire_every`` counts the intervals of the
    scale, which are an epoch in the paper and have more updates at one scale than at another.

    ``average`` selects one of several averages of a run (see :class:`~selfish_rnn.reproduce.scales.Scale`): ``nt`` is
    NT-ASGD with the starts and restarts of the scale, ``nt-start`` and ``snt-start`` average from the first start to
    the end without restarts, ``nt-trigger`` and ``snt-trigger`` from the epoch of the non-monotone trigger. A scale
    that trains one average per run has a run for each. ``untuned`` leaves out the settings that the scale chose by
    tuning, as the runs of the tuning itself do.

    >>> Case("rhn", "static", sparsity=0.68).words(updates=100)
    ('method=static', 'optimizer.name=snt-asgd', 'sparsity=0.68')
    """

    network: str
    method: str = "selfish"
    optimizer: str = "snt-asgd"
    sparsity: float | None = None
    changes: tuple[str, ...] = ()
    rewire_every: float = 1.0
    average: str = ""
    untuned: bool = False

    def words(self, updates: int) -> tuple[str, ...]:
        """The case as words of ``selfish-rnn train``, laid over a preset that rewires after so many updates."""
        method = METHOD_WORDS.get(self.method, (assignment("method", self.method),))
        sparsity = () if self.sparsity is None else (assignment("sparsity", self.sparsity),)
        interval = (
            () if self.rewire_every == 1 else (assignment("rewire_every", max(round(self.rewire_every * updates), 1)),)
        )
        return (*method, assignment("optimizer.name", self.optimizer), *sparsity, *interval, *self.changes)


@dataclass(frozen=True)
class Row:
    """One line of a table, or one point of a figure: what the paper reports, and the case that makes it again.

    Rows that the paper takes from elsewhere have no case. ``place`` is where a point stands on the figure's x-axis.
    ``later`` rows are left out of the plan: a tuning makes them when its first rows call for them.
    """

    label: str
    case: Case | None = None
    group: str = ""
    paper: Mapping[str, float] = field(default_factory=dict)
    place: float | None = None
    later: bool = False


@dataclass(frozen=True)
class Item:
    """A table or figure: its rows, how they are rendered, and what the paper reads from them.

    ``shows`` names the renderer: ``perplexity``, ``flops``, ``gates``, ``large-weights``, ``distances``, ``time`` or
    ``pareto``. ``seeds`` replaces the scale's seeds, and ``scales`` lists the scales that have the item (none: all).
    """

    name: str
    title: str
    source: str
    rows: tuple[Row, ...]
    shows: str = "perplexity"
    says: str = ""
    least_seeds: int = 1
    most_seeds: int | None = None
    seeds: tuple[int, ...] = ()
    scales: tuple[str, ...] = ()

    @property
    def cases(self) -> tuple[Case, ...]:
        """Every case of the rows, once."""
        return tuple(dict.fromkeys(row.case for row in self.rows if row.case is not None))

    @property
    def planned_cases(self) -> tuple[Case, ...]:
        """Cases that the plan makes: all but those of ``later`` rows."""
        return tuple(dict.fromkeys(row.case for row in self.rows if row.case is not None and not row.later))
