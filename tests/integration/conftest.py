"""A finished run of the command line."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from command_cases import Said, selfish_rnn

from tiny_runs import tiny_words


@pytest.fixture(scope="session")
def finished(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Said]:
    """A tiny run from the command line, and what it said; do not change its files."""
    run = tmp_path_factory.mktemp("runs") / "tiny"
    said = selfish_rnn("train", *tiny_words(texts), "--run", run)
    assert said.code == 0, said
    return run, said


@pytest.fixture
def run(finished: tuple[Path, Said], tmp_path: Path) -> Path:
    """A copy of the finished run, to be damaged."""
    return Path(shutil.copytree(finished[0], tmp_path / "run"))
