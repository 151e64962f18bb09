"""Items as Markdown tables: the paper's numbers next to ours, and one line for rows without a run."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from selfish_rnn.files import read_json
from selfish_rnn.reproduce.case import Item, Row
from selfish_rnn.reproduce.plan import pairs_of, runs_of_case
from selfish_rnn.reproduce.results import Result, Results
from selfish_rnn.reproduce.scales import Scale, scale_named
from selfish_rnn.text import counted, spread
from selfish_rnn.training.records import WEIGHTS_ABOVE

EMPTY = "-"
DAGGER = "†"
NOT_LEARNED = "no better than word frequencies for at least one seed: nothing was learned."

STALE = "‡"
STALE_MEANING = (
    "averaging starts before pruning ends, so the measured network averages epochs in which it had more weights: the "
    "number does not show the quality of pruning."
)

COSTS = Path("pareto/costs.json")
"""Costs of networks by width and sparsity, below the folder of results; written by tools/benchmarks/pareto_costs.py."""

LATENCY, BYTES, HOURS = "next word, int8 (ms)", "int8 weights (MB)", "core-hours of training"


@dataclass(frozen=True)
class ResultView:
    """Results of a scale, looked up by rows of items.

    ``seeds`` replaces the seeds of the scale.
    """

    scale: Scale
    results: Results
    seeds: Sequence[int] = ()

    @classmethod
    def read(cls, root: Path, scale: str) -> ResultView:
        """Read the results of a scale below a folder."""
        return cls(scale_named(scale), Results(root, scale))

    def of(self, item: Item, row: Row) -> list[Result]:
        """Return the results of a row, one per finished seed."""
        if row.case is None:
            return []
        return self.results.get_all(runs_of_case(item, row.case, self.scale, self.seeds))


def table(item: Item, view: ResultView) -> str:
    """Return the Markdown table of an item."""
    return RENDERERS[item.kind](item, view)


def markdown(headings: Sequence[str], rows: Iterable[Sequence[str]], text: int = 1) -> str:
    """Return a Markdown table. The first `text` columns are left-aligned, the others right-aligned.

    >>> print(markdown(["row", "test"], [["Selfish", "71.65"]]))
    | row | test |
    |---|---:|
    | Selfish | 71.65 |
    """
    lines = [f"| {' | '.join(headings)} |", f"|{'---|' * text}{'---:|' * (len(headings) - text)}"]
    return "\n".join([*lines, *(f"| {' | '.join(cells)} |" for cells in rows)])


def label_of(row: Row) -> str:
    """Return the label of a row with its group."""
    return f"{row.group}: {row.label}" if row.group else row.label


def averaging_start(result: Result) -> tuple[str, bool]:
    """Return the first epoch of the averages of the best model, ``-`` for raw weights, and whether it is stale.

    Averages begin after the last start or restart before the best epoch. They are stale if the network had more weights
    in their first epoch than in the best one.
    """
    epochs, active = result.series["epoch"], result.series["averaging"]
    best = result.summary.get("best_epoch", epochs[-1])
    starts = [
        epoch
        for index, epoch in enumerate(epochs)
        if active[index] and (index == 0 or not active[index - 1]) and epoch <= best
    ]
    if not starts:
        return EMPTY, False
    # A restart after epoch e begins new averages with epoch e + 1.
    restarts = result.settings.get("restart_at") or ()
    start = max([starts[-1], *(epoch + 1 for epoch in restarts if starts[-1] <= epoch < best)])
    weights = dict(zip(epochs, result.series.get("active_weights") or [0] * len(epochs), strict=True))
    return str(start), weights.get(start, 0) > weights.get(best, 0)


def costs_of(result: Result, root: Path) -> dict[str, Any]:
    """Return the core-hours of a run and, if measured, the latency and bytes of its network in int8.

    Latency and bytes are those of the fastest engine, which is named.
    """
    costs: dict[str, Any] = {HOURS: round(result.summary["seconds"] * result.summary.get("threads", 1) / 3600, 3)}
    path = root / COSTS
    if not path.exists():
        return costs
    dense = result.settings["method"]["name"] == "dense"
    size = result.settings["model"]["hidden"], 0.0 if dense else result.settings["sparsity"]
    for row in read_json(path)["rows"]:
        if (row["units"], row["sparsity"]) == size:
            engine = min(row["latency_ms"], key=lambda name: float(row["latency_ms"][name]))
            costs |= {"engine": engine, LATENCY: row["latency_ms"][engine], BYTES: row["bytes"][engine] / 1e6}
    return costs


def _printed(row: Row, key: str) -> str:
    return f"{row.paper[key]:.2f}" if key in row.paper else EMPTY


@dataclass
class _TableBuilder:
    """Rows with results, rows without, and footnotes of a table."""

    item: Item
    view: ResultView
    rows: list[list[str]] = field(default_factory=list)
    missing: list[Row] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)

    def skip(self, row: Row) -> None:
        """Add a row to the line of missing runs, unless only the paper reports it."""
        if row.case is not None:
            self.missing.append(row)

    def settings(self, results: Sequence[Result]) -> list[str]:
        """Return the cells of the columns that every table has: dropout, and the start of averaging."""
        starts = [averaging_start(result) for result in results]
        if any(stale for _, stale in starts):
            self.notes[STALE] = STALE_MEANING
        cells = [f"{start}{' ' + STALE if stale else ''}" for start, stale in starts]
        return [
            ", ".join(dict.fromkeys(map(dropout_of, results))),
            ", ".join(cells) if len(set(cells)) > 1 else cells[0],
        ]

    def markdown(self, headings: Sequence[str], text: int = 1) -> str:
        """Return the table, its footnotes, and one line that names the rows without a run."""
        parts = [markdown(headings, self.rows, text)] if self.rows else []
        parts += [f"{mark} {meaning}" for mark, meaning in self.notes.items()]
        if line := not_run(self.item, self.missing, self.view.scale):
            parts.append(line)
        return "\n\n".join(parts)


def not_run(item: Item, missing: Sequence[Row], scale: Scale) -> str:
    """Return one line that names the rows without a run, or their group if none of its rows has one.

    The line is empty for a superseded scale. Candidates that no tuning has asked for are left out.
    """
    groups: dict[str, list[str]] = {}
    for row in missing:
        if not row.on_demand:
            groups.setdefault(row.group, []).append(row.label)
    if not groups or scale.superseded:
        return ""
    started = {row.group for row in item.rows if row.case is not None and row not in missing}
    parts = [
        f"{group} ({', '.join(labels)})" if group else "; ".join(labels)
        for group, labels in groups.items()
        if group in started or not group
    ]
    if whole := [group for group in groups if group and group not in started]:
        parts.append(f"all of: {'; '.join(whole)}")
    return f"*Not run:* {'; '.join(parts)}."


SETTINGS = ("dropout", "averaged from epoch")


def dropout_of(result: Result) -> str:
    """Return the dropout of a result, its kinds separated by slashes in the order of the settings."""
    model = result.settings["model"]
    return "/".join(f"{value:g}" for key, value in model.items() if key.startswith("dropout")) or EMPTY


def _perplexities(item: Item, view: ResultView) -> str:
    splits = [key for key in ("valid", "test") if any(key in row.paper for row in item.rows)]
    builder = _TableBuilder(item, view)
    for row in item.rows:
        results = view.of(item, row)
        if not results:
            builder.skip(row)
            continue
        measured = [
            spread([result.summary[f"{split}_perplexity"] for result in results]) for split in ("valid", "test")
        ]
        if any(_learned_nothing(result) for result in results):
            measured[1] += f" {DAGGER}"
            builder.notes[DAGGER] = NOT_LEARNED
        weights = f"{results[0].summary['active_weights']:,}"
        printed = (_printed(row, key) for key in splits)
        builder.rows.append([
            label_of(row), *printed, *measured, weights, *builder.settings(results), str(len(results)),
        ])  # fmt: skip
    papers = [f"paper, {key}" for key in splits]
    return builder.markdown(["run", *papers, "valid", "test", "weights", *SETTINGS, "seeds"])


def _learned_nothing(result: Result) -> bool:
    """Return whether the network predicts the test text no better than word frequencies."""
    return bool(result.summary["test_perplexity"] >= result.summary["unigram_perplexity"])


def _operations(item: Item, view: ResultView) -> str:
    builder = _TableBuilder(item, view)
    for row in item.rows:
        results = [result for result in view.of(item, row) if result.operations is not None]
        if not results:
            builder.skip(row)
            continue
        shares = [result.operations for result in results if result.operations is not None]
        measured = [spread([share[index] for share in shares]) for index in (0, 1)]
        papers = (_printed(row, key) for key in ("train_flops", "test_flops"))
        builder.rows.append([label_of(row), *papers, *measured, *builder.settings(results), str(len(results))])
    return builder.markdown(["run", "paper, train", "paper, test", "train", "test", *SETTINGS, "seeds"])


def _gates(item: Item, view: ResultView) -> str:
    """Return a table for each network, because gates differ, and a line for the networks without a run."""
    parts = []
    missing: list[Row] = []
    for row in item.rows:
        results = view.of(item, row)
        if not results:
            missing.append(row)
            continue
        densities = {name: gates for result in results for name, gates in result.density.items() if len(gates) > 2}
        gates = [gate for gate in dict.fromkeys(itertools.chain(*densities.values())) if gate != "all"]
        builder = _TableBuilder(item, view)
        for matrix in densities:
            cells = []
            for gate in ("all", *gates):
                values = [100 * (1 - result.density[matrix][gate]) for result in results if gate in densities[matrix]]
                cells.append(spread(values, 1))
            builder.rows.append([matrix, *cells])
        dropout, start = builder.settings(results)
        about = f"{counted(len(results), 'seed')}, dropout {dropout}, averaged from epoch {start}"
        parts.append(f"**{row.group}** ({about})\n\n{builder.markdown(['sparsity, %', 'all', *gates])}")
    return "\n\n".join(filter(None, [*parts, not_run(item, missing, view.scale)]))


def _large_weights(item: Item, view: ResultView) -> str:
    builder = _TableBuilder(item, view)
    for row in item.rows:
        results = view.of(item, row)
        if not results:
            builder.skip(row)
            continue
        before, after = [], []
        for result in results:
            averaging = result.series["averaging"]
            totals = [sum(counts) for counts in zip(*result.series[WEIGHTS_ABOVE].values(), strict=True)]
            start = averaging.index(True) if True in averaging else len(averaging) - 1
            before.append(totals[max(start - 1, 0)] / 1000)
            after.append(totals[-1] / 1000)
        cells = [spread(before, 1), spread(after, 1), *builder.settings(results)]
        builder.rows.append([label_of(row), *cells, str(len(results))])
    return builder.markdown(["thousands of weights above 0.1", "before averaging", "at the end", *SETTINGS, "seeds"])


def _distances(item: Item, view: ResultView) -> str:
    builder = _TableBuilder(item, view)
    pairs = pairs_of(item, view.scale, view.seeds)
    for row in item.rows:
        measured = [(pair[0], records) for pair in pairs if pair[0].case == row.case
                    if (records := view.results.distances(pair))]  # fmt: skip
        if not measured:
            builder.skip(row)
            continue
        first, last = (spread([records[at]["mean"] for _, records in measured], 3) for at in (0, -1))
        results = view.results.get_all(run for run, _ in measured)
        settings = builder.settings(results) if results else [EMPTY, EMPTY]
        builder.rows.append([label_of(row), first, last, *settings, str(len(measured))])
    return builder.markdown(["distance", "first measured", "at the end", *SETTINGS, "pairs"])


def _times(item: Item, view: ResultView) -> str:
    builder = _TableBuilder(item, view)
    marks = sorted({point["seconds"] for row in item.rows for point in _points(view.of(item, row))})
    for row in item.rows:
        results = view.of(item, row)
        if not _points(results):
            builder.skip(row)
            continue
        at = {point["seconds"]: f"{point['test_perplexity']:.2f}" for point in _points(results)}
        weights = f"{results[0].series['active_weights'][-1]:,}"
        builder.rows.append([row.label, *(at.get(mark, EMPTY) for mark in marks), weights, *builder.settings(results)])
    return builder.markdown(["test perplexity", *(f"after {mark:,.0f} s" for mark in marks), "weights", *SETTINGS])


def _points(results: Sequence[Result]) -> list[dict[str, float]]:
    return results[0].points if results else []


def _costs(item: Item, view: ResultView) -> str:
    """Return the table of the comparison, and a line that names the networks without a run."""
    builder = _TableBuilder(item, view)
    for row in item.rows:
        results = view.of(item, row)
        if not results:
            builder.skip(row)
            continue
        result = results[0]
        costs = costs_of(result, view.results.folder.parent)
        perplexities = (f"{result.summary[f'{split}_perplexity']:.2f}" for split in ("valid", "test"))
        builder.rows.append([
            label_of(row), *perplexities, f"{result.summary['active_weights']:,}",
            *(f"{costs[name]:.3g}" if name in costs else EMPTY for name in (HOURS, LATENCY, BYTES)),
            costs.get("engine", EMPTY), *builder.settings(results),
        ])  # fmt: skip
    return builder.markdown(["network", "valid", "test", "weights", HOURS, LATENCY, BYTES, "engine", *SETTINGS])


RENDERERS: dict[str, Callable[[Item, ResultView], str]] = {
    "perplexity": _perplexities,
    "flops": _operations,
    "gates": _gates,
    "large-weights": _large_weights,
    "distances": _distances,
    "time": _times,
    "pareto": _costs,
}
