"""The page says who won and by how much, from what settings, and nothing in it can run by itself."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from made_up import GATES, record, settings, write_run
from typer.testing import CliRunner

from selfish_rnn.analysis.records import RunRecord, read_run
from selfish_rnn.analysis.report import report_html, write_report
from selfish_rnn.analysis.report.comparison import command_of, compare, outcome
from selfish_rnn.analysis.report.markup import duration, number, tag
from selfish_rnn.analysis.report.one_run import SAMPLE_WORDS
from selfish_rnn.analysis.report.sections import topology_pictures
from selfish_rnn.analysis.training_flops import run_flops
from selfish_rnn.cli.analysis import report
from selfish_rnn.errors import UserError
from selfish_rnn.experiment.presets import build_experiment, read_preset, to_yaml, with_assignments
from selfish_rnn.system import processor
from selfish_rnn.topology import GateLayout, Topology
from tiny_runs import tiny_run

HOSTILE = "<script>alert(1)</script> \"quoted\" & 'single' </title>"


def six_runs() -> list[RunRecord]:
    tests = {"selfish": (42.0, 50.0), "rigl": (43.0, 52.0), "static": (45.0, 51.0)}
    return [
        record(f"{method}-seed{seed}", test=test, method=method, seed=seed)
        for method, pair in tests.items()
        for seed, test in zip((1, 2), pair, strict=True)
    ]


class Reader(HTMLParser):
    """The elements of a page, the text of its sections and its data."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: dict[str, str] = {}
        self.scripts: list[str] = []
        self._section = "page"
        self._open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        result = dict(attrs)
        self.tags.append((tag, result))
        self._open.append(tag)
        if tag == "section":
            self._section = str(result["id"])
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass
        if tag == "section":
            self._section = "page"

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "script":
            self.scripts[-1] += data
        elif self._open and self._open[-1] != "style":
            self.words[self._section] = self.words.get(self._section, "") + " " + data

    def data(self) -> dict[str, Any]:
        result: dict[str, Any] = json.loads(self.scripts[0])
        return result


def test_runs_that_differ_only_in_their_seed_belong_together() -> None:
    (comparison,) = compare(six_runs())
    assert [group.label for group in comparison.groups] == ["selfish", "rigl", "static"]
    assert outcome(comparison.groups[0]) == "46.00 ± 5.66 (2 seeds)"
    assert [run.seed for run in comparison.groups[0].runs] == [1, 2]


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ((42.0, 50.0), (43.0, 52.0), "lower on each of the 2 common seeds, by 1.00 to 2.00"),
        ((42.0, 50.0), (41.0, 55.0), "lower on 1 of the 2 common seeds, so more seeds may reverse the order"),
        ((42.0,), (43.0,), "With one seed, the share of chance is unknown"),
    ],
)
def test_the_verdict_weighs_the_seeds(first: tuple[float, ...], second: tuple[float, ...], words: str) -> None:
    runs = [record(f"a{seed}", test=test, seed=seed) for seed, test in enumerate(first)]
    runs += [record(f"b{seed}", test=test, seed=seed, method="rigl") for seed, test in enumerate(second)]
    verdict = compare(runs)[0].verdict()
    assert verdict.startswith("selfish has the lowest test perplexity")
    assert words in verdict


@pytest.mark.parametrize(("gap", "words"), [(0.5, "less than the spread"), (9.0, "more than the spread")])
def test_seeds_that_are_not_shared_are_weighed_by_their_spread(gap: float, words: str) -> None:
    runs = [record(f"a{seed}", test=40.0 + seed, seed=seed) for seed in (1, 2, 3)]
    runs += [record(f"b{seed}", test=40.0 + gap + seed - 10, seed=seed, method="rigl") for seed in (11, 12, 13)]
    assert words in compare(runs)[0].verdict()


def test_texts_that_differ_are_not_compared() -> None:
    result = compare([record("a", test=42.0), record("b", test=300.0, corpus="other", method="rigl")])
    assert [len(comparison.groups) for comparison in result] == [1, 1]
    candidate = dataclasses.replace(
        record("b", test=300.0, method="rigl"),
        corpus={"name": "ptb", "sha256": "other", "tokens": {"train": 80000}},
    )
    page = Reader(report_html([record("a", test=42.0), candidate]))
    assert "different texts" in page.words["outcome"]
    assert "On ptb, 80,000 training tokens" in page.words["outcome"]


def test_a_run_without_checksum_belongs_to_the_only_texts_of_its_name() -> None:
    without = dataclasses.replace(record("b", method="rigl"), corpus={})
    assert len(compare([record("a"), without])) == 1


def test_a_setting_that_only_some_groups_need_is_named_only_there() -> None:
    runs = [record("a", method="rigl"), record("b", sparsity=0.8), record("c", sparsity=0.9)]
    labels = {run.name: group.label for group in compare(runs)[0].groups for run in group.runs}
    assert labels == {"a": "rigl", "b": "selfish, sparsity 0.8", "c": "selfish, sparsity 0.9"}


def test_the_page_tells_what_a_reader_asks() -> None:
    page = Reader(report_html(six_runs()))
    assert "46.00 ± 5.66" in page.words["outcome"]
    assert "1.50 (3.2 %) below rigl" in page.words["outcome"]
    for words in ("method.name", "gates-equal", "gradient"):
        assert words in page.words["settings"]
    assert "sparsity" not in page.words["settings"].split("with the same value")[0]
    assert "rigl-seed2" in page.words["runs"]
    assert "6:00" in page.words["runs"]  # twelve epochs of half a minute
    assert "300" in page.words["costs"]
    assert "FLOPs" not in page.words["costs"]
    assert all(gate in page.words["gates"] for gate in GATES)
    assert "0.210" in page.words["gates"]
    assert "contain no model" in page.words["topology"]
    assert page.words["commands"].count("selfish-rnn train quickstart") == 6


def test_the_data_of_the_curves_are_those_of_the_runs() -> None:
    data = Reader(report_html([record("a", restart_at=[5]), record("b", method="rigl", averaging_from=None)])).data()
    first, second = data["runs"]
    assert first["epoch"] == list(range(1, 13))
    assert first["valid"][0] == 180.0
    assert first["minutes"][1] == 1.0
    assert (first["averaging"], first["restarts"], second["averaging"]) == ([8], [5], [])
    assert [run["group"] for run in data["runs"]] == [0, 1]


def test_what_json_cannot_say_is_left_out() -> None:
    run = record("a")
    broken = [dataclasses.replace(run.epochs[0], valid_perplexity=float("inf")), *run.epochs[1:]]
    data = Reader(report_html([dataclasses.replace(run, epochs=broken)])).data()
    assert data["runs"][0]["valid"][0] is None


def test_an_unfinished_run_is_named_and_not_ranked() -> None:
    page = Reader(report_html([*six_runs(), record("late", test=None, count=4, method="set")]))
    assert "left out of the ranking: late (epoch 4 of 15)" in page.words["outcome"]
    assert "not finished" in page.words["outcome"]
    several = Reader(report_html([record("late", test=None), record("later", test=None, seed=2)]))
    assert "No run is finished yet." in several.words["outcome"]
    alone = Reader(report_html([record("late", test=None)]))
    assert "The run is not finished: epoch 12 of 15." in alone.words["outcome"]
    assert "selfish-rnn resume late" in alone.words["next"]


def test_it_is_said_when_averaging_started_only_in_some() -> None:
    page = Reader(report_html([record("a"), record("b", seed=2, averaging_from=None)]))
    assert "Averaging never started in b, but it did in 1 other run." in page.words["outcome"]


def test_one_run_has_a_form_of_its_own(texts: Path, tmp_path: Path) -> None:
    run = tiny_run(texts, tmp_path / "mine", sparsity=0.5, epochs=2, threads=1)
    summary = run.train()
    text = report_html([read_run(tmp_path / "mine")])
    page = Reader(text)
    assert [attributes["id"] for name, attributes in page.tags if name == "section"] == [
        "outcome", "sample", "curves", "gates", "topology", "settings", "next",
    ]  # fmt: skip
    assert "run mine, finished; method selfish, seed" in page.words["page"]
    for words in (
        "unigram perplexity",
        "export, int8",
        "training FLOPs",
        "(sparsity 50.0 %)",
        f"{processor()}, 1 thread, ",
    ):
        assert words in page.words["outcome"]
    assert f"{summary['test_perplexity']:,.2f}" in page.words["outcome"]
    assert len(page.words["sample"].split()) > SAMPLE_WORDS / 4  # the others end sentences
    assert "\n\n" not in page.words["sample"]
    for gate in ("input", "forget", "candidate", "output", "embedding."):
        assert gate in page.words["gates"]
    assert f"selfish-rnn generate {tmp_path / 'mine'} --prompt 'the'" in page.words["next"]
    assert "sparsity=0.75" in page.words["next"]
    assert page.data()["runs"][0]["unigram"] == pytest.approx(summary["unigram_perplexity"], rel=1e-5)
    assert report_html([read_run(tmp_path / "mine")]) == text


def test_one_run_without_its_model_has_no_sample() -> None:
    page = Reader(report_html([record("a")]))
    assert "sample" not in page.words
    assert "export" not in page.words["outcome"]
    assert "contain no model" in page.words["topology"]


def test_the_machine_is_named_once_or_for_every_setting() -> None:
    def on(run: RunRecord, name: str, threads: int) -> RunRecord:
        return dataclasses.replace(run, summary={**(run.summary or {}), "processor": name, "threads": threads})

    runs = [record("a"), record("b", method="rigl")]
    page = Reader(report_html([on(run, "EPYC", 1) for run in runs]))
    assert "Machine: EPYC, 1 thread." in page.words["costs"]
    page = Reader(report_html([on(runs[0], "EPYC", 1), on(runs[1], "M4", 8)]))
    assert "machine" in page.words["costs"]
    assert "M4, 8 threads" in page.words["costs"]


def test_operations_are_shown_where_they_are_known(texts: Path, tmp_path: Path) -> None:
    run = tiny_run(texts, tmp_path / "run", sparsity=0.5, epochs=2)
    run.train()
    unlike = dataclasses.replace(read_run(tmp_path / "run"), name="unlike", path=None)
    page = Reader(report_html([read_run(tmp_path / "run"), unlike]))
    for words in ("training FLOPs", f"{run_flops(run).training:.3g}", "0.50"):
        assert words in page.words["costs"]
    assert "FLOPs" not in Reader(report_html(six_runs())).words["costs"]


def test_hostile_names_stay_text_everywhere() -> None:
    hostile = [
        dataclasses.replace(run, name=f"{HOSTILE}{index}", corpus={"name": HOSTILE, "sha256": "x"})
        for index, run in enumerate(six_runs())
    ]
    hostile[0] = dataclasses.replace(hostile[0], settings={**hostile[0].settings, "corpus": HOSTILE})
    names = {HOSTILE: {"<b>": 0.3, "c": 0.2, "all": 0.3}}
    hostile = [
        dataclasses.replace(run, epochs=[dataclasses.replace(epoch, density=names) for epoch in run.epochs])
        for run in hostile
    ]
    text = report_html(hostile, title=HOSTILE)
    page, plain = Reader(text), Reader(report_html(six_runs()))
    assert len(page.scripts) == len(plain.scripts) == 2
    assert "<script>alert" not in text
    assert page.scripts[1] == plain.scripts[1]
    assert "b" not in {name for name, _ in page.tags}
    assert not [key for _, attributes in page.tags for key in attributes if key.startswith("on")]
    assert HOSTILE in page.words["page"]
    assert page.data()["runs"][0]["name"] == f"{HOSTILE}0"


def test_the_page_asks_for_nothing() -> None:
    text = report_html(six_runs())
    page = Reader(text)
    policies = [attributes["content"] for name, attributes in page.tags if name == "meta" and "content" in attributes]
    assert any("default-src 'none'" in str(policy) for policy in policies)
    assert not {name for name, _ in page.tags} & {"link", "img", "iframe", "object", "base", "form"}
    assert not [attributes for _, attributes in page.tags if "src" in attributes]
    assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", text)
    assert "url(" not in text
    assert "@import" not in text


def test_the_same_runs_give_the_same_page() -> None:
    assert report_html(six_runs()) == report_html(six_runs())


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"method": "rigl", "seed": 7, "sparsity": 0.8},
        {"optimizer": "adam", "optimizer.drop": {"factor": 2.0, "patience": 2}},
        {"restart_at": [3, 5], "corpus": "my texts/today's", "clip": None},
        {"model.hidden": 64, "optimizer.lr": 1e-5},
    ],
)
def test_the_command_gives_exactly_the_settings_of_the_run(changes: dict[str, Any]) -> None:
    run = RunRecord("my run", settings(**changes), record().epochs)
    words = shlex.split(command_of(run))
    assert words[:2] == ["selfish-rnn", "train"]
    assert words[-2:] == ["--run", "my run"]
    preset, *assignments = words[2:-2]
    experiment = build_experiment(with_assignments(read_preset(preset)[0], assignments), "test")
    assert yaml.safe_load(to_yaml(experiment)) == run.settings


def test_settings_this_version_does_not_know_are_named_by_their_file() -> None:
    run = RunRecord("old run", {**settings(), "forgotten": 1}, record().epochs)
    assert command_of(run) == "selfish-rnn train --config 'old run'/config.yaml --run 'old run'-again"


def test_topologies_become_pictures() -> None:
    topology = Topology.random((40, 30), GateLayout.even(GATES, 40), 400, torch.Generator().manual_seed(1))
    (matrix,) = topology_pictures(record("a"), {"rnn.weight_ih_l0": topology})["matrices"]
    assert (matrix["short"], [gate["name"] for gate in matrix["gates"]]) == ("ih1", list(GATES))
    assert (matrix["gates"][0]["rows"], matrix["gates"][0]["columns"]) == (10, 24)
    assert sum(matrix["received"]["gates"][0]) == pytest.approx(1, abs=1e-3)
    assert sum(matrix["sent"]["random"]) == pytest.approx(1, abs=1e-2)


def test_numbers_are_written_as_people_read_them() -> None:
    assert (duration(74.4).content, duration(3600 + 120 + 3).content) == ("1:14", "1:02:03")
    assert (number(1234.567).content, number(None).content) == ("1,234.57", "–")  # noqa: RUF001
    assert (
        tag("p", "a < b", tag("b", "c"), class_="x", data_value=3) == '<p class="x" data-value="3">a &lt; b<b>c</b></p>'
    )


def test_folders_of_the_same_name_are_told_apart_by_the_one_above(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / above / "run", record(seed=seed)) for above, seed in (("a", 1), ("b", 2))]
    outcome = run_command(*folders, out=tmp_path / "new" / "report.html")
    assert outcome.exit_code == 0, outcome.output
    assert "2 runs" in outcome.output
    page = Reader((tmp_path / "new" / "report.html").read_text())
    assert [run["name"] for run in page.data()["runs"]] == ["a/run", "b/run"]


def test_a_run_that_is_named_twice_is_shown_once(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", record())
    outcome = run_command(folder, tmp_path, folder, out=tmp_path / "report.html")
    assert outcome.exit_code == 0, outcome.output
    assert "1 run," in outcome.output
    with pytest.raises(UserError, match="give each run once"):
        write_report([read_run(folder), read_run(folder)], tmp_path / "report.html")


def test_a_report_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot write"):
        write_report(six_runs(), tmp_path)
    with pytest.raises(UserError, match="at least one run"):
        write_report([], tmp_path / "report.html")


def run_command(*folders: Path, out: Path) -> Any:
    import typer

    app = typer.Typer()
    app.command()(report)
    return CliRunner().invoke(app, [*map(str, folders), "--out", str(out)])
