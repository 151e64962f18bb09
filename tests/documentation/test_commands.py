"""Every command in the README and the documentation is one that exists."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from selfish_rnn.bench.options import parse as parse_bench
from selfish_rnn.cli.app import app
from selfish_rnn.experiment.presets import build_experiment, preset_names, read_preset, with_assignments
from selfish_rnn.reproduce.paper import ITEMS

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path, languages: str) -> list[str]:
    return re.findall(rf"^```(?:{languages})\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def commands() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for block in blocks(page, "sh|bash|console|"):
            for line in block.replace("\\\n", " ").splitlines():
                for part in re.split(r"&&|[|>]", line.partition(" #")[0]):
                    if part.strip().startswith("selfish-rnn "):
                        yield page.name, part.strip()


def refuse(text: str) -> None:
    """An error if this is no command: options that do not exist, settings, presets and items that do not."""
    command, *words = shlex.split(text)[1:]
    context = typer.main.get_command(app).make_context("selfish-rnn", [command, *words], resilient_parsing=True)
    sub = context.command.get_command(context, command)  # type: ignore[attr-defined]
    assert sub is not None, f"there is no command {command}"
    with sub.make_context(command, words, parent=context) as inner:
        if command == "bench":
            parse_bench(inner)
        if command == "reproduce" and not inner.params["adopt"]:
            assert set(inner.params["names"] or ()) <= set(ITEMS)
        if command in ("train", "show"):
            given = list(inner.params["words"] or [])
            preset = given.pop(0) if given and "=" not in given[0] else "quickstart"
            assert preset in (*preset_names(), "PRESET")
            if preset != "PRESET":
                build_experiment(with_assignments(read_preset(preset)[0], given), text)


@pytest.mark.parametrize(("name", "text"), sorted(set(commands())))
def test_commands_in_the_documentation_exist(name: str, text: str) -> None:
    refuse(text)


@pytest.mark.parametrize(
    "text",
    [
        "selfish-rnn trian",
        "selfish-rnn train sparstiy=0.8",
        "selfish-rnn train no-such-preset",
        "selfish-rnn generate runs/mine --promt the",
        "selfish-rnn bench --hiden 5",
        "selfish-rnn reproduce tables",
    ],
)
def test_a_wrong_command_would_be_found(text: str) -> None:
    with pytest.raises((Exception, SystemExit)):
        refuse(text)
