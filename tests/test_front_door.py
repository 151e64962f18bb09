"""What is imported only when it is needed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import selfish_rnn

COMMAND = """
import sys
from pathlib import Path
sys.argv = ["selfish-rnn", *{words}]
try:
    from selfish_rnn.cli import main
    main()
except SystemExit as left:
    assert not left.code
"""


@pytest.mark.parametrize(
    ("program", "modules"),
    [
        ("import selfish_rnn", ("torch", "pydantic")),
        ("import selfish_rnn; selfish_rnn.UserError, selfish_rnn.__version__, dir(selfish_rnn)", ("torch", "pydantic")),
        (COMMAND.format(words=["--help"]), ("torch", "pydantic")),
        (COMMAND.format(words=["--version"]), ("torch",)),
        (COMMAND.format(words=["train", "--help"]), ("torch",)),  # typer takes pydantic to read a command's words
    ],
    ids=["import", "names", "help", "version", "help of a command"],
)
def test_torch_is_not_imported(program: str, modules: tuple[str, ...]) -> None:
    told = f"{program}\nimport sys; print([name for name in {modules} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_package_is_the_command_line_too() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "selfish_rnn", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"selfish-rnn {selfish_rnn.__version__}\n"


@pytest.mark.parametrize("name", selfish_rnn.__all__)
def test_every_public_name_is_there(name: str) -> None:
    value = getattr(selfish_rnn, name)
    assert getattr(selfish_rnn, name) is value
    assert name in dir(selfish_rnn)


def test_other_names_are_not() -> None:
    with pytest.raises(AttributeError, match="module 'selfish_rnn' has no attribute 'Sparsifyer'"):
        selfish_rnn.Sparsifyer  # noqa: B018


@pytest.mark.parametrize("version", ["1.13.1", "2.3.0+cpu", "2.0.0a0"])
def test_a_torch_that_is_too_old_is_refused(version: str) -> None:
    with pytest.raises(ImportError, match=rf"needs torch 2\.4 or newer, and this is {re.escape(version)}: pip install"):
        selfish_rnn._refuse_old_torch(version)


@pytest.mark.parametrize("version", ["2.4.0", "2.13.0+cpu", "3.0", "2.5.0a0+git123"])
def test_a_torch_that_is_new_enough_is_not(version: str) -> None:
    selfish_rnn._refuse_old_torch(version)


def test_the_oldest_torch_is_the_one_pip_is_told() -> None:
    wanted = ".".join(map(str, selfish_rnn.OLDEST_TORCH))
    assert f'"torch>={wanted}"' in (Path(__file__).parents[1] / "pyproject.toml").read_text()


WITHOUT_EXTRAS = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {missing}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
{program}
"""
EXTRAS = ("pydantic", "yaml", "rich", "typer", "tensorboard", "matplotlib", "scipy")


def run_without_extras(program: str) -> subprocess.CompletedProcess[str]:
    """Run a program where only torch, numpy and safetensors can be imported."""
    text = WITHOUT_EXTRAS.format(missing=EXTRAS, program=program)
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)


@pytest.mark.slow
def test_the_library_needs_no_extra() -> None:
    done = run_without_extras(
        "import selfish_rnn\n"
        "for name in selfish_rnn.__all__:\n"
        "    if name not in ('load_model', 'train_experiment'):\n"
        "        getattr(selfish_rnn, name)\n"
        "try:\n"
        "    selfish_rnn.load_model\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    assert done.stderr == ""
    assert re.fullmatch(r"selfish_rnn.load_model needs \w+: pip install 'selfish-rnn\[cli\]'\n", done.stdout)


def test_the_command_line_names_its_extra() -> None:
    done = run_without_extras("from selfish_rnn.cli import main\nmain()")
    assert done.returncode == 2
    assert re.fullmatch(r"error: the command line needs \w+: pip install 'selfish-rnn\[cli\]'\n", done.stderr)
