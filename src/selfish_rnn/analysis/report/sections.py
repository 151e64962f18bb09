"""The parts of the page that are words and tables."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from selfish_rnn.analysis.flops.training import TrainingFlops, run_flops
from selfish_rnn.analysis.records import RunRecord
from selfish_rnn.analysis.report.commands import command_of
from selfish_rnn.analysis.report.comparison import ASIDE, Comparison, Group, differing
from selfish_rnn.analysis.report.markup import NOTHING, Cell, Markup, duration, number, table, tag, together
from selfish_rnn.experiment.comparison import flat
from selfish_rnn.runs.run import Run
from selfish_rnn.text import spread

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
