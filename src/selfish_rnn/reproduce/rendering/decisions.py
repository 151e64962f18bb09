"""The verdict on every claim, from results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from selfish_rnn.reproduce.case import Case
from selfish_rnn.reproduce.distances import pairs_of
from selfish_rnn.reproduce.paper import ITEMS
from selfish_rnn.reproduce.paper.claims import CLAIMS, Claim, Measured, Part
from selfish_rnn.reproduce.plan import PlannedRun
from selfish_rnn.reproduce.rendering.tables import NONE, Findings, markdown
from selfish_rnn.reproduce.rendering.verdicts import LEAST_SEEDS, UNDECIDED, Evidence, overall
from selfish_rnn.reproduce.scales import Scale


@dataclass(frozen=True)
class Decision:
    """What a claim came to with one network: the evidence for each part, in their order."""

    claim: Claim
    network: str
    parts: tuple[tuple[Part, Mapping[int, float]], ...]

    @property
    def verdict(self) -> str:
        return overall([_verdict(values) for _, values in self.parts])

    @property
    def measured(self) -> bool:
        return any(values for _, values in self.parts)


def decisions(findings: Findings, claims: Sequence[Claim] = CLAIMS) -> list[Decision]:
    """Every claim, with each network it is made of."""
    return [
        Decision(claim, network, tuple((part, _values(part.on(network), findings)) for part in claim.parts))
        for claim in claims
        for network in claim.networks
    ]


def _values(part: Part, findings: Findings) -> dict[int, float]:
    """The deciding number with every seed that has all the runs it needs."""
    values = {}
    for seed in findings.seeds or findings.scale.seeds or _own_seeds(part.cases, findings):
        runs: dict[Case, Measured] = {}
        for case in part.cases:
            result = findings.results.of(PlannedRun(findings.scale, case, seed))
            if result is not None:
                test = result.summary.get("test_perplexity", float("nan"))
                runs[case] = Measured(test, result.density, _distance(case, seed, findings) if part.distances else None)
        if len(runs) == len(part.cases) and not (part.distances and any(run.distance is None for run in runs.values())):
            values[seed] = part.statistic(runs)
    return values


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
    made = {name: {PlannedRun(scale, case, 1).name for case in item.cases} for name, item in ITEMS.items()}
    needed = []
    while left:
        best = max(made, key=lambda name: (len(made[name] & left), -len(made[name])))
        needed.append(best)
        left -= made[best]
    return needed


def _verdict(values: Mapping[int, float]) -> str:
    return Evidence(tuple(values.values())).verdict if values else UNDECIDED


def _number(values: Mapping[int, float]) -> str:
    if not values:
        return NONE
    evidence = Evidence(tuple(values.values()))
    mean = f"{evidence.mean:+.3g}"
    return f"{mean} ± {evidence.standard_error:.2g}" if len(values) > 1 else mean


def claims_table(findings: Findings) -> str:
    """Every claim with its numbers; networks of which nothing is measured are left out, except the first."""
    rows = []
    for decision in decisions(findings):
        if not decision.measured and decision.network != decision.claim.networks[0]:
            continue
        for index, (part, values) in enumerate(decision.parts):
            first = index == 0
            several = len(decision.parts) > 1
            seeds = ", ".join(f"{seed}: {value:+.3g}" for seed, value in values.items()) or NONE
            verdict = _verdict(values) if several else decision.verdict
            rows.append([
                f"{decision.claim.number}. {decision.claim.text}" if first else "",
                decision.network if first else "",
                part.label, _number(values), seeds, verdict,
                _command(decision, findings) if first else "",
            ])  # fmt: skip
        if len(decision.parts) > 1:
            rows.append(["", "", "all of them", "", "", f"**{decision.verdict}**", ""])
    headings = ["claim", "network", "compared", "mean ± standard error", "seed: value", "verdict", "made by"]
    return markdown(headings, rows, text=len(headings))


def short_table(findings: Findings) -> str:
    """One line a claim, for the first network it is made of."""
    rows = []
    for decision in decisions(findings):
        if decision.network != decision.claim.networks[0]:
            continue
        numbers = [f"{part.label} {_number(values)}" for part, values in decision.parts if values]
        seeds = [len(values) for _, values in decision.parts]
        verdict = decision.verdict
        if verdict == UNDECIDED and min(seeds) < LEAST_SEEDS:
            verdict = f"{UNDECIDED} ({min(seeds)} of {LEAST_SEEDS} seeds)"
        command = _command(decision, findings)
        rows.append([str(decision.claim.number), decision.claim.text, "; ".join(numbers) or NONE, verdict, command])
    return markdown(["", "claim of the paper", "mean ± standard error over seeds", "verdict", "made by"], rows, text=5)


def _command(decision: Decision, findings: Findings) -> str:
    return f"`reproduce {' '.join(items_that_decide(decision.claim, decision.network, findings.scale))}`"
