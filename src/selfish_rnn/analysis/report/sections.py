"""Sections of a report about several runs: outcome, gates, curves, tables of runs, and costs."""

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
from selfish_rnn.analysis.report.markup import (
    NOTHING,
    Cell,
    Markup,
    concatenated,
    duration,
    number,
    section,
    table,
    tag,
)
from selfish_rnn.analysis.topologies import degree_shares, density_map
from selfish_rnn.analysis.training_flops import TrainingFlops, run_flops
from selfish_rnn.experiment.comparison import flat
from selfish_rnn.runs.run import Run
from selfish_rnn.text import counted, spread
from selfish_rnn.topology import Topology
from selfish_rnn.topology.gates import WHOLE
from selfish_rnn.training.records import Densities, EpochRecord

POINTS = 40
"""Maximum number of points of a small curve."""


def gates(groups: Sequence[Group], swatch: Colour) -> Markup | None:
    """Return a table for each matrix with gates; None if there is none."""
    names = list(dict.fromkeys(name for group in groups for name in with_gates(_last(group))))
    if not names:
        return None
    about = tag(
        "p",
        "Density of every gate at the end of training, mean over seeds, with a curve of its course over the epochs. ",
        tag("span", "denser", class_="denser"),
        " or ",
        tag("span", "sparser", class_="sparser"),
        " than the whole matrix.",
    )
    tables = [_matrix(name, short, groups, swatch) for name, short in zip(names, short_names(names), strict=True)]
    return section("gates", "Gates", about, tag("div", *tables, class_="matrices"))


def _last(group: Group) -> Densities:
    """Return the final densities of the first run of a group."""
    return group.runs[0].epochs[-1].density


def _matrix(name: str, short: str, groups: Sequence[Group], swatch: Colour) -> Markup:
    members = [group for group in groups if name in _last(group)]
    kinds = list(dict.fromkeys(gate for group in members for gate in _last(group)[name] if gate != WHOLE))
    rows = [
        [concatenated(swatch(group), group.label), *(_density(group, name, gate) for gate in kinds)]
        for group in members
    ]
    caption = short if short == name else f"{short} ({name})"
    return table(["setting", *(gate_name(gate) for gate in kinds)], rows, caption=caption)


def _density(group: Group, name: str, gate: str) -> Cell:
    if gate not in _last(group)[name]:  # a gate of a different cell
        return Cell(NOTHING)
    ends = [run.epochs[-1].density[name] for run in group.runs if gate in run.epochs[-1].density.get(name, {})]
    density = statistics.fmean(end[gate] for end in ends)
    whole = statistics.fmean(end[WHOLE] for end in ends)
    course = [epoch.density[name][gate] for epoch in group.runs[0].epochs]
    # The colour shows the distance from the density of the whole matrix, up to half of it.
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
    """Draw densities from 40 % to 160 % of that of the whole matrix, which is the middle line."""
    step = max(1, -(-len(course) // POINTS))
    values = [*course[:-1:step], course[-1]]
    points = " ".join(
        f"{60 * index / max(1, len(values) - 1):.1f},{_height(value / whole if whole else 1.0):.1f}"
        for index, value in enumerate(values)
    )
    inner = concatenated(tag("line", x1=0, x2=60, y1=8, y2=8), tag("polyline", points=points))
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
"""Measures over the epochs: label, whether the axis is logarithmic, and value of an epoch."""

BINS = 24
"""Side length of a density map, and number of bins of a distribution."""


def series(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """Return the data of the curves: every run with its series and group."""
    groups = [group for comparison in comparisons for group in comparison.groups]
    runs = [(number, run) for number, group in enumerate(groups) for run in group.runs]
    return {
        "measures": [{"key": key, "label": label, "log": log} for key, (label, log, _) in MEASURES.items()],
        "groups": [group.label for group in groups],
        "runs": [
            {
                "name": run.name,
                "group": number,
                "unigram": _number((run.summary or {}).get("unigram_perplexity", math.nan)),
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
    """Return a density map of every gate as bytes, and the distribution of degrees, for every matrix."""
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
    densities = density_map(topology, gate, BINS)
    pixels = np.round(255 * densities).astype(np.uint8)
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
        "gates": [_rounded(values) for values in shares.gates.values()],
        "random": _rounded(shares.random),
    }


def _share_above(epoch: EpochRecord) -> float:
    return sum(epoch.weights_above.values()) / epoch.active_weights if epoch.active_weights else math.nan


def _rounded(values: Any) -> list[float]:
    return [round(float(value), 4) for value in values]


def _number(value: float) -> float | None:
    """Return six digits, which are more than a screen shows; None for NaN and infinity, which JSON lacks."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


Colour = Callable[[Group], Markup]


def outcomes(comparisons: Sequence[Comparison], swatch: Colour) -> Markup:
    """Return verdicts and rankings."""
    parts: list[object] = []
    for comparison in comparisons:
        if len(comparisons) > 1:
            parts.append(tag("h3", f"On {comparison.corpus}"))
        parts.append(tag("p", comparison.verdict(), class_="verdict"))
        parts.append(_ranking(comparison, swatch))
    if len(comparisons) > 1:
        parts.insert(0, tag("p", "The runs have different texts. Perplexities are compared on the same text only."))
    parts.extend(tag("p", note, class_="note") for note in notes(comparisons))
    return section("outcome", "Outcome", *parts)


def _ranking(comparison: Comparison, swatch: Colour) -> Markup:
    ranked = comparison.ranked
    everything = [perplexity for group in ranked for perplexity in group.perplexities]
    rows = []
    for group in comparison.groups:
        shared = group.differences(ranked[0]) if ranked and group is not ranked[0] else []
        worse = f"{sum(value > 0 for value in shared)} of {counted(len(shared), 'seed')}" if shared else NOTHING
        best = ranked[0].mean if ranked else None
        rows.append(
            [
                concatenated(swatch(group), group.label),
                Cell(spread(group.perplexities, none=NOTHING), group.mean),
                Cell(len(group.perplexities), len(group.perplexities)),
                _strip(group.perplexities, everything) if group.perplexities else "not finished",
                number(None if group.mean is None or best is None else group.mean - best),
                worse,
                number(statistics.fmean(run.valid_perplexity for run in group.runs)),
            ]
        )
    headings = ["setting", "test perplexity", "seeds", "each seed", "above the best", "worse on", "validation"]
    caption = "Test perplexity: mean ± standard deviation over seeds; lower is better."
    if everything and min(everything) < max(everything):
        caption += (
            f" Dots are seeds, from {min(everything):.2f} (left) to {max(everything):.2f} (right); the bar is the mean."
        )
    return table(headings, rows, caption=caption)


def _strip(values: Sequence[float], everything: Sequence[float]) -> Markup:
    """Draw the perplexity of each seed as a dot and the mean as a bar, on the common scale of a table."""
    low, high = min(everything), max(everything)

    def x(value: float) -> str:
        return f"{8 + 124 * (value - low) / (high - low or 1):.1f}"

    mean = x(statistics.fmean(values))
    dots = [tag("circle", tag("title", f"{value:.2f}"), cx=x(value), cy=9, r=4) for value in values]
    inner = concatenated(
        tag("line", x1=8, x2=132, y1=9, y2=9, class_="rail"),
        *dots,
        tag("line", x1=mean, x2=mean, y1=1, y2=17, class_="mean"),
    )
    label = ", ".join(f"{value:.2f}" for value in values)
    return tag("svg", inner, viewBox="0 0 140 18", class_="strip", role="img", aria_label=label)


def notes(comparisons: Sequence[Comparison]) -> list[str]:
    """Return caveats about a ranking."""
    runs = [run for comparison in comparisons for group in comparison.groups for run in group.runs]
    result = []
    unfinished = [run for run in runs if not run.finished]
    if unfinished and len(runs) > 1:
        names = ", ".join(
            f"{run.name} (epoch {run.epochs[-1].epoch} of {run.settings.get('epochs')})" for run in unfinished
        )
        result.append(f"Not finished, and left out of the ranking: {names}.")
    averaged = [run for run in runs if "asgd" in run.optimizer]
    never = [run for run in averaged if not run.averaging_starts]
    if never and len(never) < len(averaged):
        names = ", ".join(run.name for run in never)
        started = len(averaged) - len(never)
        result.append(f"Averaging never started in {names}, but it did in {counted(started, 'other run')}.")
    last = [run for run in runs if run.summary and run.summary.get("best_epoch") == run.epochs[-1].epoch]
    if last:
        if len(runs) == 1:
            result.append("The run was still improving in its last epoch; a longer run may be better.")
        else:
            subject = "Every run was" if len(last) == len(runs) else f"{len(last)} of {len(runs)} runs"
            verb = "" if len(last) == len(runs) else " was" if len(last) == 1 else " were"
            result.append(f"{subject}{verb} still improving in the last epoch; longer runs may rank differently.")
    return result


def settings(groups: Sequence[Group], swatch: Colour) -> Markup:
    """Return the settings that differ between groups, and those that do not."""
    flattened = [flat(group.runs[0].settings) for group in groups]
    keys = [key for key in differing(flattened) if key not in ASIDE]
    rows = [
        [concatenated(swatch(group), group.label), *(_value(values.get(key)) for key in keys)]
        for group, values in zip(groups, flattened, strict=True)
    ]
    same = [[tag("code", key), _value(value)] for key, value in flattened[0].items() if key not in (*keys, *ASIDE)]
    differences: Markup = tag("p", "Only the seeds differ.")
    if keys:
        differences = table(["setting", *keys], rows, caption="Settings that differ between groups.")
    common = table(["name", "value"], same, caption="Settings of every run.", sortable=False)
    details = tag(
        "details", tag("summary", f"{counted(len(same), 'setting')} with the same value in every run"), common
    )
    return section("settings", "Settings", differences, details)


def _value(value: Any) -> str:
    return "none" if value is None else str(value)


def runs(groups: Sequence[Group], swatch: Colour) -> Markup:
    """Return a table of all runs."""
    rows = []
    for group in groups:
        for run in group.runs:
            summary: Mapping[str, Any] = run.summary or {}
            starts = run.averaging_starts
            rows.append(
                [
                    run.name,
                    concatenated(swatch(group), group.label),
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
    return section("runs", "Runs", table(headings, rows, caption="All runs; click a heading to sort."))


def costs(groups: Sequence[Group], swatch: Colour) -> Markup:
    """Return time, memory, weights, machine and, if known, FLOPs."""
    rows = []
    flops = [_flops(group.runs[0]) for group in groups]
    machines = [machine_of(group.runs) for group in groups]
    several = len(set(machines)) > 1
    for group, machine, counts in zip(groups, machines, flops, strict=True):
        memories = [
            run.summary["peak_memory_mib"] for run in group.runs if run.summary and "peak_memory_mib" in run.summary
        ]
        last = group.runs[0].epochs[-1]
        row: list[object] = [
            concatenated(swatch(group), group.label),
            duration(statistics.fmean(run.seconds for run in group.runs)),
            number(statistics.fmean(run.seconds / len(run.epochs) for run in group.runs), 1, " s"),
            number(statistics.fmean(memories) if memories else None, 0),
            Cell(f"{last.active_weights:,}", last.active_weights),
            number(last.sparsity, 3),
        ]
        if any(flops):
            row += _flops_cells(counts)
        if several:
            row.append(machine)
        rows.append(row)
    headings = ["setting", "time", "per epoch", "memory (MiB)", "weights", "sparsity"]
    if any(flops):
        headings += ["training FLOPs", "of dense", "inference FLOPs", "of dense"]
    if several:
        headings.append("machine")
    caption = "Means over seeds." + ("" if several else f" Machine: {machines[0]}.")
    return section("costs", "Time, memory and size", table(headings, rows, caption=caption))


def machine_of(runs: Sequence[RunRecord]) -> str:
    """Return processor, threads, ranks and engine of runs."""
    texts = []
    for run in runs:
        summary: Mapping[str, Any] = run.summary or {}
        threads = summary.get("threads", run.settings.get("threads"))
        parts = [
            str(summary.get("processor", "processor unknown")),
            counted(threads, "thread") if isinstance(threads, int) else "",
            counted(summary["ranks"], "rank") if summary.get("ranks", 1) > 1 else "",
            f"{summary['engine']} engine" if "engine" in summary else "",
        ]
        texts.append(", ".join(filter(None, parts)))
    return "; ".join(dict.fromkeys(texts))


def _flops(record: RunRecord) -> TrainingFlops | None:
    """Return the FLOPs of a run, if its folder has the facts."""
    if record.path is None:
        return None
    try:
        return run_flops(Run.open(record.path))
    except ValueError:
        return None


def _flops_cells(flops: TrainingFlops | None) -> list[Cell]:
    if flops is None:
        return [Cell(NOTHING)] * 4
    pairs = ((flops.training, flops.training_ratio), (flops.inference, flops.inference_ratio))
    return [cell for count, ratio in pairs for cell in (Cell(f"{count:.3g}", count), number(ratio))]


def commands(records: Sequence[RunRecord]) -> Markup:
    """Return the commands that train every run."""
    lines = "\n".join(command_of(record) for record in records)
    about = "Each command has exactly the settings of its run, including those that were filled in at its start."
    return section(
        "commands",
        "Commands",
        tag("p", about),
        tag("pre", lines, tabindex=0),
        tag("button", "Copy", type="button", class_="copy"),
    )
