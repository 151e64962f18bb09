"""Verdicts on the claims, from results."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from selfish_rnn.reproduce.case import Case
from selfish_rnn.reproduce.distances import pairs_of
from selfish_rnn.reproduce.paper import ITEMS
from selfish_rnn.reproduce.paper.claims import CLAIMS, Claim, Measured, Part
from selfish_rnn.reproduce.paper.comparisons import NOT_IN_PAPER
from selfish_rnn.reproduce.plan import PlannedRun
from selfish_rnn.reproduce.rendering.averaging import STALE, STALE_MEANING, averaging_of
from selfish_rnn.reproduce.rendering.tables import NONE, Findings, markdown
from selfish_rnn.reproduce.rendering.verdicts import FAILS, HOLDS, UNDECIDED, Evidence, overall
from selfish_rnn.reproduce.results import Result
from selfish_rnn.reproduce.scales import Scale


@dataclass(frozen=True)
class PartDecision:
    """Evidence for one comparison of a claim: the deciding number of every seed, and the margin of the claim."""

    part: Part
    values: Mapping[int, float]
    margin: float = 0.0
    stale: bool = False
    """True if a run it compares is scored on averages that start before pruning ends."""

    @property
    def evidence(self) -> Evidence:
        return Evidence(tuple(self.values.values()), self.margin)

    @property
    def label(self) -> str:
        return f"{self.part.label} {STALE}" if self.stale else self.part.label


@dataclass(frozen=True)
class Decision:
    """Outcome of a claim for one network: its parts in their order."""

    claim: Claim
    network: str
    parts: tuple[PartDecision, ...]

    @property
    def verdict(self) -> str:
        return overall([part.evidence.verdict for part in self.parts])

    @property
    def measured(self) -> bool:
        return any(part.values for part in self.parts)

    @property
    def title(self) -> str:
        return f"{self.claim.number}. {self.claim.text}"


def decisions(findings: Findings, claims: Sequence[Claim] = CLAIMS) -> list[Decision]:
    """Return every claim, with each network it is made of."""
    return [
        Decision(claim, network, tuple(_part(part.on(network), findings) for part in claim.parts))
        for claim in claims
        for network in claim.networks
    ]


def _part(part: Part, findings: Findings) -> PartDecision:
    """Return the deciding number of every seed that has all the runs the part needs."""
    values: dict[int, float] = {}
    margins: list[float] = []
    stale = False
    for seed in findings.seeds or findings.scale.seeds or _own_seeds(part.cases, findings):
        runs: dict[Case, Measured] = {}
        results: list[Result] = []
        for case in part.cases:
            result = findings.results.of(PlannedRun(findings.scale, case, seed))
            if result is not None:
                test = result.summary.get("test_perplexity", float("nan"))
                distance = _distance(case, seed, findings) if part.distances else None
                valid = result.summary.get("valid_perplexity", float("nan"))
                runs[case] = Measured(test, result.density, distance, valid)
                results.append(result)
        if len(runs) == len(part.cases) and not (part.distances and any(run.distance is None for run in runs.values())):
            values[seed] = part.statistic(runs)
            margins.append(part.margin(runs) if callable(part.margin) else part.margin)
            stale |= any(averaging_of(result).stale for result in results)
    return PartDecision(part, values, statistics.fmean(margins) if margins else 0.0, stale)


def _own_seeds(cases: Sequence[Case], findings: Findings) -> list[int]:
    """The seeds of finished runs of a network, for a scale that names none."""
    return sorted({result.seed for case in cases for result in findings.results.of_network(case.network)})


def _distance(case: Case, seed: int, findings: Findings) -> float | None:
    """The distance, at the end, between the run of a seed and that of the next."""
    for pair in pairs_of(ITEMS["distance-growth"], findings.scale, findings.seeds):
        if pair[0].case == case and pair[0].seed == seed and (records := findings.distances.of(pair)):
            return records[-1]["mean"]
    return None


def items_that_decide(claim: Claim, network: str, scale: Scale) -> list[str]:
    """Items that make all runs of a claim: those that make most of them, and of these the smaller, first."""
    left = {PlannedRun(scale, case, 1).name for part in claim.parts for case in part.on(network).cases}
    made = {
        name: {PlannedRun(scale, case, 1).name for case in item.cases if case.network in scale.networks}
        for name, item in ITEMS.items()
    }
    needed = []
    while left:
        best = max(
            made, key=lambda name: (len(made[name] & left), ITEMS[name].source != NOT_IN_PAPER, -len(made[name]))
        )
        needed.append(best)
        left -= made[best]
    return needed


def number(evidence: Evidence) -> str:
    """Return mean and 90 % interval of the evidence, the mean alone for one seed.

    >>> number(Evidence((1.0, 2.0, 3.0)))
    '+2 [+0.314, +3.69]'
    """
    if not evidence.values:
        return NONE
    low, high = evidence.interval
    return f"{evidence.mean:+.3g}" + (f" [{low:+.3g}, {high:+.3g}]" if math.isfinite(low) else "")


def _measured(part: PartDecision) -> str:
    """Return mean and interval of a part, and the threshold that takes the place of zero."""
    return number(part.evidence) + (f" (threshold {-part.margin:.2g})" if part.margin and part.values else "")


def claims_table(findings: Findings, first_rule: bool = False) -> str:
    """Return every measured claim with its numbers, and one line that names the others.

    With `first_rule` a column has the verdicts by the rule of the first edition.
    """
    rows = []
    for decision in decisions(findings):
        if not decision.measured:
            continue
        several = len(decision.parts) > 1
        for part in decision.parts:
            first = part is decision.parts[0]
            evidence = part.evidence
            seeds = ", ".join(f"{seed}: {value:+.3g}" for seed, value in part.values.items()) or NONE
            rows.append([
                decision.title if first else "",
                decision.network if first else "",
                part.label, _measured(part), seeds, evidence.conclusion,
                *([evidence.first_rule] if first_rule else []),
                _command(decision, findings) if first else "",
            ])  # fmt: skip
        if several:
            rows.append([
                "", "", "all of them", "", "", f"**{decision.verdict}**",
                *([f"**{_first_overall(decision)}**"] if first_rule else []), "",
            ])  # fmt: skip
    headings = [
        "claim", "network", "compared", "mean [90 % interval]", "seed: value", "verdict",
        *(["by the first rule"] if first_rule else []), "made by",
    ]  # fmt: skip
    return _with_missing(markdown(headings, rows, text=len(headings)) if rows else "", findings)


def _first_overall(decision: Decision) -> str:
    """Return the verdict on all parts by the rule of the first edition."""
    verdicts = {part.evidence.first_rule for part in decision.parts}
    return FAILS if FAILS in verdicts else HOLDS if verdicts == {HOLDS} else UNDECIDED


def short_table(findings: Findings) -> str:
    """Return one line for each measured claim, for the first network it is made of, and one that names the others."""
    rows = []
    for decision in main_decisions(findings):
        if decision.measured:
            numbers = [f"{part.label} {_measured(part)}" for part in decision.parts if part.values]
            command = _command(decision, findings)
            rows.append(
                [str(decision.claim.number), decision.claim.text, "; ".join(numbers), decision.verdict, command]
            )
    headings = ["", "claim of the paper", "mean [90 % interval]", "verdict", "made by"]
    return _with_missing(markdown(headings, rows, text=5) if rows else "", findings, commands=False)


def main_decisions(findings: Findings) -> list[Decision]:
    """Return the decision on every claim for the first network it is made of."""
    return [decision for decision in decisions(findings) if decision.network == decision.claim.networks[0]]


def _with_missing(table: str, findings: Findings, commands: bool = True) -> str:
    """Return a table, the meaning of its mark, and a line that names the claims without a run."""
    missing = [decision for decision in main_decisions(findings) if not decision.measured]
    lines = [table] if table else []
    if STALE in table:
        lines.append(f"{STALE} {STALE_MEANING}")
    if missing:
        names = "; ".join(
            f"{decision.title} ({_command(decision, findings)})" if commands else decision.title for decision in missing
        )
        lines.append(f"*Not run:* {names}.")
    return "\n\n".join(lines)


def _command(decision: Decision, findings: Findings) -> str:
    return f"`reproduce {' '.join(items_that_decide(decision.claim, decision.network, findings.scale))}`"
