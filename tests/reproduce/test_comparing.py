"""A method against stored results: pairs of seeds, verdicts, missing baselines, page and tables."""

from __future__ import annotations

from pathlib import Path

import pytest
from reproduce_cases import made_up

from selfish_rnn import SELFISH, UserError
from selfish_rnn.files import write_atomically
from selfish_rnn.reproduce.case import Case
from selfish_rnn.reproduce.comparing import (
    Comparison,
    OwnResults,
    baseline_folder,
    check_method,
    check_rules,
    save_rules,
)
from selfish_rnn.reproduce.rendering.comparison import latex, table_rows, write_comparison
from selfish_rnn.reproduce.results import Results
from selfish_rnn.reproduce.scales import SMALL
from selfish_rnn.topology import register_method

pytestmark = pytest.mark.usefixtures("tables_as_before")

LSTM = "stacked-lstm"
MINE = Case(LSTM, "mine")


@pytest.fixture
def comparison(tmp_path: Path) -> Comparison:
    """My method is 5 better than RigL, 5 worse than the dense network, and equal to SET but for noise."""
    register_method(SELFISH.replace(name="mine"))
    stored = Results(tmp_path / "results", SMALL.name)
    results = OwnResults(tmp_path / "compare" / "mine", SMALL, stored)
    for seed in (1, 2, 3, 4, 5):
        local, run = made_up(MINE, seed, 100.0 + seed, series={"seconds": [360.0, 720.0]})
        results.save(local, run)
        stored.save(*made_up(Case(LSTM, "rigl"), seed, 105.0 + seed + 0.1 * (seed % 2)))
        stored.save(*made_up(Case(LSTM, "dense", "nt-asgd"), seed, 95.0 + seed + 0.1 * (seed % 2)))
        stored.save(*made_up(Case(LSTM, "set"), seed, 100.0 + seed + (0.4 if seed % 2 else -0.5)))
    stored.save(*made_up(Case(LSTM, "static"), 1, 103.0))
    return Comparison(MINE, SMALL, (1, 2, 3, 4, 5), results)


def test_verdicts_are_by_the_rule_of_the_claims(comparison: Comparison) -> None:
    verdicts = {
        opponent.case.method: (opponent.better.verdict, opponent.as_good.verdict) for opponent in comparison.opponents
    }
    assert verdicts["rigl"] == ("holds", "holds")
    assert verdicts["dense"] == ("does not hold", "does not hold")
    assert verdicts["set"] == ("inconclusive", "holds")
    assert verdicts["static"] == ("inconclusive", "inconclusive")  # one seed
    assert verdicts["gmp"] == ("not run", "not run")
    rigl = next(opponent for opponent in comparison.opponents if opponent.case.method == "rigl")
    assert rigl.better.seeds == (1, 2, 3, 4, 5)
    assert rigl.better.mean == pytest.approx(5.06)
    assert comparison.core_hours == pytest.approx(1.0)


def test_the_page_says_what_is_missing(comparison: Comparison, tmp_path: Path) -> None:
    index, markdown, tex = write_comparison(comparison, tmp_path / "out")
    page = index.read_text()
    assert "# mine compared" in page
    assert "*mine is better than RigL*: holds." in page
    assert "**Missing baselines:** static (ER), DSR, SNFS, Selfish-RNN, GMP" in page
    assert "**Baselines with fewer seeds:** static (uniform) (1)." in page
    assert "took 1 core-hours" in page
    assert page.count("selfish-rnn train ptb-stacked-lstm-small") == 5
    assert [row[0] for row in table_rows(comparison)] == ["**mine**", "dense", "static (uniform)", "SET", "RigL"]
    assert markdown.read_text().startswith("| method | valid | test |")
    assert r"\textbf{mine} & 113.00 $\pm$ 1.58 & 103.00 $\pm$ 1.58 & 1,000 & 5" in tex.read_text()


def test_unfinished_runs_are_named(comparison: Comparison) -> None:
    short = Comparison(MINE, SMALL, (1, 2, 3, 7), comparison.results)
    assert [run.seed for run in short.runs if run.seed not in short.own] == [7]
    alone = Comparison(Case(LSTM, "mine", sparsity=0.9), SMALL, (1, 2), comparison.results)
    assert alone.own == {}
    assert len(alone.missing) == len(alone.opponents) - 1  # all but the dense network


def test_results_of_a_neighbouring_comparison_are_used(comparison: Comparison, tmp_path: Path) -> None:
    theirs, run = made_up(Case(LSTM, "gmp"), 1, 90.0)
    folder = tmp_path / "compare" / "gmp" / "results" / "small"
    write_atomically(folder / "a.json", theirs.to_json().encode())
    results = OwnResults(tmp_path / "compare" / "mine", SMALL, Results(tmp_path / "results", SMALL.name))
    result = results.get(run)
    assert result is not None
    assert result.summary["test_perplexity"] == 90.0


def test_letters_that_mean_something_in_latex_are_escaped() -> None:
    assert r"a\_b \& 5\% \#1" in latex(["x"], [["a_b & 5% #1"]])


def test_a_wrong_method_or_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"unknown method 'mime'.*--import FILE adds those of your own file"):
        check_method("mime")
    with pytest.raises(UserError, match=r"there are no stored results in .*nowhere"):
        baseline_folder(tmp_path / "nowhere")


def test_results_of_a_changed_rule_are_not_mixed_with_older_ones(tmp_path: Path) -> None:
    rule, folder = tmp_path / "my_rule.py", tmp_path / "compare"
    folder.mkdir()
    rule.write_text("first = 1\n")
    check_rules(folder, [rule])
    save_rules(folder, [rule])
    check_rules(folder, [rule])
    rule.write_text("second = 2\n")
    with pytest.raises(UserError, match=r"my_rule\.py has changed since the results in .* were made: give the method"):
        check_rules(folder, [rule])
