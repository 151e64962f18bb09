"""Verdicts on claims: the rule, fixed before the runs, its statistics, and the tables of claims."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from selfish_rnn.reproduce.case import Case
from selfish_rnn.reproduce.paper import ITEMS
from selfish_rnn.reproduce.paper.claims import AT_LEAST, CLAIMS, Claim, Outcome, Part
from selfish_rnn.reproduce.paper.comparisons import NOT_IN_PAPER
from selfish_rnn.reproduce.plan import PlannedRun, pairs_of
from selfish_rnn.reproduce.rendering.tables import EMPTY, STALE, STALE_MEANING, ResultView, averaging_start, markdown
from selfish_rnn.reproduce.scales import Scale

LEAST_SEEDS = 3
"""Smallest number of paired seeds for a verdict, because the t distribution is too wide for fewer."""

MOST_SEEDS = 100
"""Largest number of seeds that is suggested to decide a claim."""

LEVEL = 0.05
"""Level of the one-sided test; the interval shown is the two-sided one of 1 - 2 * LEVEL."""

HOLDS, FAILS, INCONCLUSIVE, NOT_RUN = "holds", "does not hold", "inconclusive", "not run"

UNDECIDED = "undecided"
"""Verdict of the first edition's rule without a decision, missing runs included."""


@cache
def t_quantile(freedom: int, level: float = LEVEL) -> float:
    """Return the value that Student's t exceeds with probability `level`.

    >>> round(t_quantile(4), 2)
    2.13
    """
    low, high = 0.0, 1.0
    while _central_share(high, freedom) < 1 - 2 * level:
        high *= 2
    # Bisection, because the share is monotonic and 60 halvings reach the last digit of a float.
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _central_share(middle, freedom) < 1 - 2 * level else (low, middle)
    return (low + high) / 2


def _central_share(t: float, freedom: int) -> float:
    """Return the probability that |T| < t: the finite series for whole degrees of freedom (Abramowitz, Stegun 26.7)."""
    angle = math.atan(t / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term = total = cosine if odd else 1.0
    for factor in range(2 + odd, freedom - 1, 2):
        term *= cosine**2 * (factor - 1) / factor
        total += term
    if not odd:
        return sine * total
    return 2 / math.pi * (angle + (sine * total if freedom > 1 else 0.0))


RULE = (
    "A claim is a number that is above zero if the claim is true, measured once with every seed. It *holds* if the "
    f"mean is above zero by a paired one-sided t-test at {100 * LEVEL:g} % (by more than {t_quantile(4):.2f} standard "
    "errors with five seeds), and *does not hold* if the mean is below zero by the same test. It is *inconclusive* in "
    f'all other cases and with fewer than {LEAST_SEEDS} seeds, and *not run* without results. For claims of being "at '
    f"least as good\", a loss of {100 * AT_LEAST:g} % of the reference's perplexity takes the place of zero."
)


@dataclass(frozen=True)
class Evidence:
    """Statistic of one comparison, which is above zero if the claim is true, with one value per seed.

    >>> Evidence((1.0, 1.2, 0.9)).verdict
    'holds'
    >>> Evidence((0.3, -0.4, 0.2)).verdict
    'inconclusive'
    >>> Evidence((0.3, -0.4, 0.2), margin=0.8).verdict
    'holds'

    Attributes:
        values: Paired differences.
        margin: Tolerated distance of the mean below zero.
        seeds: Seeds of the values.
        part: Comparison that the values belong to.
        stale: True if a compared run is scored on averages that start before pruning ends.
    """

    values: tuple[float, ...]
    margin: float = 0.0
    seeds: tuple[int, ...] = ()
    part: Part | None = None
    stale: bool = False

    @property
    def label(self) -> str:
        """Description of the comparison, with the mark of stale averages."""
        label = self.part.label if self.part else ""
        return f"{label} {STALE}" if self.stale else label

    @property
    def unit(self) -> str:
        """Unit of the values."""
        return self.part.unit if self.part else ""

    @property
    def mean(self) -> float:
        """Mean over the seeds; NaN if there are none."""
        return statistics.fmean(self.values) if self.values else math.nan

    @property
    def standard_error(self) -> float:
        """s / √n, with s the standard deviation over the seeds; infinite for one seed."""
        count = len(self.values)
        return statistics.stdev(self.values) / math.sqrt(count) if count > 1 else math.inf

    @property
    def interval(self) -> tuple[float, float]:
        """Confidence interval of the mean, two-sided 90 %: its lower end is the bound of the one-sided test."""
        if len(self.values) < 2:
            return -math.inf, math.inf
        width = t_quantile(len(self.values) - 1) * self.standard_error
        return self.mean - width, self.mean + width

    @property
    def verdict(self) -> str:
        """Verdict by :data:`RULE`."""
        if not self.values:
            return NOT_RUN
        if len(self.values) < LEAST_SEEDS:
            return INCONCLUSIVE
        low, high = self.interval
        if low > -self.margin:
            return HOLDS
        return FAILS if high < -self.margin else INCONCLUSIVE

    @property
    def deciding_seeds(self) -> int | None:
        """Number of seeds that would decide the claim with this mean and spread; None beyond MOST_SEEDS."""
        if len(self.values) < 2:
            return LEAST_SEEDS
        spread, distance = statistics.stdev(self.values), abs(self.mean + self.margin)
        counts = range(LEAST_SEEDS, MOST_SEEDS + 1)
        return next((count for count in counts if distance > t_quantile(count - 1) * spread / math.sqrt(count)), None)

    @property
    def conclusion(self) -> str:
        """Verdict in words, for an inconclusive one with the number of seeds that would decide it."""
        if self.verdict != INCONCLUSIVE:
            return self.verdict
        count = self.deciding_seeds
        return f"{INCONCLUSIVE} ({f'{count} seeds' if count else f'more than {MOST_SEEDS} seeds'} to decide)"

    @property
    def first_rule(self) -> str:
        """Verdict by the first edition's rule: one side for all seeds, the mean 2 standard errors from zero."""
        same_sign = all(value > 0 for value in self.values) or all(value < 0 for value in self.values)
        if len(self.values) < LEAST_SEEDS or not same_sign or abs(self.mean) <= 2 * self.standard_error:
            return UNDECIDED
        return HOLDS if self.mean > 0 else FAILS


def overall(verdicts: Sequence[str]) -> str:
    """Return the verdict on a claim of several parts: it holds if all do, and does not hold if one does not.

    >>> overall(["holds", "not run"])
    'inconclusive'
    """
    if FAILS in verdicts:
        return FAILS
    if all(verdict == NOT_RUN for verdict in verdicts):
        return NOT_RUN
    return HOLDS if all(verdict == HOLDS for verdict in verdicts) else INCONCLUSIVE


@dataclass(frozen=True)
class Decision:
    """Outcome of a claim for one network: its parts in their order."""

    claim: Claim
    network: str
    parts: tuple[Evidence, ...]

    @property
    def verdict(self) -> str:
        """Verdict on all parts."""
        return overall([part.verdict for part in self.parts])

    @property
    def measured(self) -> bool:
        """True if a part has a value."""
        return any(part.values for part in self.parts)

    @property
    def title(self) -> str:
        """Number and text of the claim."""
        return f"{self.claim.number}. {self.claim.text}"


def decisions(view: ResultView, claims: Sequence[Claim] = CLAIMS) -> list[Decision]:
    """Return the decision on every claim for each of its networks."""
    return [
        Decision(claim, network, tuple(_evidence(part.on(network), view) for part in claim.parts))
        for claim in claims
        for network in claim.networks
    ]


def _evidence(part: Part, view: ResultView) -> Evidence:
    """Return the statistic of every seed that has all runs of a comparison."""
    values: dict[int, float] = {}
    margins: list[float] = []
    stale = False
    for seed in view.seeds or view.scale.seeds or _finished_seeds(part.cases, view):
        runs: dict[Case, Outcome] = {}
        starts = []
        for case in part.cases:
            result = view.results.get(PlannedRun(view.scale, case, seed))
            if result is not None:
                test = result.summary.get("test_perplexity", float("nan"))
                distance = _distance(case, seed, view) if part.distances else None
                valid = result.summary.get("valid_perplexity", float("nan"))
                runs[case] = Outcome(test, result.density, distance, valid)
                starts.append(averaging_start(result))
        if len(runs) == len(part.cases) and not (part.distances and any(run.distance is None for run in runs.values())):
            values[seed] = part.statistic(runs)
            margins.append(part.margin(runs) if callable(part.margin) else part.margin)
            stale |= any(is_stale for _, is_stale in starts)
    margin = statistics.fmean(margins) if margins else 0.0
    return Evidence(tuple(values.values()), margin, tuple(values), part, stale)


def _finished_seeds(cases: Sequence[Case], view: ResultView) -> list[int]:
    """Return the seeds of finished runs of a network, for a scale without seeds."""
    return sorted({result.seed for case in cases for result in view.results.of_network(case.network)})


def _distance(case: Case, seed: int, view: ResultView) -> float | None:
    """Return the final distance between the run of a seed and that of the next seed."""
    for pair in pairs_of(ITEMS["distance-growth"], view.scale, view.seeds):
        if pair[0].case == case and pair[0].seed == seed and (records := view.results.distances(pair)):
            return records[-1]["mean"]
    return None


def items_that_decide(claim: Claim, network: str, scale: Scale) -> list[str]:
    """Return items that contain all runs of a claim: those with most of them first, then the smaller ones."""
    missing = {PlannedRun(scale, case, 1).name for part in claim.parts for case in part.on(network).cases}
    runs_of = {
        name: {PlannedRun(scale, case, 1).name for case in item.cases if case.network in scale.networks}
        for name, item in ITEMS.items()
    }
    items = []
    while missing:
        best = max(
            runs_of,
            key=lambda name: (len(runs_of[name] & missing), ITEMS[name].source != NOT_IN_PAPER, -len(runs_of[name])),
        )
        items.append(best)
        missing -= runs_of[best]
    return items


def number(evidence: Evidence) -> str:
    """Return mean and 90 % interval of the evidence, the mean alone for one seed.

    >>> number(Evidence((1.0, 2.0, 3.0)))
    '+2 [+0.314, +3.69]'
    """
    if not evidence.values:
        return EMPTY
    low, high = evidence.interval
    return f"{evidence.mean:+.3g}" + (f" [{low:+.3g}, {high:+.3g}]" if math.isfinite(low) else "")


def _measured(part: Evidence) -> str:
    """Return mean and interval of a comparison, and the threshold that replaces zero."""
    return number(part) + (f" (threshold {-part.margin:.2g})" if part.margin and part.values else "")


def claims_table(view: ResultView, first_rule: bool = False) -> str:
    """Return every measured claim with its numbers, and one line that names the others.

    With `first_rule` a column has the verdicts by the rule of the first edition.
    """
    rows = []
    for decision in decisions(view):
        if not decision.measured:
            continue
        several = len(decision.parts) > 1
        for part in decision.parts:
            first = part is decision.parts[0]
            seeds = (
                ", ".join(f"{seed}: {value:+.3g}" for seed, value in zip(part.seeds, part.values, strict=True)) or EMPTY
            )
            rows.append([
                decision.title if first else "",
                decision.network if first else "",
                part.label, _measured(part), seeds, part.conclusion,
                *([part.first_rule] if first_rule else []),
                _command(decision, view) if first else "",
            ])  # fmt: skip
        if several:
            rows.append([
                "", "", "all of them", "", "", f"**{decision.verdict}**",
                *([f"**{_first_overall(decision)}**"] if first_rule else []), "",
            ])  # fmt: skip
    headings = [
        "claim", "network", "compared", "mean [90 % interval]", "seed: value", "verdict",
        *(["by the first rule"] if first_rule else []), "reproduced by",
    ]  # fmt: skip
    return _with_missing(markdown(headings, rows, text=len(headings)) if rows else "", view)


def _first_overall(decision: Decision) -> str:
    """Return the verdict on all parts by the rule of the first edition."""
    verdicts = {part.first_rule for part in decision.parts}
    return FAILS if FAILS in verdicts else HOLDS if verdicts == {HOLDS} else UNDECIDED


def short_table(view: ResultView) -> str:
    """Return one line for each measured claim on its main network, and one line that names the others."""
    rows = []
    for decision in main_decisions(view):
        if decision.measured:
            numbers = [f"{part.label} {_measured(part)}" for part in decision.parts if part.values]
            command = _command(decision, view)
            rows.append(
                [str(decision.claim.number), decision.claim.text, "; ".join(numbers), decision.verdict, command]
            )
    headings = ["", "claim of the paper", "mean [90 % interval]", "verdict", "reproduced by"]
    return _with_missing(markdown(headings, rows, text=5) if rows else "", view, commands=False)


def main_decisions(view: ResultView) -> list[Decision]:
    """Return the decision on every claim for its main network."""
    return [decision for decision in decisions(view) if decision.network == decision.claim.networks[0]]


def _with_missing(table: str, view: ResultView, commands: bool = True) -> str:
    """Return a table, the meaning of its mark, and a line that names the claims without a run."""
    missing = [decision for decision in main_decisions(view) if not decision.measured]
    lines = [table] if table else []
    if STALE in table:
        lines.append(f"{STALE} {STALE_MEANING}")
    if missing:
        names = "; ".join(
            f"{decision.title} ({_command(decision, view)})" if commands else decision.title for decision in missing
        )
        lines.append(f"*Not run:* {names}.")
    return "\n\n".join(lines)


def _command(decision: Decision, view: ResultView) -> str:
    return f"`reproduce {' '.join(items_that_decide(decision.claim, decision.network, view.scale))}`"
