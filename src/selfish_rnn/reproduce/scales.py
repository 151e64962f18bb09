"""Scales: sizes of networks and texts, and seeds.

The networks of the paper are ``stacked-lstm``, ``rhn``, ``on-lstm``, ``on-lstm-1300`` (with a second restart) and
``awd-lstm-mos``; ``wide-lstm`` and ``narrow-lstm`` belong to the time-to-quality figure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from selfish_rnn.errors import UserError, unknown
from selfish_rnn.reproduce.case import Case
from selfish_rnn.reproduce.tuning import CHOSEN, LONG, LSTM, MOS, ON_LSTM, RHN

TIMED = ("rescale=true", "model.dropout=0.5", "optimizer.nonmono=2")
"""Overrides of runs with a time limit. Hours instead of days are too short for the paper's dropout of 0.65 and for its
wait before averaging; a dropout of 0.5 is usual for dense LSTMs of 300 to 650 units on this text."""

TIMED_SECONDS = 7200.0
"""Time limit of timed runs at every scale but ``tiny``."""


@dataclass(frozen=True)
class Scale:
    """Preset of every network with overrides, and seeds.

    Attributes:
        name: Name on the command line.
        about: Purpose and cost, in one line.
        networks: Preset and overrides of every network.
        updates: Updates of the stacked LSTM between two rewirings, an epoch in the paper.
        hours: Estimated core-hours of a sparse run of every network, used while no run is finished.
        budget: Time limit of a timed run in seconds.
        marks: Number of equal parts of the limit after which the test perplexity is measured.
        seeds: Seeds (empty: the seed of the preset).
        fewer_seeds: Number of seeds of runs outside the core comparisons (None: all seeds).
        chosen: Tuned value of every grid of :data:`~selfish_rnn.reproduce.tuning.GRIDS`.
        selfish: Overrides of every variant of Selfish.
        averages: Additional averages that the run of a case keeps, by their names in ``selections``. Raw weights do not
            depend on averages, so averages of one run are compared without noise.
        selections: Name in the files of a run, such as ``nt-20-no-restart``, of every value of
            :attr:`Case.average <selfish_rnn.reproduce.case.Case.average>`.
        distances_from: First epoch whose topologies are compared.
        superseded: True if another scale replaces it: results are read and rendered, and no run is trained.
    """

    name: str
    about: str
    networks: Mapping[str, tuple[str, ...]]
    updates: int
    hours: Mapping[str, float]
    budget: float
    marks: int = 4
    seeds: tuple[int, ...] = ()
    fewer_seeds: int | None = None
    chosen: Mapping[str, float] = field(default_factory=dict)
    selfish: tuple[str, ...] = ()
    averages: Mapping[Case, tuple[str, ...]] = field(default_factory=dict)
    selections: Mapping[str, str] = field(default_factory=dict)
    distances_from: int = 5
    superseded: bool = False


def _timed(preset: str, wide: int, narrow: int, *changes: str) -> dict[str, tuple[str, ...]]:
    return {
        name: (preset, f"model.embedding={units}", f"model.hidden={units}", *TIMED, *changes)
        for name, units in (("wide-lstm", wide), ("narrow-lstm", narrow))
    }


def _pareto(widths: Mapping[int, int], epochs: tuple[int, int], *changes: str) -> dict[str, tuple[str, ...]]:
    """Return the networks of the pareto figure by their usual widths, each for two numbers of epochs.

    Averages begin after a third of the epochs, and restart after 0.6 and 0.85 of them.
    """
    networks = {}
    for usual, width in widths.items():
        for ending, count in zip(("", LONG), epochs, strict=True):
            networks[f"pareto-{usual}{ending}"] = (
                "ptb-stacked-lstm", *changes, "model.tied=true", f"model.embedding={width}", f"model.hidden={width}",
                "rescale=true", f"epochs={count}", f"optimizer.average_from={count // 3}",
                f"restart_at=[{round(0.6 * count)}, {round(0.85 * count)}]",
            )  # fmt: skip
    return networks


_TINY_TEXT = (
    "corpus=python-docs", "train_tokens=1500", "epochs=3", "engine=masked", "batch_size=10", "sub_batches=1",
    "valid_batch_size=100", "test_batch_size=100", "window=20", "optimizer.nonmono=0", "rescale=true",
)  # fmt: skip
_TINY_ON_LSTM = ("model.embedding=8", "model.hidden=8", "model.layers=2", "model.chunk=2")
_TINY_HOURS = 0.001

TINY = Scale(
    name="tiny",
    about="seconds per run on the built-in text, to check that everything works; its numbers mean nothing",
    networks={
        "stacked-lstm": (
            "ptb-stacked-lstm", *_TINY_TEXT, "model.embedding=8", "model.hidden=8", "model.init_range=0.3",
            "optimizer.average_from=1", "restart_at=[2]",
        ),
        "rhn": ("ptb-rhn", *_TINY_TEXT, "model.hidden=8", "model.depth=2"),
        "on-lstm": ("ptb-on-lstm", *_TINY_TEXT, *_TINY_ON_LSTM, "restart_at=[1]"),
        "on-lstm-1300": ("ptb-on-lstm-1300", *_TINY_TEXT, *_TINY_ON_LSTM, "restart_at=[1, 2]"),
        "awd-lstm-mos": (
            "wikitext-2-awd-lstm-mos", *_TINY_TEXT, "model.embedding=8", "model.hidden=8", "model.hidden_last=8",
            "model.experts=2",
        ),
        "wide-lstm": ("ptb-stacked-lstm", *_TINY_TEXT, "model.embedding=16", "model.hidden=16"),
        "narrow-lstm": ("ptb-stacked-lstm", *_TINY_TEXT, "model.embedding=8", "model.hidden=8"),
        **_pareto({1500: 12, 512: 6, 272: 4}, (3, 4), *_TINY_TEXT),
    },
    updates=8,
    hours=defaultdict(lambda: _TINY_HOURS),
    budget=1.5,
    marks=1,
    seeds=(1,),
    averages={Case(LSTM): ("nt", "nt-start", "snt-start")},
    selections={"nt": "nt-1", "nt-start": "nt-1-no-restart", "snt-start": "snt-1-no-restart"},
)  # fmt: skip

SMALL_FIRST = Scale(
    name="small-first",
    about="the first edition of small, superseded: its results can be read and rendered",
    networks={
        "stacked-lstm": ("ptb-stacked-lstm-small",),
        "rhn": ("ptb-rhn-small",),
        "on-lstm": ("ptb-on-lstm-small",),
        "on-lstm-1300": ("ptb-on-lstm-small", "epochs=78", "restart_at=[30, 60]"),
        "awd-lstm-mos": ("ptb-awd-lstm-mos-small",),
        **_timed("ptb-stacked-lstm", 1500, 650),
    },
    updates=720,
    hours={"stacked-lstm": 0.12, "rhn": 0.12, "on-lstm": 0.12, "on-lstm-1300": 0.16, "awd-lstm-mos": 0.12},
    budget=TIMED_SECONDS,
    seeds=(1, 2, 3),
    chosen={"sparse-0.67": 0.55, "sparse-0.8": 0.4, "sparse-0.9": 0.3, "sparse-0.95": 0.1},
    selfish=("method.pool=matrix",),
    superseded=True,
)

START, RESTARTS = 20, (36, 52)
"""Epochs of scale ``small`` after which every averaging optimizer begins new averages; validation selects one.

Gradual pruning makes its last cut at the end of epoch 52. Averages that begin earlier would hold weights from before
the cuts.
"""

INIT_RANGE = 0.3
"""Range in which embedding and decoder start. With the paper's 0.1 sparse networks of 256 units learn only word
frequencies in their first epochs."""

_EVERY_METHOD = (f"model.init_range={INIT_RANGE:g}", f"optimizer.average_from={START}", "optimizer.nonmono=5")
_COMMON = (*_EVERY_METHOD, f"restart_at={list(RESTARTS)}")

_SELECTIONS = {
    "nt": f"nt-{START}",
    "snt-start": f"snt-{START}-no-restart",
    "nt-start": f"nt-{START}-no-restart",
    "snt-trigger": "snt-trigger-no-restart",
    "nt-trigger": "nt-trigger-no-restart",
}

_PARETO_HOURS = {
    "pareto-1500": 6.3, "pareto-1500-long": 19, "pareto-512": 3.5, "pareto-512-long": 10.6, "pareto-272": 1.6,
    "pareto-272-long": 4.7,
}  # fmt: skip
"""Core-hours of sparse runs; the estimate of a dense run is longer by a factor."""

SMALL = Scale(
    name="small",
    about="minutes of one core per run, with the paper's proportions of weights to words and of recurrent weights",
    networks={
        "stacked-lstm": ("ptb-stacked-lstm-small", *_COMMON),
        "rhn": ("ptb-rhn-small", *_COMMON),
        "on-lstm": ("ptb-on-lstm-small", *_COMMON),
        "on-lstm-1300": ("ptb-on-lstm-small", "epochs=78", *_EVERY_METHOD, f"restart_at={[*RESTARTS, 68]}"),
        "awd-lstm-mos": ("ptb-awd-lstm-mos-small", *_COMMON),
        **_timed("ptb-stacked-lstm", 1500, 650),
        **_pareto({1500: 1500, 512: 512, 272: 272}, (33, 100)),
    },
    updates=720,
    hours={
        "stacked-lstm": 0.12,
        "rhn": 0.12,
        "on-lstm": 0.12,
        "on-lstm-1300": 0.16,
        "awd-lstm-mos": 0.12,
        **_PARETO_HOURS,
    },
    budget=TIMED_SECONDS,
    seeds=(1, 2, 3, 4, 5),
    fewer_seeds=3,
    chosen=CHOSEN,
    averages={
        **{Case(network): tuple(_SELECTIONS) for network in (LSTM, RHN, ON_LSTM, MOS)},
        Case(LSTM, "dense", "nt-asgd"): ("nt-trigger",),
    },
    selections=_SELECTIONS,
    distances_from=20,
)

MEDIUM = Scale(
    name="medium",
    about="an evening per run: whole corpora, networks of 400 to 650 units, a tenth of the paper's longest schedules",
    networks={
        "stacked-lstm": (
            "ptb-stacked-lstm", "model.embedding=650", "model.hidden=650", "model.dropout=0.5", "rescale=true",
            "optimizer.lr=30", "epochs=60",
        ),
        "rhn": ("ptb-rhn", "model.hidden=400", "model.depth=8", "rescale=true", "epochs=60"),
        "on-lstm": ("ptb-on-lstm", "model.hidden=500", "rescale=true", "epochs=100", "restart_at=[50]"),
        "on-lstm-1300": ("ptb-on-lstm-1300", "model.hidden=500", "rescale=true", "epochs=130", "restart_at=[50, 100]"),
        "awd-lstm-mos": (
            "wikitext-2-awd-lstm-mos", "corpus=ptb", "model.embedding=200", "model.hidden=500", "model.hidden_last=300",
            "model.experts=5", "rescale=true", "epochs=60",
        ),
        **_timed("ptb-stacked-lstm", 1500, 650),
    },
    updates=1327,
    hours={"stacked-lstm": 6, "rhn": 10, "on-lstm": 20, "on-lstm-1300": 26, "awd-lstm-mos": 20},
    budget=TIMED_SECONDS,
    seeds=(1,),
)  # fmt: skip

PAPER = Scale(
    name="paper",
    about="exactly the paper's settings: days to weeks of one core per run",
    networks={
        "stacked-lstm": ("ptb-stacked-lstm",),
        "rhn": ("ptb-rhn",),
        "on-lstm": ("ptb-on-lstm",),
        "on-lstm-1300": ("ptb-on-lstm-1300",),
        "awd-lstm-mos": ("wikitext-2-awd-lstm-mos",),
        **_timed("ptb-stacked-lstm", 1500, 650),
    },
    updates=1327,
    hours={"stacked-lstm": 60, "rhn": 400, "on-lstm": 900, "on-lstm-1300": 1200, "awd-lstm-mos": 6000},
    budget=TIMED_SECONDS,
)

SCALES: dict[str, Scale] = {scale.name: scale for scale in (TINY, SMALL, SMALL_FIRST, MEDIUM, PAPER)}


def scale_named(name: str) -> Scale:
    """Return the scale with a name."""
    if name not in SCALES:
        raise UserError(unknown("scale", name, SCALES))
    return SCALES[name]
