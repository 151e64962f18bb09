"""Small files of a run that are odd or damaged: every command ends with a result or one line that names the file."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up import MATRICES, record, write_run
from typer.testing import CliRunner

from selfish_rnn.analysis.records import read_run
from selfish_rnn.analysis.report import report_html
from selfish_rnn.cli.app import app
from selfish_rnn.errors import UserError
from tiny_runs import finished_run

FILES = ("config.yaml", "corpus.json", "metrics.jsonl", "summary.json", "vocabulary.json")
LONGEST = 3000
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]")


def nested(depth: int) -> Any:
    value: Any = 1
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


ODD_VALUES: list[Any] = [
    None, True, -1, 0, 3, 2**70, 10**400, 0.5, -0.5, 1e308, float("nan"), float("inf"), "", "3", "NaN", "x", "é" * 300,
    "\x1b[2J\x9b\u202e", "\ud800", [], [1, "a"], [[]], {}, {"name": 3}, {"all": "x"}, {"": {"": {}}}, nested(15),
    nested(400),
]  # fmt: skip
ODD_CONTENT = [
    b"", b"\n", b"x", b"\xff", b"\x00", b"3", b"[]", b"{}", b"null", b'"', b"NaN", b"[" * 100_000, b'{"a":' * 100_000,
    b"1" * 5000, b'{"a": ' + b"1" * 5000 + b"}", b"\xef\xbb\xbf{}", b"a: &a [*a]", b"a: &a {b: *a}",
    b"a: 0x" + b"f" * 5000,
]  # fmt: skip


@pytest.fixture(scope="module")
def original(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("odd") / "run"
    finished_run(texts, folder, epochs=2, rewire_every=4)
    return folder


def places(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in lists and mappings."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place, *(result for key, entry in inner for result in places(entry, (*place, key)))]


def replaced(value: Any, place: tuple[Any, ...], candidate: Any) -> Any:
    """The value with another at a place; ``...`` removes what is there."""
    if not place:
        return {} if candidate is ... else candidate
    copy = dict(value) if isinstance(value, dict) else list(value)
    if candidate is ... and len(place) == 1:
        del copy[place[0]]
    else:
        copy[place[0]] = replaced(value[place[0]], place[1:], candidate)
    return copy


def with_odd_value(file: Path, data: st.DataObject) -> None:
    lines = file.read_text().splitlines() if file.suffix == ".jsonl" else [file.read_text()]
    number = data.draw(st.integers(0, len(lines) - 1), label="line")
    content = yaml.safe_load(lines[number]) if file.suffix == ".yaml" else json.loads(lines[number])
    place = data.draw(st.sampled_from(places(content)), label="place")
    content = replaced(content, place, data.draw(st.sampled_from([..., *ODD_VALUES]), label="value"))
    # JSON is YAML, but for its largest numbers and surrogates, which are odd in either.
    lines[number] = json.dumps(content)
    file.write_text("\n".join(lines) + "\n")


def damaged(folder: Path, data: st.DataObject) -> Path:
    file = folder / data.draw(st.sampled_from(FILES), label="file")
    kind = data.draw(st.sampled_from(["value"] * 6 + ["content", "cut", "missing", "folder"]), label="kind")
    if kind == "value":
        with_odd_value(file, data)
    elif kind == "content":
        file.write_bytes(data.draw(st.sampled_from(ODD_CONTENT), label="content"))
    elif kind == "cut":
        content = file.read_bytes()
        file.write_bytes(content[: data.draw(st.integers(0, len(content)), label="length")])
    else:
        file.unlink()
        if kind == "folder":
            file.mkdir()
    return file


def check_command(words: list[str], folder: Path, file: Path) -> str:
    """Return what a command that ended well printed; it may also refuse in one line that names the file."""
    outcome = CliRunner().invoke(app, words)
    if outcome.exception is None:
        assert outcome.exit_code == 0
        return outcome.output
    if not isinstance(outcome.exception, UserError):
        raise outcome.exception
    message = str(outcome.exception)
    assert outcome.exception.exit_code == 2
    # A cut config.yaml may be whole with a shorter path of the corpus, which is named then.
    assert str(file) in message or str(folder) in message or file.name in message or "the corpus" in message
    assert "\n" not in message
    assert len(message) < LONGEST
    return ""


def fuzz(original: Path, command: str, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(shutil.copytree(original, Path(name) / "run"))
        file = damaged(folder, data)
        out = Path(name) / "report.html"
        runs = [str(folder), *([str(original)] if command == "report" else [])]
        options = ["--out", str(out)] if command in ("report", "export") else []
        options += ["--title", "t"] if command == "report" else []
        check_command([command, *runs, *options], folder, file)
        if command == "report" and out.exists():
            assert not CONTROL.search(out.read_text())


@given(data=st.data())
def test_a_report_is_a_page_or_one_line(original: Path, data: st.DataObject) -> None:
    fuzz(original, "report", data)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["evaluate", "resume", "flops", "generate", "export"])
@given(data=st.data())
@settings(max_examples=40)
def test_other_commands_end_well_or_in_one_line(original: Path, command: str, data: st.DataObject) -> None:
    fuzz(original, command, data)


def test_a_report_compares_networks_with_other_gates(tmp_path: Path) -> None:
    long, short = (record(name, **{"model.name": f"stacked-{name}"}) for name in ("lstm", "gru"))
    density = {name: {"reset": 0.3, "update": 0.3, "all": 0.3} for name in MATRICES}
    short = dataclasses.replace(short, epochs=[dataclasses.replace(entry, density=density) for entry in short.epochs])
    page = report_html([read_run(write_run(tmp_path / entry.name, entry)) for entry in (long, short)])
    assert "forget" in page
    assert "reset" in page


@pytest.mark.parametrize("sign", ["\x1b]52;c;x\x07", "\x9b2J", "\u202e", "\x00"])
def test_control_characters_of_names_are_written_out_in_a_report(sign: str) -> None:
    run = record(f"run{sign}", corpus="abc")
    run = dataclasses.replace(run, corpus={"name": f"text{sign}"})
    runs, written = [run, record("other", seed=3, method="set")], sign.encode("unicode_escape").decode()
    for title, names in ((None, ("run", "text")), (f"title{sign}", ("run", "title"))):
        page = report_html(runs, title=title)
        assert not CONTROL.search(page)
        assert all(f"{name}{written}" in page for name in names)
