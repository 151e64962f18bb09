"""The page in a real browser; left out where there is none."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from browser import Page, browser, find_chromium
from made_up import GATES, record

from selfish_rnn.analysis.records import RunRecord
from selfish_rnn.analysis.report import write_report
from selfish_rnn.topology import GateLayout, Topology

CHROMIUM = find_chromium()
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="there is no browser: install chromium to test the report in one"
)
HOSTILE = "<script>document.title = 'taken'</script><img src=x onerror=alert(1)>\"'"


class WithTopologies(RunRecord):
    """A run that still has its model."""

    def topologies(self) -> dict[str, Topology]:
        generator = torch.Generator().manual_seed(1)
        return {
            "rnn.weight_ih_l0": Topology.random((160, 40), GateLayout.even(GATES, 160), 2112, generator),
            "decoder.weight": Topology.random((90, 40), GateLayout.single(90), 1188, generator),
        }


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = [
        record(f"{method}-seed{seed}", test=40.0 + index + 5 * seed, scale=1 + 0.1 * index, method=method, seed=seed)
        for index, method in enumerate(("selfish", "rigl", "static"))
        for seed in (1, 2)
    ]
    fields = {field.name: getattr(runs[0], field.name) for field in dataclasses.fields(RunRecord)}
    runs[0] = WithTopologies(**fields)
    runs[1] = dataclasses.replace(runs[1], name=HOSTILE)
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(runs, path)
    return path


@pytest.fixture(scope="module")
def tab() -> Iterator[Page]:
    assert CHROMIUM is not None
    with browser(CHROMIUM) as page:
        yield page


def shown(tab: Page) -> list[str]:
    lines: list[str] = tab.evaluate(
        "[...document.querySelectorAll('#chart [data-line]')].map((line) => line.dataset.line)"
    )
    return lines


def test_it_loads_without_complaint_and_nothing_in_it_runs(tab: Page, report: Path) -> None:
    tab.open(report)
    assert tab.evaluate("document.title") == "stacked-lstm on python-docs"
    assert tab.evaluate("document.querySelectorAll('nav a').length") == 8
    assert tab.evaluate("document.querySelectorAll('img').length") == 0
    assert HOSTILE in tab.evaluate("document.querySelector('#runs table').textContent")
    assert tab.problems == []


def test_a_problem_would_be_seen(tab: Page, tmp_path: Path) -> None:
    (tmp_path / "broken.html").write_text("<!doctype html><script>nobody.knows()</script>")
    tab.open(tmp_path / "broken.html")
    assert any("nobody" in problem for problem in tab.problems)
    tab.problems.clear()


def test_curves_are_switched_off_and_on(tab: Page, report: Path) -> None:
    tab.open(report)
    assert shown(tab) == ["group 0", "group 1", "group 2"]
    tab.evaluate("document.querySelectorAll('#legend button')[1].click()")
    assert shown(tab) == ["group 0", "group 2"]
    assert tab.evaluate("document.querySelectorAll('#legend button')[1].getAttribute('aria-pressed')") == "false"
    tab.evaluate("document.querySelectorAll('#legend button')[1].click()")
    assert len(shown(tab)) == 3
    tab.evaluate("document.querySelectorAll('#legend button').forEach((button) => button.click())")
    assert "Nothing is switched on" in tab.evaluate("document.getElementById('chart').textContent")
    assert tab.problems == []


def test_seeds_are_shown_one_by_one_and_other_measures_too(tab: Page, report: Path) -> None:
    tab.open(report)
    tab.evaluate("document.getElementById('mean').click()")
    assert f"run {HOSTILE}" in shown(tab)
    assert len(shown(tab)) == 6
    choose = "for (const [id, value] of {pairs}) {{ const select = document.getElementById(id); select.value = value;" \
             " select.dispatchEvent(new Event('change')); }}"  # fmt: skip
    for measure in ("train", "above", "sparsity", "prune", "rate", "valid"):
        for part in ("0", "0.2", "0.5"):
            tab.evaluate(choose.format(pairs=[["measure", measure], ["axis", "minutes"], ["part", part]]))
            assert len(shown(tab)) == 6
            assert "NaN" not in tab.evaluate("document.getElementById('chart').innerHTML")
    assert tab.problems == []


def test_pointing_at_the_curves_reads_them(tab: Page, report: Path) -> None:
    tab.open(report)
    tab.evaluate("document.getElementById('chart').scrollIntoView({ block: 'center' })")
    place = tab.evaluate("JSON.parse(JSON.stringify(document.querySelector('#chart svg').getBoundingClientRect()))")
    tab.call("Input.dispatchMouseEvent", type="mouseMoved", x=place["right"] - 14, y=place["top"] + 60)
    words = tab.evaluate("document.querySelector('.tip').innerText")
    assert words.split("\n")[0] == "epoch 12"
    assert [line for line in words.split("\n") if line in ("selfish", "rigl", "static")] == [
        "selfish",
        "rigl",
        "static",
    ]
    tab.evaluate("document.querySelector('#chart svg').focus()")
    tab.call("Input.dispatchKeyEvent", type="keyDown", key="ArrowLeft", code="ArrowLeft", windowsVirtualKeyCode=37)
    assert tab.evaluate("document.querySelector('.tip').innerText").startswith("epoch 11")


def test_a_table_sorts_both_ways_by_its_numbers(tab: Page, report: Path) -> None:
    tab.open(report)
    column = "[...document.querySelectorAll('#runs tbody tr')].map((row) => Number(row.cells[3].dataset.value))"
    before = tab.evaluate(column)
    heading = "document.querySelectorAll('#runs th')[3]"
    tab.evaluate(f"{heading}.querySelector('button').click()")
    assert tab.evaluate(column) == sorted(before) != before
    assert tab.evaluate(f"{heading}.getAttribute('aria-sort')") == "ascending"
    tab.evaluate(f"{heading}.querySelector('button').click()")
    assert tab.evaluate(column) == sorted(before, reverse=True)


@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_needs_no_scrolling_sideways(tab: Page, report: Path, dark: bool) -> None:
    tab.open(report, width=390, height=844, dark=dark)
    assert tab.evaluate("innerWidth") == 390
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    tab.evaluate("scrollTo(500, 0)")
    assert tab.evaluate("scrollX") == 0
    assert tab.problems == []


def test_a_phone_shows_all_gates_of_a_matrix(tab: Page, report: Path) -> None:
    tab.open(report, width=390, height=844)
    hidden = "[...document.querySelectorAll('.matrices .scroll')].filter((box) => box.scrollWidth > box.clientWidth)"
    assert tab.evaluate(f"{hidden}.length") == 0


def test_light_and_dark_differ(tab: Page, report: Path) -> None:
    colours = []
    for dark in (False, True):
        tab.open(report, dark=dark)
        colours.append(tab.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert colours == ["rgb(255, 255, 255)", "rgb(20, 23, 27)"]


def test_topologies_are_painted(tab: Page, report: Path) -> None:
    tab.open(report)
    assert tab.evaluate("document.querySelectorAll('#topologies canvas').length") == 5
    pixels = (
        "new Set(document.querySelector('#topologies canvas').getContext('2d').getImageData(0, 0, 24, 24).data).size"
    )
    assert tab.evaluate(pixels) > 10
    assert "decoder" in tab.evaluate("document.getElementById('topologies').textContent")


def test_it_prints_with_everything_open_and_in_light(tab: Page, report: Path) -> None:
    tab.open(report, dark=True)
    answer = tab.call("Page.printToPDF", printBackground=True)
    assert len(answer["data"]) > 10_000
    assert tab.evaluate("[...document.querySelectorAll('details')].every((details) => details.open)")
    tab.call("Emulation.setEmulatedMedia", media="print")
    assert tab.evaluate("getComputedStyle(document.getElementById('controls')).display") == "none"
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    tab.call("Emulation.setEmulatedMedia", media="")
