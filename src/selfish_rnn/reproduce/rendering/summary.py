"""Sentences on what sparsity gains and costs, written from the points of the figures and from the verdicts."""

from __future__ import annotations

from collections import Counter

from selfish_rnn.reproduce.rendering.decisions import main_decisions
from selfish_rnn.reproduce.rendering.published import Points, sparsity_points
from selfish_rnn.reproduce.rendering.tables import Findings
from selfish_rnn.reproduce.rendering.verdicts import FAILS, HOLDS, INCONCLUSIVE, NOT_RUN

AT = 0.9
"""Sparsity that the sentences on speed and memory speak of."""


def summary(findings: Findings) -> str:
    """Return a list of sentences on speed, memory, quality and verdicts."""
    lines = {line["label"]: line for panel in sparsity_points(findings).get("panels", []) for line in panel["lines"]}
    sentences = [*_speed(lines), *_memory(lines), _quality(lines, findings), _verdicts(findings)]
    return "\n".join(f"- {sentence}" for sentence in sentences)


def _values(lines: dict[str, Points], *labels: str) -> list[float]:
    """Return the values of lines at AT, an empty list if one of them was not measured there."""
    values = [dict(zip(lines[label]["sparsities"], lines[label]["values"], strict=True)).get(AT)
              for label in labels if label in lines]  # fmt: skip
    numbers = [value for value in values if value is not None]
    return numbers if len(numbers) == len(labels) else []


def _speed(lines: dict[str, Points]) -> list[str]:
    values = _values(lines, "training step", "next word, float32", "next word, int8 over dense int8")
    if not values:
        return []
    step, word, int8 = values
    return [
        f"**Speed.** At sparsity {AT:g} a training step is {step:.2g} times as fast as dense torch on a CPU, and the "
        f"next word {word:.2g} times in float32 and {int8:.2g} times in int8 over the fastest dense int8 (LSTM of 1500 "
        "units)."
    ]


def _memory(lines: dict[str, Points]) -> list[str]:
    values = _values(lines, "training", "int8 weights")
    if not values:
        return []
    training, weights = values
    return [
        f"**Memory.** Training it takes {100 * training:.0f} % of the dense network's memory, and its int8 weights "
        f"take {100 * weights:.0f} % of the dense ones' bytes."
    ]


def _quality(lines: dict[str, Points], findings: Findings) -> str:
    about = "**Quality.** Test perplexity of Selfish relative to the dense network"
    if "Selfish" not in lines:
        return f"{about} is not known yet at scale `{findings.scale.name}`: no run is finished."
    line = lines["Selfish"]
    points = zip(line["sparsities"], line["values"], strict=True)
    changes = ", ".join(f"{100 * (value - 1):+.1f} % at sparsity {sparsity:g}" for sparsity, value in points)
    return f"{about} (256 units, means over common seeds): {changes}."


def _verdicts(findings: Findings) -> str:
    outcomes = main_decisions(findings)
    counts = Counter(decision.verdict for decision in outcomes)
    words = {HOLDS: "hold", FAILS: "do not hold", INCONCLUSIVE: "are inconclusive", NOT_RUN: "are not run"}
    return (
        f"**Claims.** Of {len(outcomes)} claims of the paper {', '.join(f'{counts[v]} {w}' for v, w in words.items())}."
    )
