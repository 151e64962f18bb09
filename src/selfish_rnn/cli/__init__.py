"""The command line: commands, and what they show."""

from selfish_rnn.cli.app import main

__all__ = ["main"]
