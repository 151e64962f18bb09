"""From a rule in a file to a page of verdicts, on the command line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from command_cases import refused, selfish_rnn

from selfish_rnn.experiment.extensions import IMPORTS

pytestmark = pytest.mark.usefixtures("tables_as_before")

RULE = """\
from selfish_rnn import SELFISH
MINE = SELFISH.replace(name="mine-compared", reference="here", removal="signed")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "my_rule.py").write_text(RULE)
    (tmp_path / "results").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(IMPORTS, "")
    return tmp_path


@pytest.mark.slow
def test_a_method_in_a_file_gets_a_page(folder: Path) -> None:
    words = ["compare", "--method", "mine-compared", "--scale", "tiny", "--seeds", "1,2"]
    environment = {**os.environ}
    said = selfish_rnn(*words, "--import", "my_rule.py")
    assert said.code == 0, said
    page = (folder / "compare" / "mine-compared" / "index.md").read_text()
    assert "**Missing baselines:** dense, static (uniform)" in page
    assert "--import my_rule.py" in page
    assert len(list((folder / "compare" / "mine-compared" / "results" / "tiny").glob("*.json"))) == 2
    again = selfish_rnn(*words, "--import", "my_rule.py", "--dry-run")
    assert again.out.count("finished") == 2
    assert environment[IMPORTS] == ""


def test_what_cannot_be_compared_is_refused(folder: Path) -> None:
    assert "--method NAME is needed" in refused("compare")
    assert "unknown method 'mime'" in refused("compare", "--method", "mime")
    assert "has no network 'gru'" in refused("compare", "--method", "rigl", "--network", "gru")
    assert "there is no such file" in refused("compare", "--method", "x", "--import", "nowhere.py")
    assert "--import needs a Python file" in refused("train", "--import")
    assert "no stored results in" in refused("compare", "--method", "rigl", "--baselines", "nowhere")
