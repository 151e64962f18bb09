"""What scripts wrote into the documentation is what they would write today, and what it names exists."""

from __future__ import annotations

import importlib
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

import selfish_rnn
from selfish_rnn.reproduce.paper import ITEMS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.mark.usefixtures("tables_as_before")
def test_the_configuration_page_is_up_to_date() -> None:
    script = runpy.run_path(str(ROOT / "tools" / "docs" / "configuration.py"))
    assert script["page"]() == (DOCS / "configuration.md").read_text(), "run python tools/docs/configuration.py"


def test_the_tables_of_grown_weights_are_up_to_date() -> None:
    script = runpy.run_path(str(ROOT / "tools" / "benchmarks" / "grown_weights.py"))
    page = (DOCS / "grown-weights.md").read_text()
    for rows in script["tables"](ROOT / "results" / "grown-weights"):
        assert "\n".join(rows) in page, "python tools/benchmarks/grown_weights.py --table results/grown-weights"


def test_the_tables_of_small_tasks_are_up_to_date() -> None:
    script = runpy.run_path(str(ROOT / "tools" / "benchmarks" / "small_tasks.py"))
    page, file = (DOCS / "small-tasks.md").read_text(), ROOT / "results" / "small-tasks" / "runs.jsonl"
    tables = script["tables"](file)
    assert len(tables) == 3
    for rows in tables:
        assert "\n".join(rows) in page, "python tools/benchmarks/small_tasks.py results/small-tasks/runs.jsonl --table"


def find(name: str) -> Any:
    """The object of a name such as ``topology.removal.remove``, of a module or of what is in it."""
    words = name.split(".")
    for count in range(len(words), 0, -1):
        module = ".".join(["selfish_rnn", *words[:count]])
        try:
            found: Any = importlib.import_module(module)
        except ModuleNotFoundError:
            continue
        for word in words[count:]:
            found = getattr(found, word)
        return found
    raise AttributeError(f"selfish_rnn has no {name}")


def named_in_the_paper_page() -> list[str]:
    return sorted(set(re.findall(r"`([a-z_]+(?:\.[A-Za-z_]+)+)`", (DOCS / "paper.md").read_text())))


def test_every_name_of_the_paper_page_exists() -> None:
    names = named_in_the_paper_page()
    assert len(names) > 50
    for name in names:
        find(name)
    with pytest.raises(AttributeError):
        find("topology.removal.no_such_function")


def test_every_table_and_figure_of_the_paper_is_on_its_page() -> None:
    text = (DOCS / "paper.md").read_text()
    made = {word for words in re.findall(r"`selfish-rnn reproduce ([a-z0-9 -]+)`", text) for word in words.split()}
    assert made == {name for name, item in ITEMS.items() if item.source != "not in the paper"} - {"flops"}
    for table in range(1, 11):
        assert re.search(rf"^\| {table} \|", text, flags=re.MULTILINE)


def test_every_name_in_the_reference_is_public() -> None:
    text = "\n".join(page.read_text() for page in (DOCS / "api").glob("*.md"))
    described = set(re.findall(r"^::: selfish_rnn\.(\w+)$", text, flags=re.MULTILINE))
    assert described <= set(selfish_rnn.__all__)


def test_the_rewiring_in_the_figure_is_one_of_the_package() -> None:
    script = runpy.run_path(str(ROOT / "tools" / "docs" / "rewiring_figure.py"))
    steps = script["steps"]()
    assert len({step.topology.count for step in steps}) == 1
    removal, growth = steps[2], steps[3]
    assert int(removal.removed.sum()) == int(growth.grown.sum()) > 0
    each = growth.shown(growth.grown).values()
    assert max(each) - min(each) <= 1
    lost = removal.shown(removal.removed)
    assert {
        gate: count - lost[gate] + growth.shown(growth.grown)[gate] for gate, count in removal.counts().items()
    } == growth.counts()
    drawn = script["draw"](growth)
    assert drawn.count(f'"{script["GROWN"]}"') == 1
    assert (DOCS / "figures" / "rewiring-5.svg").exists()


def test_the_average_of_a_grown_weight_follows_it() -> None:
    curves = runpy.run_path(str(ROOT / "tools" / "docs" / "rewiring_figure.py"))["averages"]()
    assert curves["NT-ASGD"][-1] < 0.6 < 0.8 < curves["SNT-ASGD"][-1] < curves["the weight itself"][-1]
