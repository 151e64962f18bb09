"""``selfish-rnn flops``: presets, runs and the paper's table."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from selfish_rnn.cli.analysis import flops
from selfish_rnn.errors import UserError
from tiny_runs import finished_run

app = typer.Typer()
app.command()(flops)


def shown(*words: str) -> list[str]:
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output.splitlines()


def test_presets_beside_the_paper() -> None:
    lines = shown("ptb-stacked-lstm", "ptb-rhn")
    assert lines[1].split() == [
        "ptb-stacked-lstm", "selfish", "0.67", "1.031e+16", "0.330", "0.33", "2.356e+10", "0.330", "0.33",
    ]  # fmt: skip
    assert lines[2].split()[:3] == ["ptb-rhn", "selfish", "0.528"]


def test_settings_change_presets() -> None:
    dense = shown("ptb-stacked-lstm", "method=dense", "sparsity=0", "optimizer=nt-asgd")[1].split()
    assert dense[3:] == ["3.123e+16", "1.000", "3.1e+16", "7.140e+10", "1.000", "7.2e+10"]
    candidate = shown("sparsity=0.9", "ptb-stacked-lstm")[1].split()
    assert candidate[2:5] == ["0.9", "3.123e+15", "0.100"]
    assert len(candidate) == 7  # not in the paper


def test_a_run(texts: Path, tmp_path: Path) -> None:
    finished_run(texts, tmp_path / "run=1")
    line = shown(str(tmp_path / "run=1"))[1]
    assert "selfish" in line
    assert "0.400" in line
    with pytest.raises(UserError, match=r"'sparsity=0\.9' changes a preset, but only runs are named"):
        shown(str(tmp_path / "run=1"), "sparsity=0.9")


def test_the_papers_table() -> None:
    lines = shown("--paper")
    assert sum(line.startswith("ptb-") for line in lines) == 36
    assert sum(" yes " in f"{line} " for line in lines) > 25
    with pytest.raises(UserError, match="remove --paper"):
        shown("--paper", "quickstart")


def test_without_words_the_default_preset_is_counted() -> None:
    assert shown()[1].startswith("quickstart")


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("ptb-stacked-lstn", "did you mean 'ptb-stacked-lstm'"),
        ("runs/nothing", "is not a run folder or a preset"),
        ("method=iss", "name its folder instead of a preset"),
    ],
)
def test_errors_say_what_would_be_right(word: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        shown(word)


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not the folder of a run"):
        shown(str(tmp_path))
