"""Tables, verdicts and documents from results."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from reproduce_cases import made_up

from selfish_rnn.errors import UserError
from selfish_rnn.reproduce.case import Case
from selfish_rnn.reproduce.distances import Distances, pairs_of
from selfish_rnn.reproduce.paper import ITEMS
from selfish_rnn.reproduce.rendering.decisions import claims_table, decisions, short_table
from selfish_rnn.reproduce.rendering.documents import DOCUMENTS, findings_of, render_documents, rendered
from selfish_rnn.reproduce.rendering.drawing import outcomes
from selfish_rnn.reproduce.rendering.tables import table
from selfish_rnn.reproduce.rendering.verdicts import FAILS, HOLDS, RULE, UNDECIDED
from selfish_rnn.reproduce.results import Results
from selfish_rnn.reproduce.scales import SMALL

REPOSITORY = Path(__file__).parents[2]
SELFISH, DENSE, STATIC = Case("stacked-lstm"), Case("stacked-lstm", "dense", "nt-asgd"), Case("stacked-lstm", "static")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three seeds of three runs: Selfish better than static with each, and than dense with two of them."""
    results = Results(tmp_path, "small")
    for case, tests in ((SELFISH, (100, 102, 101)), (DENSE, (101, 103, 100)), (STATIC, (110, 111, 112))):
        for seed, test in enumerate(tests, start=1):
            results.keep(*made_up(case, seed, float(test)))
    return tmp_path


def verdict_of(number: int, root: Path) -> str:
    found = [
        one
        for one in decisions(findings_of(root, "small"))
        if (one.claim.number, one.network) == (number, "stacked-lstm")
    ]
    return found[0].verdict


def test_claims_are_decided_by_their_runs(root: Path) -> None:
    assert verdict_of(1, root) == UNDECIDED
    assert verdict_of(2, root) == HOLDS
    assert verdict_of(9, root) == HOLDS


def test_a_claim_of_several_parts_waits_for_all_of_them(root: Path) -> None:
    results = Results(root, "small")
    for method in ("set", "rigl", "snfs"):
        for seed in (1, 2, 3):
            results.keep(*made_up(Case("stacked-lstm", method), seed, 120.0 + seed))
    assert verdict_of(3, root) == UNDECIDED
    for seed in (1, 2, 3):
        results.keep(*made_up(Case("stacked-lstm", "gmp"), seed, 90.0 + seed))
    assert verdict_of(3, root) == FAILS


def test_distances_decide_their_claim(root: Path) -> None:
    results, distances = Results(root, "small"), Distances(root, "small")
    for pair in pairs_of(ITEMS["distance-growth"], SMALL):
        results.keep(*made_up(pair[0].case, pair[0].seed, 100.0))
        gradient = pair[0].case.method == "gradient-growth"
        distances.keep(
            pair, [{"epoch": 5, "mean": 0.9}, {"epoch": 60, "mean": (0.6 if gradient else 0.8) + pair[0].seed / 100}]
        )
    assert verdict_of(10, root) == HOLDS
    assert "| random growth | 0.900 ± 0.000 | 0.820 ± 0.010 | 3 |" in table(
        ITEMS["distance-growth"], findings_of(root, "small")
    )


def test_a_network_that_learned_nothing_is_marked(root: Path) -> None:
    assert "†" not in table(ITEMS["stacked-lstm"], findings_of(root, "small"))
    Results(root, "small").keep(*made_up(Case("stacked-lstm", sparsity=0.9), 1, 171.0))
    shown = table(ITEMS["sparsity"], findings_of(root, "small"))
    assert "| stacked LSTM: S = 0.9 | 181.00 | 171.00 † | 1,000 | 1 |" in shown
    assert shown.endswith("† no better than word frequencies, with one seed at least: nothing was learned.")


def test_tables_have_the_papers_numbers_beside_ours(root: Path) -> None:
    lines = table(ITEMS["stacked-lstm"], findings_of(root, "small")).splitlines()
    assert lines[0] == "| run | paper, valid | paper, test | valid | test | weights | seeds |"
    assert "| S = 0.67: Selfish (SNT-ASGD) | 73.76 | 71.65 | 111.00 ± 1.00 | 101.00 ± 1.00 | 1,000 | 3 |" in lines
    assert "| S = 0.67: ISS (as first published) | 82.59 | 78.65 | - | - | - | 0 |" in lines
    gates = table(ITEMS["gates"], findings_of(root, "small"))
    assert "| rnn.weight_hh_l0 | 68.0 ± 0.0 | 60.0 ± 0.0 | 80.0 ± 0.0 | 64.0 ± 0.0 |" in gates
    large = table(ITEMS["large-weights"], findings_of(root, "small"))
    assert "| stacked LSTM: SNT-ASGD | 1.5 ± 0.0 | 2.7 ± 0.0 | 3 |" in large


def test_figures_are_lines_over_a_setting(root: Path) -> None:
    results = Results(root, "small")
    for sparsity in (0.5, 0.9):
        results.keep(*made_up(Case("stacked-lstm", sparsity=sparsity), 1, 100 * (1 + sparsity)))
    (line,) = outcomes(ITEMS["sparsity"], findings_of(root, "small"))
    assert line["label"] == "stacked LSTM"
    assert (line["values"], line["perplexities"], line["spreads"]) == ([0.5, 0.9], [150.0, 190.0], [0.0, 0.0])
    assert line["dense"] == pytest.approx(304 / 3)


def test_a_result_of_other_settings_is_none(root: Path) -> None:
    result, run = made_up(SELFISH, 1, 50.0)
    result.settings["epochs"] = 7
    Results(root, "small").keep(result, run)
    assert Results(root, "small").of(run) is None
    assert "101.50 ± 0.71" in table(ITEMS["gate-rules"], findings_of(root, "small"))


def test_a_damaged_result_is_named(root: Path) -> None:
    path = next(root.rglob("*.json"))
    path.write_text("{")
    with pytest.raises(UserError, match=re.escape(str(path))):
        Results(root, "small")


def test_documents_are_filled_in_between_their_markers(root: Path, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(
        "# Title\n<!-- results: small claims-short -->\noutdated\n<!-- end of results -->\nbetween\n"
        "<!-- results: small gate-rules -->\n<!-- end of results -->\nend\n"
    )
    assert render_documents(tmp_path, root) == [tmp_path / "README.md"]
    text = (tmp_path / "README.md").read_text()
    assert text.startswith("# Title\n<!-- results: small claims-short -->\n\n| ")
    assert "outdated" not in text
    assert "\nbetween\n" in text
    assert (
        "| 2 | It beats static sparse training | against static +10 ± 0.58 | holds | `reproduce stacked-lstm` |" in text
    )
    assert "undecided (0 of 3 seeds)" in text
    assert render_documents(tmp_path, root) == []


@pytest.mark.parametrize(
    "text", ["<!-- results: small gates -->\n", "<!-- results: small -->\n<!-- end of results -->"]
)
def test_a_marker_that_is_not_closed_or_whole_is_an_error(text: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not closed"):
        rendered(text, tmp_path)


def test_a_marker_of_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"unknown item 'gate' \(did you mean 'gates'\?\)"):
        rendered("<!-- results: small gate -->\n<!-- end of results -->", tmp_path)


def test_every_claim_has_a_line_before_anything_is_measured(tmp_path: Path) -> None:
    findings = findings_of(tmp_path, "small")
    assert len(short_table(findings).splitlines()) == 2 + 12
    table = claims_table(findings)
    assert all(f"| {number}. " in table for number in range(1, 13))


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_what_the_repository_shows_is_what_its_results_say(document: Path) -> None:
    text = (REPOSITORY / document).read_text()
    assert rendered(text, REPOSITORY / "results") == text, "run `selfish-rnn reproduce --render`"


def test_the_rule_is_in_the_documentation() -> None:
    said = " ".join((REPOSITORY / "docs" / "results.md").read_text().split())
    assert RULE in said
