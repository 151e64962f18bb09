"""The command that writes the C++ header for int8 models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


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
