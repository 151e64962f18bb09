"""The command that writes a report of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


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
    typer.echo(f"{out}: {len(runs)} run{'' if len(runs) == 1 else 's'}, {out.stat().st_size / 1024:.0f} KiB")
