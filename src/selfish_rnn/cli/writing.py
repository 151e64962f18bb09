"""The commands that write one file: an exported model, the C++ header that runs one, a report of runs."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from selfish_rnn.cli.console import output, show_note
from selfish_rnn.errors import UserError
from selfish_rnn.text import counted, say


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")],
    out: Annotated[Path | None, typer.Option(help="File to write (default: the name of the run).")] = None,
    precision: Annotated[str, typer.Option(help="float32, or int8: a third of the size, faster, for inference.")] = (
        "float32"
    ),
) -> None:
    """Write the best model of a run with its words to one file.

    The file is for selfish_rnn.load_model and for selfish-rnn generate and evaluate.
    """
    from selfish_rnn.runs.export import export as write
    from selfish_rnn.runs.run import Run

    path = out or Path(f"{run.resolve().name}.safetensors")
    if precision not in ("float32", "int8"):
        raise UserError(f"precision must be float32 or int8, got {precision!r}")
    opened = Run.open(run)
    write(opened, path, precision="int8" if precision == "int8" else "float32")
    show_note(opened.unfinished())
    console = output()
    say(console, f"{path}: {path.stat().st_size / 2**20:.1f} MiB")
    say(console, f"  selfish-rnn generate {shlex.quote(str(path))} --prompt 'the'")


def header(
    out: Annotated[Path, typer.Option(help="File to write.")] = Path("selfish_rnn.hpp"),
) -> None:
    """Write the C++ header that runs int8 models without Python.

    The models are those that selfish-rnn export RUN --precision int8 writes.
    """
    from selfish_rnn.engine.inference.header import single_header
    from selfish_rnn.files import write_atomically

    write_atomically(out, single_header().encode())
    typer.echo(f"{out}: {out.stat().st_size / 1024:.0f} KiB")


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs, or of their small files.")],
    out: Annotated[Path, typer.Option(help="File to write.")] = Path("report.html"),
    title: Annotated[str | None, typer.Option(help="What stands above it (default: models and texts).")] = None,
) -> None:
    """Write one page about runs to send around.

    For example: selfish-rnn report runs/* --out report.html
    """
    from selfish_rnn.analysis.records import read_run
    from selfish_rnn.analysis.report import write_report

    write_report([read_run(run) for run in runs], out, title=title)
    typer.echo(f"{out}: {counted(len(runs), 'run')}, {out.stat().st_size / 1024:.0f} KiB")
