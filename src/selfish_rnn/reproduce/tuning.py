"""Tuning: grids of dropout, learning rates and starting ranges, and the rule that chooses a value.

A grid is trained on one seed that no table reports, by dense and static networks alone, so that no method is favoured.
The value with the lowest validation perplexity is chosen. If it is an end of what was trained, the grid grows until
the chosen value has a worse neighbour on both sides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from selfish_rnn.experiment.methods import CONFIGURABLE_METHODS
from selfish_rnn.reproduce.case import Case

TUNING_SEED = 11
"""Seed of every tuning run."""

LSTM, RHN, ON_LSTM, MOS = "stacked-lstm", "rhn", "on-lstm", "awd-lstm-mos"

CHOSEN: dict[str, float] = {
    "dense": 0.55,
    "dense-start": 0.3,
    "small-dense": 0.4,
    "small-dense-start": 0.3,
    "sparse-0.5": 0.55,
    "sparse-0.67": 0.5,
    "sparse-0.8": 0.4,
    "sparse-0.9": 0.3,
    "sparse-0.95": 0.2,
    "adam": 0.001,
    "momentum-sgd": 2.0,
    "dense-92": 0.3,
    "dense-158": 0.4,
    "dense-196": 0.5,
    "pareto-1500-sparse-0.9": 0.35,
    "pareto-512": 0.5,
    "pareto-272": 0.3,
    "pareto-1500-sparse-0.8": 0.45,
}
"""Value of every grid at scale ``small``. A test compares it with the results of the tuning."""


@dataclass(frozen=True)
class Grid:
    """Candidate values of one or several settings for one kind of start.

    Attributes:
        name: Name in :data:`CHOSEN` and in the tables.
        case: Network, method, optimizer and sparsity of the tuning runs.
        keys: Settings that take the value.
        values: Every candidate, in ascending order.
        first: Candidates that are trained first, neighbours in ``values``.
        start: Kind of start the choice is for (see :func:`start_of`); empty: chosen for an optimizer.
        stage: Stage of the campaign that trains the grid.
        usual: Value that the networks of the scale have anyway.
    """

    name: str
    case: Case
    keys: tuple[str, ...]
    values: tuple[float, ...]
    first: tuple[float, ...]
    start: str = ""
    stage: str = "tuning"
    usual: float | None = None

    def overrides(self, value: float) -> tuple[str, ...]:
        """Return the ``key=value`` overrides of a candidate, none for the usual value."""
        return () if value == self.usual else tuple(f"{key}={value:g}" for key in self.keys)

    def case_of(self, value: float) -> Case:
        """Return the case that trains a candidate."""
        return replace(self.case, changes=(*self.case.changes, *self.overrides(value)), untuned=True)

    def missing(self, perplexities: Mapping[float, float]) -> tuple[float, ...]:
        """Return the candidates to train next, given validation perplexities; none once the best is bracketed.

        >>> grid = Grid("x", Case("rhn"), ("model.dropout",), (0.1, 0.2, 0.3, 0.4), (0.2, 0.3))
        >>> grid.missing({0.2: 90.0, 0.3: 80.0})
        (0.4,)
        """
        if absent := tuple(value for value in self.first if value not in perplexities):
            return absent
        index = self.values.index(self.best(perplexities))
        neighbours = self.values[max(index - 1, 0) : index + 2]
        return tuple(value for value in neighbours if value not in perplexities)

    def best(self, perplexities: Mapping[float, float]) -> float:
        """Return the candidate with the lowest validation perplexity, the smaller of equals."""
        return min(perplexities, key=lambda value: (perplexities[value], value))


def _steps(first: float, last: float, step: float) -> tuple[float, ...]:
    """Return evenly spaced values, ends included."""
    return tuple(round(first + step * index, 4) for index in range(round((last - first) / step) + 1))


def _doublings(value: float, down: int, up: int) -> tuple[float, ...]:
    return tuple(value * 2.0**power for power in range(-down, up + 1))


_DROPOUT = ("model.dropout",)
_START = ("model.init_range",)
_IN_AND_OUT = ("model.dropout_input", "model.dropout_output")
_WIDE, _FINE, _COARSE = _steps(0.3, 0.85, 0.05), _steps(0.05, 0.8, 0.05), _steps(0.0, 0.8, 0.1)


def _dense(width: int | None = None) -> Case:
    widths = () if width is None else (f"model.embedding={width}", f"model.hidden={width}")
    return Case(LSTM, "dense", "nt-asgd", changes=widths)


def _dropout_of_static(sparsity: float, first: tuple[float, ...], values: tuple[float, ...] = _FINE) -> Grid:
    start = f"sparse-{sparsity:g}"
    return Grid(start, Case(LSTM, "static", sparsity=sparsity), _DROPOUT, values, first, start)


def _others(network: str, keys: tuple[str, ...], dense: tuple[float, ...], sparse: tuple[float, ...]) -> list[Grid]:
    """Return the pilots of another network: one dropout for inputs and outputs, for dense and for static."""
    cases = (Case(network, "dense", "nt-asgd"), dense, "dense"), (Case(network, "static"), sparse, "sparse")
    return [
        Grid(f"{network}-{start}", case, keys, _COARSE, first, start, stage="other-networks")
        for case, first, start in cases
    ]


LONG = "-long"
"""Suffix of a network that is trained for more epochs, with the same choices."""


def _pareto(case: Case, values: tuple[float, ...], first: tuple[float, ...], stage: str) -> Grid:
    """Return the grid of a network on the whole Penn Treebank, trained for few epochs."""
    few = replace(case, changes=("epochs=8", "optimizer.average_from=4"))
    start = "dense" if case.sparsity is None else f"sparse-{case.sparsity:g}"
    name = case.network if case.sparsity is None else f"{case.network}-{start}"
    return Grid(name, few, _DROPOUT, values, first, start, stage)


GRIDS: tuple[Grid, ...] = (
    Grid("dense", _dense(), _DROPOUT, _WIDE, (0.55, 0.6, 0.65, 0.7), "dense"),
    Grid("small-dense", Case(LSTM, "small-dense", "nt-asgd"), _DROPOUT, _COARSE, (0.3, 0.4, 0.5), "small-dense"),
    _dropout_of_static(0.5, (0.5, 0.55, 0.6)),
    _dropout_of_static(0.67, (0.45, 0.5, 0.55, 0.6)),
    _dropout_of_static(0.8, (0.35, 0.4, 0.45)),
    _dropout_of_static(0.9, (0.2, 0.3, 0.4), _COARSE),
    _dropout_of_static(0.95, (0.1, 0.2, 0.3), _COARSE),
    # The starting range is chosen with the dropout above, so its runs follow a change of that choice.
    Grid(
        "dense-start", replace(_dense(), changes=(f"model.dropout={CHOSEN['dense']:g}",)), _START, (0.1, 0.3),
        (0.1, 0.3), "dense", usual=0.3,
    ),
    Grid(
        "small-dense-start",
        Case(LSTM, "small-dense", "nt-asgd", changes=(f"model.dropout={CHOSEN['small-dense']:g}",)), _START,
        (0.1, 0.3), (0.1, 0.3), "small-dense", usual=0.3,
    ),
    Grid(
        "adam", Case(LSTM, "static", "adam", changes=(f"model.dropout={CHOSEN['sparse-0.67']:g}",)),
        ("optimizer.lr",), _doublings(0.001, 3, 4), (0.0005, 0.001, 0.002, 0.004),
    ),
    Grid(
        "momentum-sgd", Case(LSTM, "static", "momentum-sgd", changes=(f"model.dropout={CHOSEN['sparse-0.67']:g}",)),
        ("optimizer.lr",), _doublings(2.0, 4, 2), (0.5, 1.0, 2.0),
    ),
    Grid("dense-92", _dense(92), _DROPOUT, _COARSE, (0.2, 0.3, 0.4), "dense-92"),
    Grid("dense-158", _dense(158), _DROPOUT, _COARSE, (0.3, 0.4, 0.5), "dense-158"),
    Grid("dense-196", _dense(196), _DROPOUT, _COARSE, (0.4, 0.5, 0.6), "dense-196"),
    *_others(RHN, _IN_AND_OUT, (0.5, 0.6, 0.7), (0.4, 0.5, 0.6)),
    *_others(ON_LSTM, _IN_AND_OUT, (0.4, 0.5, 0.6), (0.3, 0.4, 0.5)),
    *_others(MOS, _IN_AND_OUT, (0.4, 0.5, 0.6), (0.3, 0.4, 0.5)),
    _pareto(Case("pareto-1500", "static", sparsity=0.9), _steps(0.05, 0.75, 0.1), (0.25, 0.35, 0.45), "pareto"),
    _pareto(Case("pareto-512", "dense", "nt-asgd"), _COARSE, (0.4, 0.5, 0.6), "pareto"),
    _pareto(Case("pareto-272", "dense", "nt-asgd"), _COARSE, (0.2, 0.3, 0.4), "pareto-more"),
    _pareto(Case("pareto-1500", "static", sparsity=0.8), _steps(0.05, 0.75, 0.1), (0.35, 0.45, 0.55), "pareto-more"),
)  # fmt: skip
"""Grids in the order in which they are trained."""


def start_of(case: Case) -> str:
    """Return the kind of start of a case: ``dense``, ``dense-92`` (another width), ``small-dense`` or ``sparse``."""
    method = CONFIGURABLE_METHODS.get(case.method)  # None: Selfish with another part, which starts sparse
    if case.method == "small-dense":
        return case.method
    if method is None or not method.allocation.dense:
        return "sparse"
    widths = [word.partition("=")[2] for word in case.changes if word.startswith("model.hidden=")]
    return "-".join(["dense", *widths])


def tuned_overrides(
    case: Case, sparsity: float, chosen: Mapping[str, float], grids: Sequence[Grid] = GRIDS
) -> list[str]:
    """Return the chosen settings of a case: those of its start, and of its optimizer.

    A sparse start takes the choice of the nearest sparsity that has one.

    Args:
        case: Case to train.
        sparsity: Sparsity of the preset, for a case without one.
        chosen: Value by name of the grid; grids without a value are left out.
        grids: Grids that name the settings.
    """
    network = case.network.removesuffix(LONG)
    grids = [grid for grid in grids if grid.name in chosen and grid.case.network == network]
    start = start_of(case)
    if start == "sparse":
        sparse = [grid for grid in grids if grid.start.startswith("sparse")]
        start = (
            min(sparse, key=lambda grid: abs((grid.case.sparsity or sparsity) - sparsity)).start if sparse else start
        )
    suitable = [grid for grid in grids if grid.start == start or (not grid.start and grid.name == case.optimizer)]
    return [word for grid in suitable for word in grid.overrides(chosen[grid.name])]
