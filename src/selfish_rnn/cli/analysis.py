"""The commands ``flops`` and ``report``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from selfish_rnn.cli.console import output
from selfish_rnn.errors import UserError
from selfish_rnn.text import counted, plain_table

if TYPE_CHECKING:
    from selfish_rnn.analysis.training_flops import PrintedRow, TrainingFlops
    from selfish_rnn.experiment.settings import Experiment


def flops(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PRESET|RUN|KEY=VALUE",
            help="Presets (default: quickstart), changes to them, and folders of runs.",
        ),
    ] = None,
    paper: Annotated[bool, typer.Option("--paper", help="The paper's whole table beside ours.")] = False,
) -> None:
    """Count the FLOPs of training and inference.

    For example: selfish-rnn flops ptb-stacked-lstm method=rigl
    """
    console = output()
    if paper:
        if words:
            raise UserError("--paper prints the paper's own table; leave out either it or the presets and runs")
        console.print(_paper_table())
        return
    console.print(_table([_counted(word, _assignments(words)) for word in _sources(words)]))
    console.print(
        "\nTwo FLOPs for each existing weight and vector it multiplies; backward twice forward; inference on one "
        "window of a training batch; ratios to the same network without a weight missing.",
        soft_wrap=True,
    )


def _sources(words: list[str] | None) -> list[str]:
    given = [word for word in words or () if not _is_assignment(word)]
    if given and _assignments(words) and all(_is_run(word) for word in given):
        raise UserError(f"{_assignments(words)[0]!r} changes presets, and only runs are given: a run is what it was")
    return given or ["quickstart"]


def _assignments(words: list[str] | None) -> list[str]:
    return [word for word in words or () if _is_assignment(word)]


def _is_assignment(word: str) -> bool:
    return "=" in word and not Path(word).exists()


def _is_run(word: str) -> bool:
    return Path(word).is_dir()


def _counted(word: str, assignments: list[str]) -> tuple[str, Experiment, TrainingFlops]:
    from selfish_rnn.analysis.training_flops import run_flops, settings_flops
    from selfish_rnn.experiment.presets import build_experiment, read_preset, with_assignments
    from selfish_rnn.runs.run import Run

    if _is_run(word):
        run = Run.open(Path(word))
        return word, run.experiment, run_flops(run)
    if "/" in word or Path(word).exists():
        raise UserError(
            f"{word} is neither the folder of a run nor a preset; presets are listed by `selfish-rnn presets`"
        )
    settings, _ = read_preset(word)
    experiment = build_experiment(with_assignments(settings, assignments), f"preset {word}")
    return word, experiment, settings_flops(experiment)


def _table(counted: list[tuple[str, Experiment, TrainingFlops]]) -> Table:
    from selfish_rnn.analysis.training_flops import PRINTED_DENSE, printed_row

    numbers = ("sparsity", "training", "ratio", "paper", "inference", "ratio", "paper")
    table = plain_table(("", "method"), numbers)
    table.add_column("")
    for name, experiment, flops in counted:
        row = printed_row(experiment)
        dense = PRINTED_DENSE[row.model] if row is not None and row.method == "dense" else (None, None)
        table.add_row(
            name,
            experiment.method.name,
            f"{experiment.sparsity:g}",
            f"{flops.training:.3e}",
            f"{flops.training_ratio:.3f}",
            _printed(row, "training", dense[0]),
            f"{flops.inference:.3e}",
            f"{flops.inference_ratio:.3f}",
            _printed(row, "inference", dense[1]),
            flops.note,
        )
    return table


def _printed(row: PrintedRow | None, column: str, absolute: float | None) -> str:
    """What the paper prints: a ratio, or for a dense network the number itself."""
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
