"""Sections of a report: gates, curves and tables of runs."""

from __future__ import annotations

import base64
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from selfish_rnn.analysis.networks import gate_name, short_names, with_gates
from selfish_rnn.analysis.records import RunRecord
from selfish_rnn.analysis.report.comparison import ASIDE, Comparison, Group, command_of, differing
from selfish_rnn.analysis.report.markup import NOTHING, Cell, Markup, duration, number, table, tag, together
from selfish_rnn.analysis.topologies import degree_shares, density_map
from selfish_rnn.analysis.training_flops import TrainingFlops, run_flops
from selfish_rnn.experiment.comparison import flat
from selfish_rnn.runs.run import Run
from selfish_rnn.text import spread
from selfish_rnn.topology import Topology
from selfish_rnn.topology.gates import WHOLE
from selfish_rnn.training.records import Densities, EpochRecord

POINTS = 40
"""Most points of a small curve."""


def gates(groups: Sequence[Group], swatch: Colour) -> Markup | None:
    """A table for each matrix with gates; nothing if there is none."""
    names = list(dict.fromkeys(name for group in groups for name in with_gates(_last(group))))
    if not names:
        return None
    about = tag(
        "p",
        "Density of every gate at the end, averaged over seeds, with its course since the first epoch. ",
        tag("span", "denser", class_="denser"),
        " or ",
        tag("span", "sparser", class_="sparser"),
        " than the whole matrix.",
    )
    tables = [_matrix(name, short, groups, swatch) for name, short in zip(names, short_names(names), strict=True)]
    return section("gates", "Gates", about, tag("div", *tables, class_="matrices"))


def _last(group: Group) -> Densities:
    """The densities at the end of a group's first run."""
    return group.runs[0].epochs[-1].density


def _matrix(name: str, short: str, groups: Sequence[Group], swatch: Colour) -> Markup:
    having = [group for group in groups if name in _last(group)]
    kinds = list(dict.fromkeys(gate for group in having for gate in _last(group)[name] if gate != WHOLE))
    rows = [
        [together(swatch(group), group.label), *(_density(group, name, gate) for gate in kinds)] for group in having
    ]
    caption = short if short == name else f"{short} ({name})"
    return table(["setting", *(gate_name(gate) for gate in kinds)], rows, caption=caption)


def _density(group: Group, name: str, gate: str) -> Cell:
    if gate not in _last(group)[name]:  # of another cell
        return Cell(NOTHING)
    ends = [run.epochs[-1].density[name] for run in group.runs if gate in run.epochs[-1].density.get(name, {})]
    density = statistics.fmean(end[gate] for end in ends)
    whole = statistics.fmean(end[WHOLE] for end in ends)
    course = [epoch.density[name][gate] for epoch in group.runs[0].epochs]
    # How far from the whole matrix, half of it being as far as the colour goes.
    strength = min(1.0, abs(density - whole) / (0.5 * whole)) if whole else 0.0
    content = tag(
        "span",
        f"{density:.3f}",
        _sparkline(course, whole),
        class_="gate " + ("denser" if density > whole else "sparser"),
        style=f"--strength:{45 * strength:.0f}%",
    )
    return Cell(content, density)


def _sparkline(course: Sequence[float], whole: float) -> Markup:
    """From 40 % to 160 % of the density of the whole matrix, which is the line through the middle."""
    step = max(1, -(-len(course) // POINTS))
    shown = [*course[:-1:step], course[-1]]
    points = " ".join(
        f"{60 * index / max(1, len(shown) - 1):.1f},{_height(value / whole if whole else 1.0):.1f}"
        for index, value in enumerate(shown)
    )
    inner = together(tag("line", x1=0, x2=60, y1=8, y2=8), tag("polyline", points=points))
    return tag("svg", inner, viewBox="-1 -1 62 18", class_="spark", aria_hidden="true")


def _height(times: float) -> float:
    return 16 * min(1.0, max(0.0, (1.6 - times) / 1.2))


MEASURES: dict[str, tuple[str, bool, Callable[[EpochRecord], float]]] = {
    "valid": ("validation perplexity", True, lambda epoch: epoch.valid_perplexity),
    "train": ("training perplexity", True, lambda epoch: epoch.train_perplexity),
    "above": ("share of weights above 0.1", False, lambda epoch: _share_above(epoch)),
    "sparsity": ("sparsity", False, lambda epoch: epoch.sparsity),
    "prune": ("prune rate", False, lambda epoch: epoch.prune_rate),
    "rate": ("learning rate", False, lambda epoch: epoch.learning_rate),
}
"""What can be followed over the epochs: its name, whether its axis is logarithmic, and how an epoch tells of it."""

BINS = 24
"""Places of a density map along each side, and about as many bins of a distribution."""


def series(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """Every run with its series, and the groups they belong to."""
    groups = [group for comparison in comparisons for group in comparison.groups]
    runs = [(number, run) for number, group in enumerate(groups) for run in group.runs]
    return {
        "measures": [{"key": key, "label": label, "log": log} for key, (label, log, _) in MEASURES.items()],
        "groups": [group.label for group in groups],
        "runs": [
            {
                "name": run.name,
                "group": number,
                "epoch": [epoch.epoch for epoch in run.epochs],
                "minutes": [_number(epoch.seconds / 60) for epoch in run.epochs],
                "averaging": run.averaging_starts,
                "restarts": run.restarts,
                **{key: [_number(of(epoch)) for epoch in run.epochs] for key, (_, _, of) in MEASURES.items()},
            }
            for number, run in runs
        ],
    }


def topology_pictures(record: RunRecord, topologies: Mapping[str, Topology]) -> dict[str, Any]:
    """Of each matrix a density map of every gate as bytes, and how many weights its units have."""
    return {
        "run": record.name,
        "matrices": [
            {
                "name": name,
                "short": short,
                "gates": [_map(topology, gate) for gate in topology.gates.names],
                "received": _degrees(topology, sent=False),
                "sent": _degrees(topology, sent=True),
            }
            for (name, topology), short in zip(topologies.items(), short_names(list(topologies)), strict=True)
        ],
    }


def _map(topology: Topology, gate: str) -> dict[str, Any]:
    found = density_map(topology, gate, BINS)
    pixels = np.round(255 * found).astype(np.uint8)
    return {
        "name": gate_name(gate),
        "rows": pixels.shape[0],
        "columns": pixels.shape[1],
        "pixels": base64.b64encode(pixels.tobytes()).decode(),
    }


def _degrees(topology: Topology, *, sent: bool) -> dict[str, Any]:
    shares = degree_shares(topology, sent=sent, bins=BINS)
    return {
        "from": float(shares.edges[0]),
        "step": float(shares.edges[1] - shares.edges[0]),
        "gates": [_rounded(found) for found in shares.gates.values()],
        "random": _rounded(shares.random),
    }


def _share_above(epoch: EpochRecord) -> float:
    return sum(epoch.weights_above.values()) / epoch.active_weights if epoch.active_weights else math.nan


def _rounded(values: Any) -> list[float]:
    return [round(float(value), 4) for value in values]


def _number(value: float) -> float | None:
    """Six digits are more than a screen shows; JSON knows neither NaN nor infinity."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


Colour = Callable[[Group], Markup]


def section(identity: str, title: str, *children: object) -> Markup:
    return tag("section", tag("h2", title), *children, id=identity)


def outcomes(comparisons: Sequence[Comparison], swatch: Colour) -> Markup:
    """Who won and by how much."""
    parts: list[object] = []
    for comparison in comparisons:
        if len(comparisons) > 1:
            parts.append(tag("h3", f"On {comparison.corpus}"))
        parts.append(tag("p", comparison.verdict(), class_="verdict"))
        parts.append(_ranking(comparison, swatch))
    if len(comparisons) > 1:
        parts.insert(
            0, tag("p", "The runs are of different texts, and perplexities are compared on the same text only.")
        )
    parts.extend(tag("p", note, class_="note") for note in notes(comparisons))
    return section("outcome", "Outcome", *parts)


def _ranking(comparison: Comparison, swatch: Colour) -> Markup:
    ranked = comparison.ranked
    everything = [perplexity for group in ranked for perplexity in group.perplexities]
    rows = []
    for group in comparison.groups:
        shared = group.differences(ranked[0]) if ranked and group is not ranked[0] else []
        worse = f"{sum(value > 0 for value in shared)} of {len(shared)} seeds" if shared else NOTHING
        best = ranked[0].mean if ranked else None
        rows.append(
            [
                together(swatch(group), group.label),
                Cell(spread(group.perplexities, none=NOTHING), group.mean),
                Cell(len(group.perplexities), len(group.perplexities)),
                _strip(group.perplexities, everything) if group.perplexities else "not finished",
                number(None if group.mean is None or best is None else group.mean - best),
                worse,
                number(statistics.fmean(run.valid_perplexity for run in group.runs)),
            ]
        )
    headings = ["setting", "test perplexity", "seeds", "each seed", "above the best", "worse on", "validation"]
    return table(headings, rows, caption="Test perplexity: mean ± standard deviation over seeds; lower is better.")


def _strip(values: Sequence[float], everything: Sequence[float]) -> Markup:
    """The perplexity of each seed as a dot and their mean as a line, on a scale all rows of a table share."""
    low, high = min(everything), max(everything)

    def place(value: float) -> str:
        return f"{8 + 124 * (value - low) / (high - low or 1):.1f}"

    mean = place(statistics.fmean(values))
    dots = [tag("circle", tag("title", f"{value:.2f}"), cx=place(value), cy=9, r=4) for value in values]
    inner = together(
        tag("line", x1=8, x2=132, y1=9, y2=9, class_="rail"),
        *dots,
        tag("line", x1=mean, x2=mean, y1=1, y2=17, class_="mean"),
    )
    label = ", ".join(f"{value:.2f}" for value in values)
    return tag("svg", inner, viewBox="0 0 140 18", class_="strip", role="img", aria_label=label)


def notes(comparisons: Sequence[Comparison]) -> list[str]:
    """What a reader should know before believing the table."""
    runs = [run for comparison in comparisons for group in comparison.groups for run in group.runs]
    found = []
    unfinished = [run for run in runs if not run.finished]
    if unfinished:
        told = ", ".join(
            f"{run.name} (epoch {run.epochs[-1].epoch} of {run.settings.get('epochs')})" for run in unfinished
        )
        found.append(f"Not finished, and left out of the ranking: {told}.")
    averaged = [run for run in runs if "asgd" in run.optimizer]
    never = [run for run in averaged if not run.averaging_starts]
    if never and len(never) < len(averaged):
        names = ", ".join(run.name for run in never)
        found.append(f"Averaging never started in {names}; in the other {len(averaged) - len(never)} runs it did.")
    last = [run for run in runs if run.summary and run.summary.get("best_epoch") == run.epochs[-1].epoch]
    if last:
        what = "Every run was" if len(last) == len(runs) else f"{len(last)} of {len(runs)} runs were"
        found.append(f"{what} still getting better in the last epoch; longer runs may rank otherwise.")
    return found


def settings(groups: Sequence[Group], swatch: Colour) -> Markup:
    """What differs between the groups, and what does not."""
    flattened = [flat(group.runs[0].settings) for group in groups]
    keys = [key for key in differing(flattened) if key not in ASIDE]
    rows = [
        [together(swatch(group), group.label), *(_value(one.get(key)) for key in keys)]
        for group, one in zip(groups, flattened, strict=True)
    ]
    same = [[tag("code", key), _value(value)] for key, value in flattened[0].items() if key not in (*keys, *ASIDE)]
    told: Markup = tag("p", "Nothing differs but the seeds.")
    if keys:
        told = table(["setting", *keys], rows, caption="Settings that are not the same everywhere.")
    common = table(["name", "value"], same, caption="Settings of every run.", sortable=False)
    rest = tag("details", tag("summary", f"{len(same)} settings are the same in every run"), common)
    return section("settings", "What differs", told, rest)


def _value(value: Any) -> str:
    return "none" if value is None else str(value)


def runs(groups: Sequence[Group], swatch: Colour) -> Markup:
    """Every run in a table."""
    rows = []
    for group in groups:
        for run in group.runs:
            summary: Mapping[str, Any] = run.summary or {}
            starts = run.averaging_starts
            rows.append(
                [
                    run.name,
                    together(swatch(group), group.label),
                    Cell(NOTHING if run.seed is None else run.seed, run.seed),
                    number(run.test_perplexity),
                    number(run.valid_perplexity),
                    number(summary.get("best_epoch"), 0),
                    Cell(run.epochs[-1].epoch, run.epochs[-1].epoch),
                    Cell(starts[0], starts[0]) if starts else Cell(NOTHING),
                    duration(run.seconds),
                    number(summary.get("peak_memory_mib"), 0),
                    Cell(f"{run.epochs[-1].active_weights:,}", run.epochs[-1].active_weights),
                ]
            )
    headings = ["run", "setting", "seed", "test", "validation", "best epoch", "epochs", "averaging from", "time",
                "memory (MiB)", "weights"]  # fmt: skip
    return section("runs", "Runs", table(headings, rows, caption="Every run; a click on a heading sorts."))


def costs(groups: Sequence[Group], swatch: Colour) -> Markup:
    """Time, memory, weights and, where they are known, operations."""
    rows = []
    counted = [_flops(group.runs[0]) for group in groups]
    for group, found in zip(groups, counted, strict=True):
        memories = [
            run.summary["peak_memory_mib"] for run in group.runs if run.summary and "peak_memory_mib" in run.summary
        ]
        last = group.runs[0].epochs[-1]
        row: list[object] = [
            together(swatch(group), group.label),
            duration(statistics.fmean(run.seconds for run in group.runs)),
            number(statistics.fmean(run.seconds / len(run.epochs) for run in group.runs), 1, " s"),
            number(statistics.fmean(memories) if memories else None, 0),
            Cell(f"{last.active_weights:,}", last.active_weights),
            number(last.sparsity, 3),
        ]
        if any(counted):
            row += _flops_cells(found)
        rows.append(row)
    headings = ["setting", "time", "per epoch", "memory (MiB)", "weights", "sparsity"]
    if any(counted):
        headings += ["training FLOPs", "of dense", "inference FLOPs", "of dense"]
    caption = "Means over seeds. Times hold for the machine of the run and what else it was doing."
    return section("costs", "Time, memory and size", table(headings, rows, caption=caption))


def _flops(record: RunRecord) -> TrainingFlops | None:
    """What a run took, if its folder tells."""
    if record.path is None:
        return None
    try:
        return run_flops(Run.open(record.path))
    except ValueError:
        return None


def _flops_cells(found: TrainingFlops | None) -> list[Cell]:
    if found is None:
        return [Cell(NOTHING)] * 4
    pairs = ((found.training, found.training_ratio), (found.inference, found.inference_ratio))
    return [cell for own, ratio in pairs for cell in (Cell(f"{own:.3g}", own), number(ratio))]


def commands(records: Sequence[RunRecord]) -> Markup:
    """What to type to make every run again."""
    lines = "\n".join(command_of(record) for record in records)
    about = "Each command gives exactly the settings of the run, those that were filled in when it started included."
    return section(
        "commands",
        "Commands",
        tag("p", about),
        tag("pre", lines, tabindex=0),
        tag("button", "Copy", type="button", class_="copy"),
    )
