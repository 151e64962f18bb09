"""Every command in the README and the documentation is one that exists, and those that do not take long are run."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from selfish_rnn.bench.options import read as read_bench_options
from selfish_rnn.cli.app import app
from selfish_rnn.experiment.extensions import IMPORTS
from selfish_rnn.experiment.presets import build_experiment, preset_names, read_preset, with_assignments
from selfish_rnn.reproduce.campaign import STAGES
from selfish_rnn.reproduce.paper import ITEMS
from selfish_rnn.runs.export import export
from tiny_runs import TINY_MODELS, tiny_run, write_corpus

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path, *languages: str) -> list[str]:
    """The blocks of a page in these languages; every block is matched, so that none begins at the end of another."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return [block for language, block in fenced if language in languages]


def lines(page: Path) -> Iterator[str]:
    """The commands of a page, as they stand in it, without comments."""
    for block in blocks(page, "sh", ""):
        for line in block.replace("\\\n", " ").splitlines():
            for part in re.split(r"&&|[|]", line.partition(" #")[0]):
                if part.strip().startswith("selfish-rnn "):
                    yield part.strip()


def commands() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        yield from ((page.name, line.partition(">")[0].strip()) for line in lines(page))


def refuse(text: str) -> None:
    """An error if this is no command: options that do not exist, settings, presets and items that do not."""
    command, *words = shlex.split(text)[1:]
    context = typer.main.get_command(app).make_context("selfish-rnn", [command, *words], resilient_parsing=True)
    sub = context.command.get_command(context, command)  # type: ignore[attr-defined]
    assert sub is not None, f"there is no command {command}"
    with sub.make_context(command, words, parent=context) as inner:
        if command == "bench":
            read_bench_options(inner.params)
        if command == "reproduce" and not inner.params["adopt"]:
            items, stages = set(inner.params["names"] or ()), {stage.name for stage in STAGES}
            assert items <= {"campaign", *stages} if "campaign" in items else items <= set(ITEMS)
        if command in ("train", "show"):
            given = list(inner.params["arguments"] or [])
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


def test_every_command_is_on_the_page_of_the_command_line() -> None:
    text = (ROOT / "docs" / "command-line.md").read_text()
    names = {
        name
        for words in re.findall(r"^\| (`selfish-rnn .*?) \|", text, re.MULTILINE)
        for name in re.findall(r"\w+`", words)
    }
    assert {name.rstrip("`") for name in names} == set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


TAKES_LONG = re.compile(r" bench| sweep (?!.*--dry-run)| (reproduce|compare) \S(?!.*--dry-run)|corpus=path")
"""What is only looked at: measurements, many runs, and a person's terminal."""

SHORT = {page: [line for line in lines(page) if not TAKES_LONG.search(line)] for page in PAGES}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the pages take for granted: runs, an exported model, a file of a sweep, texts."""
    folder = tmp_path_factory.mktemp("commands")
    texts = write_corpus(folder / "texts")
    run = tiny_run(texts, folder / "runs" / "mine", epochs=1)
    run.train()
    export(run, folder / "mine.safetensors")
    for name in ("quickstart-1", "together", "selfish-1", "selfish-2", "static-1", "static-2"):
        shutil.copytree(folder / "runs" / "mine", folder / "runs" / name)
    (folder / "my_rule.py").write_text(blocks(ROOT / "docs" / "compare.md", "python")[0])
    (folder / "results").symlink_to(ROOT / "results")
    (folder / "grid.yaml").write_text(blocks(ROOT / "docs" / "sweeps.md", "yaml")[0])
    return folder


def small(words: list[str], texts: Path) -> list[str]:
    """What to say after a command that trains, so that it trains a tiny network on tiny texts."""
    given = [word for word in words if "=" in word and not word.startswith("-")]
    preset = next((word for word in words[:1] if "=" not in word and not word.startswith("-")), "quickstart")
    experiment = build_experiment(with_assignments(read_preset(preset)[0], given), "")
    tiny = [f"model.{key}={value}" for key, value in TINY_MODELS[experiment.model.name].items()]
    return [f"corpus={texts}", *tiny, "epochs=1", "batch_size=4", "valid_batch_size=4", "test_batch_size=4", "window=5"]


@pytest.mark.slow
@pytest.mark.usefixtures("tables_as_before")
@pytest.mark.parametrize("page", [page for page in SHORT if SHORT[page]], ids=lambda page: page.name)
def test_commands_in_the_documentation_run(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv(IMPORTS, "")
    for line in SHORT[page]:
        text, _, into = line.partition(">")
        command, *words = shlex.split(text)[1:]
        words = [found for word in words for found in (sorted(map(str, Path().glob(word))) if "*" in word else [word])]
        if command == "train":
            if "--run" in words:
                shutil.rmtree(words[words.index("--run") + 1], ignore_errors=True)
            words += small(words, folder / "texts")
        done = CliRunner().invoke(app, [command, *words], catch_exceptions=False)
        assert done.exit_code == 0, f"{line}: {done.output}"
        assert done.output, line
        if into:
            Path(into.strip()).write_text(done.stdout)
