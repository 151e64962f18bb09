"""What is imported only when it is needed."""

from __future__ import annotations

import subprocess
import sys

import pytest

import selfish_rnn

COMMAND = """
import sys
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
