"""The commands ``report``, ``flops`` and ``bench``."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from selfish_rnn.bench.options import read, signature
from selfish_rnn.cli.console import output, show_note
from selfish_rnn.errors import UserError
from selfish_rnn.text import counted, plain_table

if TYPE_CHECKING:
    from selfish_rnn.analysis.training_flops import PrintedRow, TrainingFlops
    from selfish_rnn.experiment.settings import Experiment


def flops(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PRESET|RUN]... [KEY=VALUE]...",
            help="Presets (default: quickstart) with overrides, and folders of runs.",
        ),
    ] = None,
    paper: Annotated[bool, typer.Option("--paper", help="Print all rows of the paper's table next to ours.")] = False,
) -> None:
    """Count the FLOPs of training and inference.

    Example: selfish-rnn flops ptb-stacked-lstm method=rigl
    """
    console = output()
    if paper:
        if arguments:
            raise UserError("--paper prints the paper's table: remove --paper, or the presets and runs")
        console.print(_paper_table())
        return
    console.print(_table([_flops_of(source, _overrides(arguments)) for source in _sources(arguments)]))
    console.print(
        "\nTwo FLOPs for each existing weight and vector it multiplies; backward takes twice as many as forward. "
        "Inference is one window of a training batch. Ratios are relative to the dense network.",
        soft_wrap=True,
    )


def _sources(arguments: list[str] | None) -> list[str]:
    """Return presets and run folders."""
    sources = [word for word in arguments or () if not _is_override(word)]
    overrides = _overrides(arguments)
    if sources and overrides and all(_is_run(source) for source in sources):
        raise UserError(f"{overrides[0]!r} changes a preset, but only runs are named, whose settings are fixed")
    return sources or ["quickstart"]


def _overrides(arguments: list[str] | None) -> list[str]:
    return [word for word in arguments or () if _is_override(word)]


def _is_override(word: str) -> bool:
    return "=" in word and not Path(word).exists()


def _is_run(word: str) -> bool:
    return Path(word).is_dir()


def _flops_of(source: str, overrides: list[str]) -> tuple[str, Experiment, TrainingFlops]:
    from selfish_rnn.analysis.training_flops import run_flops, settings_flops
    from selfish_rnn.experiment.presets import build_experiment, read_preset, with_assignments
    from selfish_rnn.runs.run import Run

    if _is_run(source):
        run = Run.open(Path(source))
        return source, run.experiment, run_flops(run)
    if "/" in source or Path(source).exists():
        raise UserError(f"{source} is not a run folder or a preset; `selfish-rnn presets` lists the presets")
    settings, _ = read_preset(source)
    experiment = build_experiment(with_assignments(settings, overrides), f"preset {source}")
    return source, experiment, settings_flops(experiment)


def _table(rows: list[tuple[str, Experiment, TrainingFlops]]) -> Table:
    from selfish_rnn.analysis.training_flops import PRINTED_DENSE, printed_row

    numbers = ("sparsity", "training", "ratio", "paper", "inference", "ratio", "paper")
    table = plain_table(("", "method"), numbers)
    table.add_column("")
    for name, experiment, counts in rows:
        row = printed_row(experiment)
        dense = PRINTED_DENSE[row.model] if row is not None and row.method == "dense" else (None, None)
        table.add_row(
            name,
            experiment.method.name,
            f"{experiment.sparsity:g}",
            f"{counts.training:.3e}",
            f"{counts.training_ratio:.3f}",
            _printed(row, "training", dense[0]),
            f"{counts.inference:.3e}",
            f"{counts.inference_ratio:.3f}",
            _printed(row, "inference", dense[1]),
            counts.note,
        )
    return table


def _printed(row: PrintedRow | None, column: str, absolute: float | None) -> str:
    """Return the number of the paper: a ratio, or the absolute number of a dense network."""
    if row is None:
        return ""
    return f"{getattr(row, column):.2f}" if absolute is None else f"{absolute:.1e}"


def _paper_table() -> Table:
    from selfish_rnn.analysis.training_flops import PRESETS, compare_with_paper

    numbers = ("sparsity", "training", "paper", "inference", "paper")
    table = plain_table(("network", "method", "optimizer"), numbers)
    table.add_column("within 2 %")
    table.add_column("", overflow="fold")
    for row in compare_with_paper():
        printed = row.printed
        verdict = {True: "yes", False: "no", None: "-"}[row.agrees]
        table.add_row(
            PRESETS[printed.model],
            printed.method,
            printed.optimizer,
            f"{printed.sparsity:g}",
            "-" if row.training is None else f"{row.training:.3f}",
            f"{printed.training:.2f}",
            "-" if row.inference is None else f"{row.inference:.3f}",
            f"{printed.inference:.2f}",
            verdict,
            row.note,
        )
    return table


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Folders of runs, or folders that contain runs.")
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="File to write.")] = Path("report.html"),
    title: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Heading (default: models and texts of the runs).")
    ] = None,
) -> None:
    """Write an HTML page about one or several runs.

    Example: selfish-rnn report runs/ --out report.html
    """
    from selfish_rnn.analysis.records import read_run
    from selfish_rnn.analysis.report import write_report

    records = [read_run(run) for run in _run_folders(runs)]
    write_report(records, out, title=title)
    typer.echo(f"{out}: {counted(len(records), 'run')}, {out.stat().st_size / 1024:.0f} KiB")


def _run_folders(paths: Sequence[Path]) -> list[Path]:
    """Return the run folders among paths and directly inside of them, each once."""
    from selfish_rnn.runs.folder import RunFolder

    folders: dict[Path, None] = {}
    for path in paths:
        if RunFolder(path).config.is_file() or not path.is_dir():
            folders.setdefault(path)
            continue
        inside = sorted(child for child in path.iterdir() if RunFolder(child).config.is_file())
        begun = [child for child in inside if RunFolder(child).metrics.read()]
        if not begun and inside:
            raise UserError(f"no run in {path} has finished an epoch yet")
        if not inside:
            raise UserError(f"{path} is not the folder of a run and contains none: it has no config.yaml")
        folders.update(dict.fromkeys(begun))
        if skipped := [child.name for child in inside if child not in begun]:
            show_note(f"skipped runs without a finished epoch: {', '.join(skipped)}")
    return list(folders)


def bench(**options: Any) -> None:
    """Measure speed and memory of the engines on this machine.

    Example: selfish-rnn bench --hidden 512 --what step
    """
    checked = read(options)  # before torch is imported
    from selfish_rnn.bench.bench import bench as measure

    if not measure(output(), checked, shlex.join(["selfish-rnn", *sys.argv[1:]])):
        raise typer.Exit(130)


bench.__signature__ = signature()  # type: ignore[attr-defined]
