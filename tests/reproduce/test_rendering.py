"""Tables, verdicts and documents from results."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
from reproduce_cases import made_up

from selfish_rnn.errors import UserError
from selfish_rnn.reproduce.case import Case
from selfish_rnn.reproduce.paper import ITEMS
from selfish_rnn.reproduce.paper.comparisons import PARETO
from selfish_rnn.reproduce.plan import pairs_of
from selfish_rnn.reproduce.rendering.documents import DOCUMENTS, figures_in, render_documents, rendered, summary
from selfish_rnn.reproduce.rendering.figures import (
    FIGURES,
    FOLDER,
    claim_points,
    is_current,
    outcomes,
    render_figure,
    sparsity_points,
)
from selfish_rnn.reproduce.rendering.tables import STALE, ResultView, averaging_start, dropout_of, table
from selfish_rnn.reproduce.rendering.verdicts import (
    FAILS,
    HOLDS,
    INCONCLUSIVE,
    NOT_RUN,
    RULE,
    claims_table,
    decisions,
    short_table,
)
from selfish_rnn.reproduce.results import Results
from selfish_rnn.reproduce.scales import SMALL

REPOSITORY = Path(__file__).parents[2]
PARETO_SERIES = {
    "epoch": [1, 2],
    "averaging": [False, True],
    "seconds": [60.0, 120.0],
    "valid_perplexity": [99.0, 90.0],
}
SELFISH, DENSE, STATIC = Case("stacked-lstm"), Case("stacked-lstm", "dense", "nt-asgd"), Case("stacked-lstm", "static")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three seeds of three runs: Selfish better than static with each, and than dense with two of them."""
    results = Results(tmp_path, "small")
    for case, tests in ((SELFISH, (100, 102, 101)), (DENSE, (101, 103, 100)), (STATIC, (110, 111, 112))):
        for seed, test in enumerate(tests, start=1):
            results.save(*made_up(case, seed, float(test)))
    return tmp_path


def verdict_of(number: int, root: Path) -> str:
    result = [
        item
        for item in decisions(ResultView.read(root, "small"))
        if (item.claim.number, item.network) == (number, "stacked-lstm")
    ]
    return result[0].verdict


def test_claims_are_decided_by_their_runs(root: Path) -> None:
    assert verdict_of(1, root) == INCONCLUSIVE
    assert verdict_of(2, root) == HOLDS
    assert verdict_of(9, root) == HOLDS
    assert verdict_of(12, root) == NOT_RUN


def test_a_claim_of_several_parts_waits_for_all_of_them(root: Path) -> None:
    results = Results(root, "small")
    for method in ("set", "rigl", "snfs"):
        for seed in (1, 2, 3):
            results.save(*made_up(Case("stacked-lstm", method), seed, 120.0 + seed))
    assert verdict_of(3, root) == INCONCLUSIVE
    for seed in (1, 2, 3):
        results.save(*made_up(Case("stacked-lstm", "gmp"), seed, 90.0 + seed))
    assert verdict_of(3, root) == FAILS


def test_distances_decide_their_claim(root: Path) -> None:
    results = Results(root, "small")
    for pair in pairs_of(ITEMS["distance-growth"], SMALL):
        results.save(*made_up(pair[0].case, pair[0].seed, 100.0))
        gradient = pair[0].case.method == "gradient-growth"
        results.save_distances(
            pair, [{"epoch": 5, "mean": 0.9}, {"epoch": 60, "mean": (0.6 if gradient else 0.8) + pair[0].seed / 100}]
        )
    assert verdict_of(10, root) == HOLDS
    assert "| random growth | 0.900 ± 0.000 | 0.820 ± 0.010 | 0.5 | 2 | 3 |" in table(
        ITEMS["distance-growth"], ResultView.read(root, "small")
    )


def test_a_network_that_learned_nothing_is_marked(root: Path) -> None:
    assert "†" not in table(ITEMS["stacked-lstm"], ResultView.read(root, "small"))
    Results(root, "small").save(*made_up(Case("stacked-lstm", sparsity=0.9), 1, 171.0))
    shown = table(ITEMS["sparsity"], ResultView.read(root, "small"))
    assert "| stacked LSTM: S = 0.9 | 181.00 | 171.00 † | 1,000 | 0.3 | 2 | 1 |" in shown
    assert "\n\n† no better than word frequencies for at least one seed: nothing was learned.\n\n" in shown


def test_tables_have_the_papers_numbers_beside_ours(root: Path) -> None:
    lines = table(ITEMS["stacked-lstm"], ResultView.read(root, "small")).splitlines()
    assert lines[0] == (
        "| run | paper, valid | paper, test | valid | test | weights | dropout | averaged from epoch | seeds |"
    )
    assert (
        "| S = 0.67: Selfish (SNT-ASGD) | 73.76 | 71.65 | 111.00 ± 1.00 | 101.00 ± 1.00 | 1,000 | 0.5 | 2 | 3 |"
        in lines
    )
    gates = table(ITEMS["gates"], ResultView.read(root, "small"))
    assert "| rnn.weight_hh_l0 | 68.0 ± 0.0 | 60.0 ± 0.0 | 80.0 ± 0.0 | 64.0 ± 0.0 |" in gates
    large = table(ITEMS["large-weights"], ResultView.read(root, "small"))
    assert "| stacked LSTM: SNT-ASGD | 1.5 ± 0.0 | 2.7 ± 0.0 | 0.5 | 2 | 3 |" in large


def test_candidates_that_no_tuning_asked_for_are_not_missing(root: Path) -> None:
    grid = ITEMS["tuning"].rows
    case = grid[4].case
    assert case is not None
    Results(root, "small").save(*made_up(case, 11, 100.0))
    line = table(ITEMS["tuning"], ResultView.read(root, "small")).splitlines()[-1]
    first = [row.label for row in grid if row.group == "dense" and not row.on_demand and row.case != case]
    assert line.startswith(f"*Not run:* dense ({', '.join(first)}); all of: small-dense; sparse-0.5; ")


def test_rows_without_runs_are_one_line(root: Path) -> None:
    for item in ITEMS.values():
        shown = table(item, ResultView.read(root, "small"))
        assert not re.search(r"^\|.*\| 0 \|$", shown, re.MULTILINE)
        assert "| - | - | - |" not in shown
    shown = table(ITEMS["stacked-lstm"], ResultView.read(root, "small"))
    missing = shown.splitlines()[-1]
    assert missing.startswith("*Not run:* S = 0.67 (Small dense (NT-ASGD), Static ER (SNT-ASGD), ")
    assert missing.endswith("; all of: S = 0.62; S = 0.9 (not in the paper).")
    assert "as first published" not in missing  # only the paper has these


@pytest.mark.parametrize(
    ("restarts", "best", "start"), [([], 6, "3"), ([4], 6, "5"), ([4], 4, "3"), ([2, 4, 5], 6, "6"), ([], 2, "-")]
)
def test_averages_start_with_the_last_restart_up_to_the_best_epoch(restarts: list[int], best: int, start: str) -> None:
    result, _ = made_up(SELFISH, 1, 100.0)
    result.settings["restart_at"] = restarts
    result.summary["best_epoch"] = best
    result.series.update(
        epoch=[1, 2, 3, 4, 5, 6], averaging=[False, False, True, True, True, True], active_weights=[9, 8, 7, 6, 5, 5]
    )
    assert averaging_start(result) == (start, start == "3")


def test_numbers_of_averages_that_start_before_pruning_ends_are_marked(root: Path) -> None:
    series = {"epoch": [1, 2, 3], "averaging": [False, True, True], "active_weights": [2000, 1500, 1000]}
    for seed in (1, 2, 3):
        results = Results(root, "small")
        results.save(*made_up(Case("stacked-lstm", "gmp"), seed, 120.0 + seed, series=series))
    view = ResultView.read(root, "small")
    row = next(line for line in table(ITEMS["stacked-lstm"], view).splitlines() if "GMP (SNT" in line)
    assert f"| 2 {STALE} | 3 |" in row
    assert f"against GMP {STALE}" in claims_table(view)
    assert claims_table(view).count(f"\n{STALE} averaging starts before pruning ends") == 1
    labels = [line["label"] for panel in sparsity_points(view)["panels"] for line in panel["lines"]]
    assert "Selfish" in labels
    assert "GMP" not in labels


def test_all_kinds_of_dropout_are_shown() -> None:
    result, _ = made_up(Case("rhn"), 1, 100.0)
    assert dropout_of(result) == "0.2/0.65/0.25/0.65"


def test_both_rules_have_their_column(root: Path) -> None:
    shown = claims_table(ResultView.read(root, "small"), first_rule=True)
    assert "| verdict | by the first rule | reproduced by |" in shown
    assert "| inconclusive (5 seeds to decide) | undecided | `reproduce stacked-lstm` |" in shown
    assert "| holds | holds | `reproduce stacked-lstm` |" in shown


def test_points_of_the_claims_are_their_evidence(root: Path) -> None:
    points = claim_points(ResultView.read(root, "small"))["panels"]
    first, second = points["difference of test perplexity"][:2]
    assert (first["label"], first["verdict"], first["seeds"]) == ("1. against dense", INCONCLUSIVE, [1, 2, 3])
    assert (second["mean"], second["verdict"]) == (10.0, HOLDS)
    assert second["low"] < 10 < second["high"]
    assert [row["label"] for row in points["difference of fractions"]] == ["9. density of the others less theirs"]
    json.dumps(points, allow_nan=False)


def test_one_seed_has_no_interval(tmp_path: Path) -> None:
    for case, test in ((SELFISH, 100.0), (STATIC, 110.0)):
        Results(tmp_path, "small").save(*made_up(case, 1, test))
    row = claim_points(ResultView.read(tmp_path, "small"))["panels"]["difference of test perplexity"][0]
    assert (row["low"], row["high"], row["verdict"]) == (None, None, INCONCLUSIVE)


def test_quality_is_relative_to_the_dense_network_of_the_same_seed(root: Path) -> None:
    (panel,) = sparsity_points(ResultView.read(root, "small"))["panels"]
    selfish = next(line for line in panel["lines"] if line["label"] == "Selfish")
    ratios = [100 / 101, 102 / 103, 101 / 100]
    assert selfish["sparsities"] == [0.67]
    assert selfish["values"] == [round(math.fsum(ratios) / 3, 4)]
    assert (selfish["low"], selfish["high"]) == ([round(min(ratios), 4)], [round(max(ratios), 4)])


def write_benchmarks(root: Path) -> None:
    """Write the benchmark files that the figure reads, with one sparsity."""
    times = {"ratio": 7.46, "lowest": 6.0, "highest": 8.0}
    step, word = ({"kind": kind, "sparsity": 0.9, "engines": {"packed": times}} for kind in ("step", "inference"))
    memory = {
        "kind": "memory",
        "sparsity": 0.9,
        "engines": {"packed": {"training": 500.0}, "dense": {"training": 1000.0}},
    }
    int8 = {"kind": "inference", "sparsity": 0.9, "engines": {"packed-int8": {**times, "ratio": 13.0}}}
    for name, rows in (("lstm-1500", [step, word, memory]), ("lstm-1500-inference", [int8])):
        folder = root / "bench" / name
        folder.mkdir(parents=True)
        (folder / "bench.json").write_text(json.dumps({"rows": rows}))
    (root / "int8").mkdir()
    (root / "int8" / "next-word-1500.txt").write_text(
        "S = 0.9 packed int8, one call, avx2 0.2 0.1 8.64 [6.51, 9.57] 2.81\n"
        "S = 0.9 packed int8, one call, avx512-vbmi 0.1 0.1 13.80 [12.03, 15.69] 2.44\n"
    )


def test_speed_and_memory_come_from_the_benchmarks(root: Path) -> None:
    write_benchmarks(root)
    quality, speed, memory = sparsity_points(ResultView.read(root, "small"))["panels"]
    assert [line["label"] for line in quality["lines"]] == ["Selfish", "static"]
    assert [(line["values"], line["low"], line["high"]) for line in speed["lines"]] == [
        ([7.46], [6.0], [8.0]),
        ([7.46], [6.0], [8.0]),
        ([13.0], [6.0], [8.0]),
    ]
    assert [(line["label"], line["values"]) for line in memory["lines"]] == [
        ("training", [0.5]),
        ("int8 weights", [0.244]),
    ]
    for panel in (quality, speed, memory):
        assert all((root / line["file"]).exists() for line in panel["lines"])


def test_the_summary_says_what_is_known(root: Path, tmp_path: Path) -> None:
    unknown = summary(ResultView.read(tmp_path / "empty", "small")).splitlines()
    assert unknown == [
        "- **Quality.** Test perplexity of Selfish relative to the dense network is unknown at scale `small`: no run "
        "is finished.",
        "- **Claims.** None of the paper's 12 claims has been run in this edition yet.",
    ]
    write_benchmarks(root)
    speed, memory, quality, claims = summary(ResultView.read(root, "small")).splitlines()
    assert "7.5 times as fast" in speed
    assert "13 times as fast in int8" in speed
    assert "50 % of the dense network's memory" in memory
    assert "24 % of the bytes of dense int8 ones" in memory
    assert quality.endswith(": -0.3 % at sparsity 0.67.")
    assert claims.endswith(" 2 hold, 2 are inconclusive, 8 are not run.")


def test_sections_of_a_document_link_to_its_figures(root: Path) -> None:
    text = "<!-- results: small figure-claims -->\n<!-- end of results -->\n"
    assert 'src="docs/figures/claims-small.svg"' in rendered(text, root, Path("README.md"))
    assert 'src="figures/claims-small.svg"' in rendered(text, root, Path("docs/results.md"))
    assert figures_in(text) == [("small", "figure-claims")]


def test_all_tables_of_a_scale_have_headings(root: Path) -> None:
    text = rendered("<!-- results: small tables -->\n<!-- end of results -->\n", root)
    assert "\n### stacked-lstm\n\nStacked LSTM on Penn Treebank (Table 2, left)." in text
    assert "\n### rhn\n" not in text
    assert "*No run is finished of* `rhn`, " in text


@pytest.mark.slow
@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_drawn_again_when_its_points_change(name: str, root: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    folder = tmp_path / "figures"
    large = PARETO.rows[0].case
    assert large is not None
    Results(root, "small").save(*made_up(large, 1, 80.0, series=PARETO_SERIES))
    written = render_figure(name, ResultView.read(root, "small"), folder)
    stem = name.removeprefix("figure-")
    assert {path.name for path in written} == {f"{stem}-small.json", f"{stem}-small.svg", f"{stem}-small-dark.svg"}
    assert render_figure(name, ResultView.read(root, "small"), folder) == []
    before = (folder / f"{stem}-small.svg").read_bytes()
    Results(root, "small").save(*made_up(SELFISH, 1, 90.0))
    Results(root, "small").save(*made_up(large, 1, 79.0, series=PARETO_SERIES))
    assert not is_current(name, ResultView.read(root, "small"), folder)
    assert render_figure(name, ResultView.read(root, "small"), folder) != []
    assert (folder / f"{stem}-small.svg").read_bytes() != before
    (folder / f"{stem}-small.svg").write_bytes(before)  # an old picture beside new points
    assert not is_current(name, ResultView.read(root, "small"), folder)


def test_nothing_is_drawn_without_results(tmp_path: Path) -> None:
    for name in FIGURES:
        assert render_figure(name, ResultView.read(tmp_path, "small"), tmp_path / "figures") == []
    assert not (tmp_path / "figures").exists()


def test_figures_are_lines_over_a_setting(root: Path) -> None:
    results = Results(root, "small")
    for sparsity in (0.5, 0.9):
        results.save(*made_up(Case("stacked-lstm", sparsity=sparsity), 1, 100 * (1 + sparsity)))
    (line,) = outcomes(ITEMS["sparsity"], ResultView.read(root, "small"))
    assert line["label"] == "stacked LSTM"
    assert (line["values"], line["perplexities"], line["spreads"]) == ([0.5, 0.9], [150.0, 190.0], [0.0, 0.0])
    assert line["dense"] == pytest.approx(304 / 3)


def test_a_result_of_other_settings_is_none(root: Path) -> None:
    result, run = made_up(SELFISH, 1, 50.0)
    result.settings["epochs"] = 59
    Results(root, "small").save(result, run)
    assert Results(root, "small").get(run) is None
    assert "101.50 ± 0.71" in table(ITEMS["gate-rules"], ResultView.read(root, "small"))


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
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "results.md").write_text("# Results\n")
    assert render_documents(tmp_path, root) == [tmp_path / "README.md"]
    text = (tmp_path / "README.md").read_text()
    assert text.startswith("# Title\n<!-- results: small claims-short -->\n\n| ")
    assert "outdated" not in text
    assert "\nbetween\n" in text
    assert (
        "| 2 | It beats static sparse training | against static +10 [+8.31, +11.7] | holds | `reproduce stacked-lstm` |"
        in text
    )
    assert "*Not run:* 3. It beats SET" in text
    assert render_documents(tmp_path, root) == []


def test_documents_are_rendered_in_the_repository_only(root: Path, tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"has no README\.md and no docs/results\.md: .* root folder of the selfish-rnn"
    ):
        render_documents(tmp_path / "elsewhere", root)


@pytest.mark.parametrize(
    "text", ["<!-- results: small gates -->\n", "<!-- results: small -->\n<!-- end of results -->"]
)
def test_a_marker_that_is_not_closed_or_whole_is_an_error(text: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not closed"):
        rendered(text, tmp_path)


def test_a_marker_of_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"unknown item 'gate' \(did you mean 'gates'\?\)"):
        rendered("<!-- results: small gate -->\n<!-- end of results -->", tmp_path)


def test_every_claim_is_named_before_anything_is_measured(tmp_path: Path) -> None:
    view = ResultView.read(tmp_path, "small")
    for text in (short_table(view), claims_table(view)):
        assert text.startswith("*Not run:* 1. ")
        assert all(f" {number}. " in text for number in range(1, 13))


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_what_the_repository_shows_is_what_its_results_say(document: Path) -> None:
    text = (REPOSITORY / document).read_text()
    assert rendered(text, REPOSITORY / "results", document) == text, "run `selfish-rnn reproduce --render`"


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_figures_of_the_repository_show_what_its_results_say(document: Path) -> None:
    for scale, name in figures_in((REPOSITORY / document).read_text()):
        view = ResultView.read(REPOSITORY / "results", scale)
        assert is_current(name, view, REPOSITORY / FOLDER), f"{name}: run `selfish-rnn reproduce --render`"


def test_the_rule_is_in_the_documentation() -> None:
    said = " ".join((REPOSITORY / "docs" / "results.md").read_text().split())
    assert RULE in said
