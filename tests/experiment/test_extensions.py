"""Methods of your own on the command line: files that are imported, and entry points of packages."""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from selfish_rnn import METHODS, RIGL, SELFISH, UserError, train_experiment
from selfish_rnn.experiment import extensions
from selfish_rnn.experiment.methods import CONFIGURABLE_METHODS
from selfish_rnn.experiment.settings import MethodSettings

pytestmark = pytest.mark.usefixtures("tables_as_before")

FILE = """\
from selfish_rnn import SELFISH, Removal
from selfish_rnn.topology.removal import by_magnitude
MINE = SELFISH.replace(name="own-rule", removal=Removal("own-removal", by_magnitude))
"""


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(extensions.IMPORTS, "")


def test_a_file_registers_its_methods_and_their_parts(tmp_path: Path) -> None:
    path = tmp_path / "my_rule.py"
    path.write_text(FILE)
    extensions.request_imports([str(path)])
    assert os.environ[extensions.IMPORTS] == str(path)
    extensions.load_extensions()
    extensions.load_extensions()  # once is enough
    assert CONFIGURABLE_METHODS["own-rule"].removal is METHODS["own-rule"].removal
    assert MethodSettings.model_validate("own-rule").build() == METHODS["own-rule"]
    assert MethodSettings.model_validate({"name": "selfish", "removal": "own-removal"}).removal == "own-removal"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.py", "import no_such_module", "cannot be imported: ModuleNotFoundError: .* \\(line 1\\)"),
        ("b.py", "\n\nx = (", "cannot be imported: SyntaxError: .* \\(line 3\\)"),
        ("c.txt", "", "its name must end in .py"),
        ("d.py", "from selfish_rnn import SELFISH\nSELFISH.replace(growth='x')", "unknown growth .* \\(line 2\\)"),
    ],
)
def test_a_file_that_cannot_be_imported_is_one_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=message):
        extensions.import_file(tmp_path / name)


def test_a_missing_file_is_refused() -> None:
    with pytest.raises(UserError, match=r"--import nowhere\.py: there is no such file"):
        extensions.request_imports(["nowhere.py"])


def test_an_entry_point_gives_a_method(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = SELFISH.replace(name="packaged")
    points = [SimpleNamespace(name="mine", load=lambda: mine), SimpleNamespace(name="module", load=lambda: extensions)]
    monkeypatch.setattr(
        importlib.metadata, "entry_points", lambda group: points if group == extensions.ENTRY_POINTS else []
    )
    extensions.load_extensions()
    assert METHODS["packaged"] is mine


def test_an_entry_point_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def load() -> None:
        raise ImportError("no")

    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [SimpleNamespace(name="mine", load=load)])
    with pytest.raises(UserError, match=r"entry point 'mine' of selfish_rnn.methods cannot be loaded: ImportError: no"):
        extensions.load_extensions()


def test_a_function_trains_an_experiment_with_a_method_object(tmp_path: Path) -> None:
    mine = RIGL.replace(name="own-rigl", removal="signed")
    tiny = {"hidden": 8, "embedding": 8}
    summary = train_experiment(
        "quickstart",
        method=mine,
        folder=tmp_path / "run",
        settings={"epochs": 1, "train_tokens": 2000, "model": tiny, "threads": 1, "corpus": "python-docs"},
    )
    assert summary["active_weights"] > 0
    assert "own-rigl" in (tmp_path / "run" / "config.yaml").read_text()
    with pytest.raises(ValueError, match="a different method is called 'own-rigl' already"):
        train_experiment("quickstart", method=mine.replace(growth="random"), folder=tmp_path / "other")
    assert not (tmp_path / "other").exists()
