"""The command ``selfish-rnn``. Commands import torch themselves, so that --help is fast."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from selfish_rnn import __version__
from selfish_rnn.cli.analysis import bench, flops, report
from selfish_rnn.cli.compare import compare
from selfish_rnn.cli.console import StoppedError, UsageError, output, show_error, usage_message
from selfish_rnn.cli.experiments import methods, presets, show
from selfish_rnn.cli.help import Command, Commands
from selfish_rnn.cli.many_runs import sweep
from selfish_rnn.cli.models import evaluate, export, generate, header
from selfish_rnn.cli.reproduce import reproduce
from selfish_rnn.cli.training import SettingsCommand, resume, train
from selfish_rnn.errors import RankLostError, ReportedByRankZero, UserError


class InterruptibleCommands(Commands):
    """Commands that report Ctrl-C as an error, which typer would turn into a silent exit."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise StoppedError("interrupted") from None


app = typer.Typer(
    cls=InterruptibleCommands,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

RETRY_CODE = 75
"""Exit code of a rank whose partners are gone: EX_TEMPFAIL of sysexits.h, a failure that a retry may solve."""


def _print_version(requested: bool) -> None:
    if requested:
        output().print(f"selfish-rnn {__version__}")
        raise typer.Exit


@app.callback()
def common(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Train recurrent networks that are sparse from the first step to the last."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


PANELS = {
    "Train": (train, resume, sweep, presets, show, methods),
    "Use a trained model": (evaluate, generate, export, header),
    "Analyse and measure": (report, flops, bench),
    "Reproduce the paper": (reproduce, compare),
}
"""Commands in the groups and the order of --help."""

for panel, commands in PANELS.items():
    for command in commands:
        kind = SettingsCommand if command in (train, show) else Command
        app.command(cls=kind, rich_help_panel=panel)(command)


def main() -> None:
    """Run the command line. User errors are one line and exit code 2; divergence of training is code 3."""
    try:
        code = app(prog_name="selfish-rnn", standalone_mode=False)
        raise SystemExit(code if isinstance(code, int) else 0)
    except ReportedByRankZero:
        raise SystemExit(2) from None
    except UsageError as error:
        message, code = usage_message(error), 2
    except UserError as error:
        message, code = str(error), error.exit_code
    except RankLostError as error:
        message, code = str(error), RETRY_CODE
    except KeyboardInterrupt:
        message, code = "interrupted", 130
    except MemoryError as error:
        message, code = f"there is not enough memory: {error}", 2
    show_error(message)
    raise SystemExit(code)
