"""The commands. What needs torch is imported by the command that needs it, so that --help is there at once."""

from __future__ import annotations

import shlex
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from selfish_rnn import __version__
from selfish_rnn.cli.analysis import flops, report
from selfish_rnn.cli.console import StoppedError, output, show_error
from selfish_rnn.cli.many_runs import sweep
from selfish_rnn.cli.models import evaluate, export, generate, header
from selfish_rnn.cli.reproduce import reproduce
from selfish_rnn.cli.training import preset_and_assignments, resume, train
from selfish_rnn.errors import RankLostError, SaidByFirst, UserError
from selfish_rnn.text import plain_table, say


class Commands(TyperGroup):
    """The commands; Ctrl-C ends them with a line of our own, which typer would leave out."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise StoppedError("interrupted") from None


app = typer.Typer(
    cls=Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
)
console = output()

TRY_AGAIN = 75
"""The exit code of a process whose partners are gone: that of a failure that may pass, in sysexits.h."""


def _print_version(wanted: bool) -> None:
    if wanted:
        console.print(f"selfish-rnn {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Train recurrent networks that are sparse from the first step to the last."""


app.command()(train)
app.command()(resume)
app.command()(evaluate)
app.command()(generate)
app.command()(export)


@app.command()
def presets() -> None:
    """List the presets."""
    from selfish_rnn.experiment.presets import preset_names, read_preset

    table = plain_table(show_header=False)
    for name in preset_names():
        table.add_row(name, read_preset(name)[1])
    console.print(table)


@app.command()
def show(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="PRESET|KEY=VALUE", help="A preset and changes to it.")
    ] = None,
) -> None:
    """Print a preset with every setting, as a configuration file."""
    from selfish_rnn.experiment.presets import build_experiment, explained_yaml, read_preset, with_assignments

    preset, assignments = preset_and_assignments(words)
    settings, about = read_preset(preset)
    experiment = build_experiment(with_assignments(settings, assignments), "settings")
    say(console, f"# {about}")
    console.print(explained_yaml(experiment), markup=False, soft_wrap=True, end="")


@app.command()
def methods() -> None:
    """Print the method table: what each method is composed of."""
    from selfish_rnn.cli.display import show_methods
    from selfish_rnn.experiment.methods import CONFIGURABLE_METHODS

    show_methods(console, CONFIGURABLE_METHODS.values())


@app.command(add_help_option=False, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def bench(context: typer.Context) -> None:
    """Measure how fast and how small the engines are.

    For example: selfish-rnn bench --hidden 512 --what step
    """
    from selfish_rnn.bench.options import parse

    options = parse(context)  # before torch is imported, which --help and a wrong word can do without
    from selfish_rnn.bench.bench import bench as measure

    if not measure(console, options, shlex.join(["selfish-rnn", *sys.argv[1:]])):
        raise typer.Exit(130)


app.command()(flops)
app.command()(header)
app.command()(report)
app.command()(reproduce)
app.command()(sweep)


def main() -> None:
    """Run the command line; what the user can put right is one line and exit code 2, a run that diverged is 3."""
    try:
        app(prog_name="selfish-rnn")  # which leaves by itself
    except SaidByFirst:
        raise SystemExit(2) from None
    except UserError as error:
        message, code = str(error), error.exit_code
    except RankLostError as error:
        message, code = str(error), TRY_AGAIN
    except KeyboardInterrupt:
        message, code = "interrupted", 130
    except MemoryError as error:
        message, code = f"there is not enough memory: {error}", 2
    show_error(message)
    raise SystemExit(code)
