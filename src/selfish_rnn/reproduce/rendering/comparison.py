"""A comparison as a page, and as a table in Markdown and LaTeX."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from selfish_rnn.experiment.extensions import requested_imports
from selfish_rnn.files import write_atomically
from selfish_rnn.reproduce.comparing import Comparison, Opponent, shown_seeds
from selfish_rnn.reproduce.rendering.tables import EMPTY, markdown
from selfish_rnn.reproduce.rendering.verdicts import NOT_RUN, RULE, number
from selfish_rnn.reproduce.results import Result
from selfish_rnn.text import counted, spread

HEADINGS = ("method", "valid", "test", "weights", "seeds", "loses to yours by", "yours is better", "yours is as good")


def write_comparison(comparison: Comparison, folder: Path) -> list[Path]:
    """Write ``index.md``, ``table.md`` and ``table.tex`` into a folder."""
    rows = table_rows(comparison)
    contents = {
        "index.md": page(comparison),
        "table.md": markdown(HEADINGS, rows) + "\n",
        "table.tex": latex(HEADINGS, rows),
    }
    for name, content in contents.items():
        write_atomically(folder / name, content.encode())
    return [folder / name for name in contents]


def table_rows(comparison: Comparison) -> list[list[str]]:
    """Return a row for your method, and one for each method with results."""
    cells = [f"**{comparison.case.method}**", *_numbers(list(comparison.own.values())), *3 * [EMPTY]]
    return [cells, *(_row(opponent) for opponent in comparison.opponents if opponent.results)]


def _row(opponent: Opponent) -> list[str]:
    numbers = _numbers(list(opponent.results.values()))
    return [opponent.label, *numbers, number(opponent.better), opponent.better.verdict, opponent.as_good.verdict]


def _numbers(results: Sequence[Result]) -> list[str]:
    if not results:
        return [EMPTY, EMPTY, EMPTY, "0"]
    perplexities = (
        spread([result.summary[f"{split}_perplexity"] for result in results]) for split in ("valid", "test")
    )
    return [*perplexities, f"{results[0].summary['active_weights']:,}", str(len(results))]


def page(comparison: Comparison) -> str:
    """Return the comparison as one Markdown page."""
    case, scale = comparison.case, comparison.scale
    settings = comparison.runs[0].experiment
    imports = "".join(f" --import {file.name}" for file in requested_imports())
    parts = [
        f"# {case.method} compared",
        f"{case.network} at scale `{scale.name}`: {scale.about}. Corpus {settings.corpus}, sparsity "
        f"{settings.sparsity:g}, {settings.epochs} epochs, optimizer {case.optimizer}, seeds "
        f"{shown_seeds(comparison.seeds)}. Test perplexity, mean ± standard deviation over the seeds.",
        markdown(HEADINGS, table_rows(comparison)),
        "## Verdicts",
        *_verdicts(comparison),
        "## Rule",
        f"The number that decides is the other method's test perplexity minus yours, seed by seed. {RULE}",
        "## Cost",
        f"{counted(len(comparison.own), 'run')} of `{case.method}` took {comparison.core_hours:.3g} core-hours. The "
        "other results are stored ones and were not trained again.",
        "## Commands",
        "```sh\n" + "\n".join(run.command + imports for run in comparison.runs) + "\n```",
    ]
    return "\n\n".join(parts) + "\n"


def _verdicts(comparison: Comparison) -> list[str]:
    """Return a line for each compared method, and one for those that are missing."""
    lines = []
    for opponent in comparison.opponents:
        if opponent.better.verdict != NOT_RUN:
            better, as_good = opponent.better.conclusion, opponent.as_good.conclusion
            lines.append(
                f"- *{comparison.case.method} is better than {opponent.label}*: {better}. *As good*: {as_good}."
            )
    compared = ["\n".join(lines)] if lines else ["There is no seed with results of both sides, so nothing is decided."]
    without = [run.seed for run in comparison.runs if run.seed not in comparison.own]
    if without:
        compared.append(f"**Not finished:** your runs with {counted(len(without), 'seed')} ({shown_seeds(without)}).")
    if comparison.missing:
        names = ", ".join(opponent.label for opponent in comparison.missing)
        compared.append(
            f"**Missing baselines:** {names}. The stored results have no runs of them at scale "
            f"`{comparison.scale.name}` and this sparsity, so nothing is said about them. To train one of them: "
            f"`selfish-rnn compare --method NAME --scale {comparison.scale.name} --network {comparison.case.network}`. "
            "Later comparisons in the same folder use its results."
        )
    partial = [
        f"{opponent.label} ({len(opponent.results)})"
        for opponent in comparison.opponents
        if 0 < len(opponent.results) < len(comparison.seeds)
    ]
    if partial:
        compared.append(f"**Baselines with fewer seeds:** {', '.join(partial)}.")
    return compared


_LATEX = {"&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "$": r"\$", "±": r"$\pm$"}


def latex(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    r"""Return a LaTeX table for the package booktabs.

    >>> print(latex(["method", "test"], [["**a_b**", "1.0 ± 0.1"]]))
    \begin{tabular}{lr}
    \toprule
    method & test \\
    \midrule
    \textbf{a\_b} & 1.0 $\pm$ 0.1 \\
    \bottomrule
    \end{tabular}
    <BLANKLINE>
    """
    lines = [rf"\begin{{tabular}}{{l{'r' * (len(headings) - 1)}}}", r"\toprule"]
    lines += [f"{' & '.join(map(_cell, headings))} \\\\", r"\midrule"]
    lines += [f"{' & '.join(map(_cell, row))} \\\\" for row in rows]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _cell(text: str) -> str:
    escaped = "".join(_LATEX.get(letter, letter) for letter in text)
    return re.sub(r"\*\*(.+?)\*\*", r"\\textbf{\1}", escaped)
