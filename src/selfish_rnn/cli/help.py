"""Help texts: usage, arguments and options with conventional metavars, and commands in groups."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from typer.core import TyperCommand, TyperGroup

from selfish_rnn.errors import UserError
from selfish_rnn.experiment.extensions import request_imports

IMPORT = "--import"


class Command(TyperCommand):
    """Command with our help text, and the option ``--import FILE`` for files that register methods."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        words, ctx.meta[IMPORT] = without_imports(args)
        return super().parse_args(ctx, words)

    def invoke(self, ctx: Any) -> Any:
        request_imports(ctx.meta[IMPORT])
        return super().invoke(ctx)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        arguments = (str(parameter.metavar) for parameter in _visible(self, ctx, "argument"))
        return ["[OPTIONS]", *arguments]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write(self, ctx, formatter)


class Commands(TyperGroup):
    """Group of commands, listed by their ``rich_help_panel``."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                panel = str(getattr(command, "rich_help_panel", None) or "Commands")
                # One line per command, however narrow the terminal.
                groups.setdefault(panel, []).append((name, command.get_short_help_str(limit=70)))
        for panel, rows in groups.items():
            with formatter.section(panel):
                formatter.write_dl(rows)
        _write(self, ctx, formatter)


def without_imports(args: list[str]) -> tuple[list[str], list[str]]:
    """Split arguments into the others and the files of ``--import``.

    >>> without_imports(["quickstart", "--import", "mine.py", "seed=2"])
    (['quickstart', 'seed=2'], ['mine.py'])
    """
    words, files, remaining = [], [], iter(args)
    for argument in remaining:
        name, equals, file = argument.partition("=")
        if name != IMPORT:
            words.append(argument)
        elif equals:
            files.append(file)
        elif (following := next(remaining, None)) is not None:
            files.append(following)
        else:
            raise UserError(f"{IMPORT} needs a Python file")
    return words, files


def _visible(command: Any, ctx: Any, kind: str) -> Iterable[Any]:
    return (
        parameter
        for parameter in command.get_params(ctx)
        if parameter.param_type_name == kind and not getattr(parameter, "hidden", False)
    )


def _write(command: Any, ctx: Any, formatter: Any) -> None:
    """Write the sections of arguments and options."""
    arguments = [(str(parameter.metavar), parameter.help or "") for parameter in _visible(command, ctx, "argument")]
    options = []
    for option in _visible(command, ctx, "option"):
        flag = option.is_flag or option.metavar is None
        names = ", ".join(sorted(option.opts, key=len))
        default = "" if flag or not option.show_default or option.default in (None, "") else option.default
        suffix = f"  [default: {default}]" if default != "" else ""
        options.append((names if flag else f"{names} {option.metavar}", f"{option.help or ''}{suffix}"))
    if isinstance(command, Command):
        options.insert(-1, (f"{IMPORT} FILE", "Python file that registers your own methods."))  # --help stays last
    for title, rows in (("Arguments", arguments), ("Options", options)):
        if rows:
            with formatter.section(title):
                formatter.write_dl(rows)
