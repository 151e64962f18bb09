"""The paper's claims as data: the runs that decide them, and statistics that are above zero if they are true."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from selfish_rnn.reproduce.case import Case
from selfish_rnn.reproduce.paper.figures import PRUNE_RATES, SLOW, SPARSITIES
from selfish_rnn.reproduce.paper.tables import LSTM

HARDLY = 0.02
"""A result hardly depends on a setting if the worst value is within this fraction of the best."""

FAR = 0.5
"""Two topologies are far apart if more than this fraction of their weights differs (about 0.8 in the paper)."""

AT_LEAST = 0.01
"""A network is at least as good as another if it loses less than this fraction of the other's perplexity."""

PERPLEXITY, FRACTION = "difference of test perplexity", "difference of fractions"
"""Units of the deciding numbers."""

Statistic = Callable[[Mapping[Case, "Outcome"]], float]


@dataclass(frozen=True)
class Outcome:
    """Numbers of one run that claims use: perplexities, densities of gates, and distance to the next seed."""

    test: float
    density: Mapping[str, Mapping[str, float]]
    distance: float | None = None
    valid: float = math.nan


@dataclass(frozen=True)
class Part:
    """Comparison of runs.

    Attributes:
        label: Description.
        cases: Cases whose runs are compared.
        statistic: Number that is above zero if the claim is true, computed for every seed.
        distances: True if the statistic uses distances between topologies.
        margin: Tolerated distance below zero.
        unit: Unit of the statistic.
    """

    label: str
    cases: tuple[Case, ...]
    statistic: Statistic
    distances: bool = False
    margin: Statistic | float = 0.0
    unit: str = PERPLEXITY

    def on(self, network: str) -> Part:
        """Return the same comparison with another network."""
        cases = tuple(replace(case, network=network) for case in self.cases)
        names = dict(zip(cases, self.cases, strict=True))

        def translated(statistic: Statistic) -> Statistic:
            return lambda runs: statistic({names[case]: run for case, run in runs.items()})

        margin = translated(self.margin) if callable(self.margin) else self.margin
        return replace(self, cases=cases, statistic=translated(self.statistic), margin=margin)


@dataclass(frozen=True)
class Claim:
    """Claim of the paper with its comparisons, and the networks that it is checked on, the main one first."""

    number: int
    text: str
    parts: tuple[Part, ...]
    networks: tuple[str, ...] = (LSTM, "rhn", "on-lstm", "awd-lstm-mos")


def _better(label: str, good: Case, bad: Case) -> Part:
    """Return the comparison of test perplexities: that of ``bad`` less that of ``good``."""
    return Part(label, (good, bad), lambda runs: runs[bad].test - runs[good].test)


def _at_least(label: str, good: Case, bad: Case) -> Part:
    """Return the comparison of :func:`_better` with a margin of one percent of the perplexity of ``bad``."""
    return replace(_better(label, good, bad), margin=lambda runs: AT_LEAST * runs[bad].test)


def _case(method: str = "selfish", optimizer: str = "snt-asgd", **fields: object) -> Case:
    return Case(LSTM, method, optimizer, **fields)  # type: ignore[arg-type]


SELFISH, DENSE = _case(), _case("dense", "nt-asgd")
_RATES = tuple(_case(changes=(f"prune_rate={rate:g}",)) for rate in PRUNE_RATES)
_DENSE_ENOUGH = tuple(_case(sparsity=sparsity) for sparsity in SPARSITIES if 0.25 <= round(1 - sparsity, 2) <= 0.5)
_RANDOM, _GRADIENT = _case(changes=SLOW), _case("gradient-growth", changes=SLOW)


def _forget_gates(runs: Mapping[Case, Outcome]) -> float:
    """Return the mean density of the other gates less that of the forget gates, over the matrices that have them."""
    gaps = []
    for gates in runs[SELFISH].density.values():
        forget = [density for gate, density in gates.items() if "forget" in gate]
        others = [density for gate, density in gates.items() if "forget" not in gate and gate != "all"]
        if forget and others:
            gaps.append(sum(others) / len(others) - sum(forget) / len(forget))
    return sum(gaps) / len(gaps)


def _best_of_enough(runs: Mapping[Case, Outcome]) -> float:
    """Return the test perplexity of dense less that of the sparsity with the lowest validation perplexity."""
    best = min(_DENSE_ENOUGH, key=lambda case: runs[case].valid)
    return runs[DENSE].test - runs[best].test


def _spread(runs: Mapping[Case, Outcome]) -> float:
    tests = [runs[case].test for case in _RATES]
    return HARDLY - (max(tests) - min(tests)) / min(tests)


def _distance(runs: Mapping[Case, Outcome], case: Case) -> float:
    distance = runs[case].distance
    assert distance is not None, "statistics of distances need measured distances"
    return distance


CLAIMS = (
    Claim(1, "Selfish with SNT-ASGD is at least as good as dense", (_at_least("against dense", SELFISH, DENSE),)),
    Claim(2, "It beats static sparse training", (_better("against static", SELFISH, _case("static")),), (LSTM, "rhn")),
    Claim(
        3,
        "It beats SET, RigL, SNFS and GMP",
        tuple(
            _better(f"against {label}", SELFISH, _case(method))
            for method, label in (("set", "SET"), ("rigl", "RigL"), ("snfs", "SNFS"), ("gmp", "GMP"))
        ),
        (LSTM,),
    ),
    Claim(
        4,
        "SNT-ASGD is better than Adam for every method",
        tuple(
            _better(label, _case(method), _case(method, "adam"))
            for method, label in (
                ("selfish", "Selfish"), ("set", "SET"), ("dsr", "DSR"), ("snfs", "SNFS"), ("rigl", "RigL"),
            )
        ),
        (LSTM,),
    ),
    Claim(
        5,
        "Plain NT-ASGD hurts sparse training",
        (
            _better(
                "SNT-ASGD against NT-ASGD, from one start to the end",
                _case(average="snt-start"),
                _case(average="nt-start"),
            ),
        ),
    ),
    Claim(
        6,
        "Gate redistribution helps",
        (_better("with against without", SELFISH, _case("no-gate-redistribution")),),
        (LSTM, "rhn", "on-lstm", "awd-lstm-mos"),
    ),
    Claim(
        7,
        "Random growth is at least as good as growth by gradient",
        (_at_least("random against gradient", SELFISH, _case("gradient-growth")),),
        (LSTM,),
    ),
    Claim(
        8,
        "A uniform start is better than an Erdős-Rényi one",
        # An Erdős-Rényi start of the stacked LSTM is nearly uniform, so only the RHN can decide.
        (_better("static uniform against static ER", _case("static"), _case("static-er")),),
        ("rhn",),
    ),
    Claim(
        9,
        "Forget gates end sparser than the others",
        (Part("density of the others less theirs", (SELFISH,), _forget_gates, unit=FRACTION),),
        (LSTM, "on-lstm", "awd-lstm-mos"),
    ),
    Claim(
        10,
        "Runs end far apart in topology, with gradient growth closer",
        (
            Part(f"distance less {FAR:g}", (_RANDOM,), lambda runs: _distance(runs, _RANDOM) - FAR, distances=True,
                 unit=FRACTION),
            Part(
                "random less gradient",
                (_RANDOM, _GRADIENT),
                lambda runs: _distance(runs, _RANDOM) - _distance(runs, _GRADIENT),
                distances=True,
                unit=FRACTION,
            ),
        ),
        (LSTM,),
    ),
    Claim(
        11,
        "A quarter to a half of the weights reaches dense quality",
        (
            Part(
                "dense less the best of them by validation",
                (DENSE, *_DENSE_ENOUGH),
                _best_of_enough,
                margin=lambda runs: AT_LEAST * runs[DENSE].test,
            ),
        ),
    ),
    Claim(
        12,
        "Results hardly depend on the prune rate",
        (Part(f"{100 * HARDLY:g} % less the range over the best", _RATES, _spread, unit=FRACTION),),
    ),
)  # fmt: skip
"""Claims in paper order, stated for the stacked LSTM and checked on other networks."""
