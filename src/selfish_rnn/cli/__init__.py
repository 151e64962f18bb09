"""The command line, installed by the extra ``cli``."""

from __future__ import annotations

import sys

from selfish_rnn.errors import COMMAND_LINE_MODULES, INSTALL_COMMAND_LINE

__all__ = ["main"]


def main() -> None:
    """Run the command line, or say in one line how to install it."""
    try:
        from selfish_rnn.cli.app import main as run
    except ModuleNotFoundError as error:
        if error.name not in COMMAND_LINE_MODULES:
            raise
        print(f"error: the command line needs {error.name}: {INSTALL_COMMAND_LINE}", file=sys.stderr)
        raise SystemExit(2) from None
    run()
