"""Items as Markdown: the paper's numbers beside ours."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from selfish_rnn.reproduce.case import Item, Row
from selfish_rnn.reproduce.distances import Distances, pairs_of
from selfish_rnn.reproduce.plan import runs_of_case
from selfish_rnn.reproduce.results import LARGE, Result, Results
from selfish_rnn.reproduce.scales import Scale
from selfish_rnn.text import spread

NONE = "-"
NOTHING = "no run is finished"
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


def _perplexities(item: Item, findings: Findings) -> str:
    shown = [key for key in ("valid", "test") if any(key in row.paper for row in item.rows)]
    rows = []
    note = ""
    for row in item.rows:
        results = findings.of(item, row)
        ours = [spread([result.summary[f"{split}_perplexity"] for result in results]) for split in ("valid", "test")]
        if any(_learned_nothing(result) for result in results):
            ours[1] += f" {DAGGER}"
            note = f"\n\n{DAGGER} {NOT_LEARNED}"
        weights = f"{results[0].summary['active_weights']:,}" if results else NONE
        rows.append([label_of(row), *(_given(row, key) for key in shown), *ours, weights, str(len(results))])
    return markdown(["run", *(f"paper, {key}" for key in shown), "valid", "test", "weights", "seeds"], rows) + note


def _learned_nothing(result: Result) -> bool:
    """Whether the network predicts the test text no better than the frequencies of its words do."""
    return bool(result.summary["test_perplexity"] >= result.summary["unigram_perplexity"])


def _operations(item: Item, findings: Findings) -> str:
    rows = []
    for row in item.rows:
        found = [result.operations for result in findings.of(item, row) if result.operations is not None]
        ours = [spread([shares[index] for shares in found]) for index in (0, 1)]
        rows.append([label_of(row), _given(row, "train_flops"), _given(row, "test_flops"), *ours])
    return markdown(["run", "paper, train", "paper, test", "train", "test"], rows)


def _gates(item: Item, findings: Findings) -> str:
    """A table for each network: its gates are called by other names."""
    parts = []
    for row in item.rows:
        results = findings.of(item, row)
        densities = {name: gates for result in results for name, gates in result.density.items() if len(gates) > 2}
        gates = [gate for gate in dict.fromkeys(g for named in densities.values() for g in named) if gate != "all"]
        lines = []
        for matrix in densities:
            cells = []
            for gate in ("all", *gates):
                values = [100 * (1 - result.density[matrix][gate]) for result in results if gate in densities[matrix]]
                cells.append(spread(values, 1))
            lines.append([matrix, *cells])
        body = markdown(["sparsity, %", "all", *gates], lines) if lines else NOTHING
        parts.append(f"**{row.group}** ({len(results)} seeds)\n\n{body}")
    return "\n\n".join(parts)


def _large_weights(item: Item, findings: Findings) -> str:
    rows = []
    for row in item.rows:
        results = findings.of(item, row)
        before, after = [], []
        for result in results:
            averaging = result.series["averaging"]
            totals = [sum(counts) for counts in zip(*result.series[LARGE].values(), strict=True)]
            start = averaging.index(True) if True in averaging else len(averaging) - 1
            before.append(totals[max(start - 1, 0)] / 1000)
            after.append(totals[-1] / 1000)
        rows.append([label_of(row), spread(before, 1), spread(after, 1), str(len(results))])
    return markdown(["thousands of weights above 0.1", "before averaging", "at the end", "seeds"], rows)


def _distances(item: Item, findings: Findings) -> str:
    rows = []
    labels = {row.case: label_of(row) for row in item.rows}
    found: dict[str, list[list[dict[str, float]]]] = {label: [] for label in labels.values()}
    for pair in pairs_of(item, findings.scale, findings.seeds):
        records = findings.distances.of(pair)
        if records:
            found[labels[pair[0].case]].append(records)
    for label, series in found.items():
        first, last = (spread([records[at]["mean"] for records in series], 3) for at in (0, -1))
        rows.append([label, first, last, str(len(series))])
    return markdown(["distance", "first measured", "at the end", "pairs"], rows)


def _times(item: Item, findings: Findings) -> str:
    found = {row.label: findings.of(item, row) for row in item.rows}
    marks = sorted({point["seconds"] for results in found.values() for point in _points(results)})
    if not marks:
        return NOTHING
    rows = []
    for label, results in found.items():
        at = {point["seconds"]: f"{point['test_perplexity']:.2f}" for point in _points(results)}
        rows.append([label, *(at.get(mark, NONE) for mark in marks)])
    return markdown(["test perplexity", *(f"after {mark:,.0f} s" for mark in marks)], rows)


def _points(results: Sequence[Result]) -> list[dict[str, float]]:
    return results[0].points if results else []


RENDERERS: dict[str, Callable[[Item, Findings], str]] = {
    "perplexity": _perplexities,
    "flops": _operations,
    "gates": _gates,
    "large-weights": _large_weights,
    "distances": _distances,
    "time": _times,
}
