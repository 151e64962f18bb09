"""What the command line shows: live progress on a terminal, a plain log elsewhere, and the outcome."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table

from selfish_rnn.experiment.settings import Experiment
from selfish_rnn.training.evaluation import perplexity
from selfish_rnn.training.events import EpochReport, StepReport

NARROW = 110
"""Columns below which the live line is shortened."""

LOG_SECONDS = 30.0
"""How often a plain log tells of the progress inside an epoch."""


def duration(seconds: float) -> str:
    """Seconds as a person says them: 45 s, 3 min 05 s, 2 h 10 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def epoch_line(report: EpochReport) -> str:
    """One line on an epoch."""
    notes = []
    if report.averaging:
        notes.append("averaged")
    if report.rewired:
        notes.append(f"then rewired {100 * report.rewired:.1f} %")
    if report.pruned:
        notes.append(f"then pruned {100 * report.pruned:.1f} %")
    if report.best:
        notes.append("best so far")
    return (
        f"epoch {report.epoch:>{len(str(report.epochs))}}/{report.epochs}  "
        f"train perplexity {perplexity(report.train_loss):8.2f}  "
        f"valid perplexity {perplexity(report.valid_loss):8.2f}  "
        f"{report.active_weights:,} weights  {duration(report.seconds)}, {duration(report.seconds_left)} left  "
        f"{', '.join(notes)}"
    ).rstrip()


def step_text(report: StepReport, narrow: bool = False) -> str:
    """Where training stands; on a narrow terminal without what does not change."""
    weights = "" if narrow else f"{report.active_weights:,} weights  "
    word = "ppl" if narrow else "perplexity"
    return (
        f"{report.tokens_per_second:,.0f} tokens/s  loss {report.loss:.3f}  "
        f"{word} {perplexity(report.loss):.1f}  {weights}{duration(report.seconds_left)} left"
    )


class PlainLog:
    """A listener that prints a line per epoch and, in long epochs, one every half minute."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._last = time.monotonic()

    def on_step(self, report: StepReport) -> None:
        if time.monotonic() - self._last > LOG_SECONDS:
            done = 100 * report.row / report.rows
            self._print(f"epoch {report.epoch}/{report.epochs}  {done:.0f} %  {step_text(report)}")

    def on_epoch(self, report: EpochReport) -> None:
        self._print(epoch_line(report))

    def on_note(self, message: str) -> None:
        self._print(message)

    def _print(self, line: str) -> None:
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)
        self._last = time.monotonic()


class LiveProgress(PlainLog):
    """The same with a bar that moves."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=8 if console.width < NARROW else 24),
            TextColumn("{task.fields[text]}"),
            console=console, transient=True, refresh_per_second=4,
        )  # fmt: skip
        self._task: TaskID | None = None

    def __enter__(self) -> LiveProgress:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def on_step(self, report: StepReport) -> None:
        text = step_text(report, narrow=self.console.width < NARROW)
        if self._task is None:
            self._task = self._progress.add_task("", total=report.rows, text=text)
        description = f"epoch {report.epoch}/{report.epochs}"
        self._progress.update(self._task, completed=report.row, total=report.rows, description=description, text=text)


def show_start(console: Console, experiment: Experiment, watched: Any, folder: Path) -> None:
    """What is about to be trained."""
    sparsifier, corpus = watched.sparsifier, watched.corpus
    console.print(f"[bold]{experiment.model.name}[/] on [bold]{escape(corpus.name)}[/]", highlight=False)
    console.print(
        f"{len(corpus.train):,} training tokens, {len(corpus.vocabulary):,} words; "
        f"method {_method_text(experiment)}, optimizer {experiment.optimizer.name}; "
        f"{sparsifier.active_weights:,} of {sparsifier.total_weights:,} weights exist "
        f"(sparsity {100 * (1 - sparsifier.active_weights / sparsifier.total_weights):.0f} %); "
        f"engine {experiment.engine}",
        highlight=False,
        soft_wrap=True,
    )
    console.print(f"run folder {folder}", highlight=False, markup=False, soft_wrap=True)


def _method_text(experiment: Experiment) -> str:
    """The name of the method, and which of its parts were replaced."""
    own, given = experiment.method.configured.method, experiment.method.build().part_names()
    replaced = [f"{part}={given[part]}" for part, name in own.part_names().items() if given[part] != name]
    return f"{own.name} with {', '.join(replaced)}" if replaced else own.name


def show_outcome(console: Console, summary: Mapping[str, Any], folder: Path) -> None:
    """A summary a person likes to read."""
    console.print()
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column()
    table.add_column(justify="right")
    table.add_column(style="dim")
    unigram = summary["unigram_perplexity"]
    test = summary["test_perplexity"]
    table.add_row("test perplexity", f"[bold]{test:.2f}[/]", f"{test / unigram:.2f} times the unigram perplexity")
    table.add_row("valid perplexity", f"{summary['valid_perplexity']:.2f}", f"best at epoch {summary['best_epoch']}")
    table.add_row("unigram perplexity", f"{unigram:.2f}", "of the test text, from word counts alone")
    table.add_row(
        "weights",
        f"{summary['active_weights']:,}",
        f"of {summary['total_weights']:,} (sparsity {100 * summary['sparsity']:.1f} %)",
    )
    table.add_row(
        "parameters",
        f"{summary['active_parameters']:,}",
        f"of {summary['total_parameters']:,}, with what is never made sparse (biases)",
    )
    table.add_row("time", duration(summary["seconds"]), f"{summary['steps']:,} steps")
    if summary["peak_memory_mib"] is not None:
        table.add_row("peak memory", f"{summary['peak_memory_mib']:,.0f} MiB", "of the process, torch included")
    console.print(table)
    console.print()
    console.print(_sparsity_table(summary["density"]))
    console.print()
    console.print(f"The run is in {folder}.", highlight=False, markup=False, soft_wrap=True)


def _sparsity_table(densities: Mapping[str, Mapping[str, float]]) -> Table:
    """Matrices as a whole and by gates."""
    gated = [density for density in densities.values() if len(density) > 2]  # one gate is the whole matrix
    gates = [gate for gate in dict.fromkeys(gate for density in gated for gate in density) if gate != "all"]
    table = Table(title="sparsity, %", title_justify="left", box=None, padding=(0, 2, 0, 0))
    table.add_column("matrix")
    for heading in ("all", *gates):
        table.add_column(heading, justify="right")
    for matrix, density in densities.items():
        cells = [f"{100 * (1 - density[gate]):.1f}" if gate in density else "" for gate in ("all", *gates)]
        table.add_row(matrix, *cells)
    return table


def listener_for(console: Console) -> PlainLog:
    """Live progress where there is a terminal to show it, else a plain log."""
    return LiveProgress(console) if console.is_terminal else PlainLog(console)
