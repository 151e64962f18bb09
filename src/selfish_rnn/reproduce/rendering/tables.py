"""Items as Markdown: the paper's numbers beside ours."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from selfish_rnn.reproduce.case import Item, Row
from selfish_rnn.reproduce.distances import Distances, pairs_of
from selfish_rnn.reproduce.plan import runs_of_case
from selfish_rnn.reproduce.rendering.averaging import STALE, STALE_MEANING, averaging_of
from selfish_rnn.reproduce.rendering.costs import BYTES, HOURS, LATENCY, costs_of
from selfish_rnn.reproduce.results import Result, Results
from selfish_rnn.reproduce.scales import Scale
from selfish_rnn.text import counted, spread
from selfish_rnn.training.records import WEIGHTS_ABOVE

NONE = "-"
DAGGER = "†"
NOT_LEARNED = "no better than word frequencies, with one seed at least: nothing was learned."


class Findings:
    """What there is to show of a scale: results and distances, looked up for the rows of an item."""

    def __init__(self, scale: Scale, results: Results, distances: Distances, seeds: Sequence[int] = ()) -> None:
        self.scale, self.results, self.distances, self.seeds = scale, results, distances, seeds

    def of(self, item: Item, row: Row) -> list[Result]:
        """The results of a row, one for each seed that is finished."""
        if row.case is None:
            return []
        return self.results.of_case(runs_of_case(item, row.case, self.scale, self.seeds))


def table(item: Item, findings: Findings) -> str:
    """The Markdown table of an item."""
    return RENDERERS[item.shows](item, findings)


def markdown(headings: Sequence[str], rows: Iterable[Sequence[str]], text: int = 1) -> str:
    """A table; the first columns are text, to the left, the others numbers, to the right.

    >>> print(markdown(["row", "test"], [["Selfish", "71.65"]]))
    | row | test |
    |---|---:|
    | Selfish | 71.65 |
    """
    lines = [f"| {' | '.join(headings)} |", f"|{'---|' * text}{'---:|' * (len(headings) - text)}"]
    return "\n".join([*lines, *(f"| {' | '.join(cells)} |" for cells in rows)])


def label_of(row: Row) -> str:
    return f"{row.group}: {row.label}" if row.group else row.label


def _given(row: Row, key: str) -> str:
    return f"{row.paper[key]:.2f}" if key in row.paper else NONE


@dataclass
class _Lines:
    """Rows of a table that have results, those without, and the footnotes that the marks need."""

    findings: Findings
    rows: list[list[str]] = field(default_factory=list)
    missing: list[Row] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)

    def miss(self, row: Row) -> None:
        """Note a row without results; one that only the paper reports has no run to name."""
        if row.case is not None:
            self.missing.append(row)

    def settings(self, results: Sequence[Result]) -> list[str]:
        """Return the cells of the two columns that every table has: dropout, and the start of averaging."""
        starts = [averaging_of(result) for result in results]
        if any(start.stale for start in starts):
            self.notes[STALE] = STALE_MEANING
        cells = [f"{start.label}{' ' + STALE if start.stale else ''}" for start in starts]
        return [
            ", ".join(dict.fromkeys(map(dropout_of, results))),
            ", ".join(cells) if len(set(cells)) > 1 else cells[0],
        ]

    def markdown(self, headings: Sequence[str], text: int = 1) -> str:
        """Return the table, its footnotes, and one line that names the rows without a run."""
        parts = [markdown(headings, self.rows, text)] if self.rows else []
        parts += [f"{mark} {meaning}" for mark, meaning in self.notes.items()]
        if line := not_run(self.missing, self.findings.scale):
            parts.append(line)
        return "\n\n".join(parts)


def not_run(rows: Sequence[Row], scale: Scale) -> str:
    """Return one line that names rows without a run, by their groups; empty for a scale that gets no more runs."""
    if not rows or scale.superseded:
        return ""
    groups: dict[str, list[str]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(row.label)
    names = (f"{group} ({', '.join(labels)})" if group else "; ".join(labels) for group, labels in groups.items())
    return f"*Not run:* {'; '.join(names)}."


SETTINGS = ("dropout", "averaged from epoch")


def dropout_of(result: Result) -> str:
    """Return the dropout of a result, its kinds separated by slashes in the order of the settings."""
    model = result.settings["model"]
    return "/".join(f"{value:g}" for key, value in model.items() if key.startswith("dropout")) or NONE


def _perplexities(item: Item, findings: Findings) -> str:
    shown = [key for key in ("valid", "test") if any(key in row.paper for row in item.rows)]
    lines = _Lines(findings)
    for row in item.rows:
        results = findings.of(item, row)
        if not results:
            lines.miss(row)
            continue
        ours = [spread([result.summary[f"{split}_perplexity"] for result in results]) for split in ("valid", "test")]
        if any(_learned_nothing(result) for result in results):
            ours[1] += f" {DAGGER}"
            lines.notes[DAGGER] = NOT_LEARNED
        weights = f"{results[0].summary['active_weights']:,}"
        printed = (_given(row, key) for key in shown)
        lines.rows.append([
            label_of(row), *printed, *ours, weights, *lines.settings(results), str(len(results)),
        ])  # fmt: skip
    papers = [f"paper, {key}" for key in shown]
    return lines.markdown(["run", *papers, "valid", "test", "weights", *SETTINGS, "seeds"])


def _learned_nothing(result: Result) -> bool:
    """Whether the network predicts the test text no better than the frequencies of its words do."""
    return bool(result.summary["test_perplexity"] >= result.summary["unigram_perplexity"])


def _operations(item: Item, findings: Findings) -> str:
    lines = _Lines(findings)
    for row in item.rows:
        results = [result for result in findings.of(item, row) if result.operations is not None]
        if not results:
            lines.miss(row)
            continue
        shares = [result.operations for result in results if result.operations is not None]
        ours = [spread([share[index] for share in shares]) for index in (0, 1)]
        papers = (_given(row, key) for key in ("train_flops", "test_flops"))
        lines.rows.append([label_of(row), *papers, *ours, *lines.settings(results), str(len(results))])
    return lines.markdown(["run", "paper, train", "paper, test", "train", "test", *SETTINGS, "seeds"])


def _gates(item: Item, findings: Findings) -> str:
    """Return a table for each network, whose gates have other names, and a line for the networks without a run."""
    parts = []
    missing: list[Row] = []
    for row in item.rows:
        results = findings.of(item, row)
        if not results:
            missing.append(row)
            continue
        densities = {name: gates for result in results for name, gates in result.density.items() if len(gates) > 2}
        gates = [gate for gate in dict.fromkeys(g for named in densities.values() for g in named) if gate != "all"]
        lines = _Lines(findings)
        for matrix in densities:
            cells = []
            for gate in ("all", *gates):
                values = [100 * (1 - result.density[matrix][gate]) for result in results if gate in densities[matrix]]
                cells.append(spread(values, 1))
            lines.rows.append([matrix, *cells])
        dropout, start = lines.settings(results)
        about = f"{counted(len(results), 'seed')}, dropout {dropout}, averaged from epoch {start}"
        parts.append(f"**{row.group}** ({about})\n\n{lines.markdown(['sparsity, %', 'all', *gates])}")
    return "\n\n".join(filter(None, [*parts, not_run(missing, findings.scale)]))


def _large_weights(item: Item, findings: Findings) -> str:
    lines = _Lines(findings)
    for row in item.rows:
        results = findings.of(item, row)
        if not results:
            lines.miss(row)
            continue
        before, after = [], []
        for result in results:
            averaging = result.series["averaging"]
            totals = [sum(counts) for counts in zip(*result.series[WEIGHTS_ABOVE].values(), strict=True)]
            start = averaging.index(True) if True in averaging else len(averaging) - 1
            before.append(totals[max(start - 1, 0)] / 1000)
            after.append(totals[-1] / 1000)
        cells = [spread(before, 1), spread(after, 1), *lines.settings(results)]
        lines.rows.append([label_of(row), *cells, str(len(results))])
    return lines.markdown(["thousands of weights above 0.1", "before averaging", "at the end", *SETTINGS, "seeds"])


def _distances(item: Item, findings: Findings) -> str:
    lines = _Lines(findings)
    pairs = pairs_of(item, findings.scale, findings.seeds)
    for row in item.rows:
        measured = [(pair[0], records) for pair in pairs if pair[0].case == row.case
                    if (records := findings.distances.of(pair))]  # fmt: skip
        if not measured:
            lines.miss(row)
            continue
        first, last = (spread([records[at]["mean"] for _, records in measured], 3) for at in (0, -1))
        results = findings.results.of_case(run for run, _ in measured)
        settings = lines.settings(results) if results else [NONE, NONE]
        lines.rows.append([label_of(row), first, last, *settings, str(len(measured))])
    return lines.markdown(["distance", "first measured", "at the end", *SETTINGS, "pairs"])


def _times(item: Item, findings: Findings) -> str:
    lines = _Lines(findings)
    marks = sorted({point["seconds"] for row in item.rows for point in _points(findings.of(item, row))})
    for row in item.rows:
        results = findings.of(item, row)
        if not _points(results):
            lines.miss(row)
            continue
        at = {point["seconds"]: f"{point['test_perplexity']:.2f}" for point in _points(results)}
        weights = f"{results[0].series['active_weights'][-1]:,}"
        lines.rows.append([row.label, *(at.get(mark, NONE) for mark in marks), weights, *lines.settings(results)])
    return lines.markdown(["test perplexity", *(f"after {mark:,.0f} s" for mark in marks), "weights", *SETTINGS])


def _points(results: Sequence[Result]) -> list[dict[str, float]]:
    return results[0].points if results else []


def _costs(item: Item, findings: Findings) -> str:
    """Return the table of the comparison, and a line that names the networks without a run."""
    lines = _Lines(findings)
    for row in item.rows:
        results = findings.of(item, row)
        if not results:
            lines.miss(row)
            continue
        result = results[0]
        costs = costs_of(result, findings.results.folder.parent)
        perplexities = (f"{result.summary[f'{split}_perplexity']:.2f}" for split in ("valid", "test"))
        lines.rows.append([
            label_of(row), *perplexities, f"{result.summary['active_weights']:,}",
            *(f"{costs[name]:.3g}" if name in costs else NONE for name in (HOURS, LATENCY, BYTES)),
            costs.get("engine", NONE), *lines.settings(results),
        ])  # fmt: skip
    return lines.markdown(["network", "valid", "test", "weights", HOURS, LATENCY, BYTES, "engine", *SETTINGS])


RENDERERS: dict[str, Callable[[Item, Findings], str]] = {
    "perplexity": _perplexities,
    "flops": _operations,
    "gates": _gates,
    "large-weights": _large_weights,
    "distances": _distances,
    "time": _times,
    "pareto": _costs,
}
