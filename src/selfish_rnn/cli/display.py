"""Display of training: live progress on a terminal, a plain log elsewhere, and the outcome."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from selfish_rnn.experiment.methods import method_row
from selfish_rnn.experiment.settings import Experiment
from selfish_rnn.runs.logs import tensorboard_installed
from selfish_rnn.text import duration, plain_table, say
from selfish_rnn.topology import Method
from selfish_rnn.training.evaluation import perplexity
from selfish_rnn.training.metrics import Listener, StepReport
from selfish_rnn.training.records import EpochRecord
from selfish_rnn.training.trainer import Trainer

NARROW = 110
"""Terminal width below which the progress line is shortened."""

PAGE = 100
"""Width of tables and texts."""

LOG_SECONDS = 30.0
"""Interval between progress lines of a plain log within an epoch."""


def perplexity_text(value: float) -> str:
    """Return a perplexity with two decimals, or as an order of magnitude above a million (a diverged network)."""
    return f"{value:.2f}" if value < 1e6 else f"{value:.1e}"


def epoch_line(
    record: EpochRecord, weights: int, change: str = "rewired", *, epochs: int, seconds_left: float, best: bool = False
) -> str:
    """Return one line on an epoch of a run of ``epochs`` epochs.

    The number of weights is shown only where it differs from ``weights``, the number before the epoch.
    """
    notes = []
    if record.averaging:
        notes.append("averaged")
    if record.active_weights != weights:
        notes.append(f"{record.active_weights:,} weights")
    elif record.prune_rate:
        notes.append(f"{change} {100 * record.prune_rate:.1f} %")
    if best:
        notes.append("best")
    return (
        f"epoch {record.epoch:>{len(str(epochs))}}/{epochs}  "
        f"train {perplexity_text(record.train_perplexity):>8}  valid {perplexity_text(record.valid_perplexity):>8}  "
        f"{duration(seconds_left)} left  {', '.join(notes)}"
    ).rstrip()


def step_text(report: StepReport, narrow: bool = False) -> str:
    """Return the progress within an epoch, shortened for a narrow terminal."""
    word = "ppl" if narrow else "perplexity"
    return (
        f"{report.tokens_per_second:,.0f} tokens/s  loss {report.loss:.3f}  "
        f"{word} {perplexity_text(perplexity(report.loss))}  {duration(report.seconds_left)} left"
    )


class PlainLog(Listener):
    """Listener that prints a line per epoch, and one every half minute in long epochs."""

    def __init__(self, console: Console, folder: Path) -> None:
        self.console = console
        self.folder = folder
        self._last = time.monotonic()
        self._weights = 0
        self._trainer: Trainer | None = None

    def __enter__(self) -> PlainLog:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def on_start(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._weights = trainer.sparsifier.active_weights
        show_start(self.console, trainer, self.folder)

    def on_step(self, report: StepReport) -> None:
        if time.monotonic() - self._last > LOG_SECONDS:
            done = 100 * report.row / report.rows
            self._print(f"epoch {report.epoch}/{report.epochs}  {done:.0f} %  {step_text(report)}")

    def on_epoch(self, record: EpochRecord) -> None:
        trainer = self._trainer
        assert trainer is not None
        line = epoch_line(
            record,
            self._weights,
            "pruned" if trainer.sparsifier.method.prunes else "rewired",
            epochs=trainer.experiment.epochs,
            seconds_left=trainer.seconds_left,
            best=trainer.state.settled and trainer.state.best_epoch == record.epoch,
        )
        self._print(line)
        self._weights = record.active_weights

    def on_note(self, message: str) -> None:
        self._print(message)

    def _print(self, line: str) -> None:
        say(self.console, line)
        self._last = time.monotonic()


class LiveProgress(PlainLog):
    """Plain log with a progress bar."""

    def __init__(self, console: Console, folder: Path) -> None:
        super().__init__(console, folder)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=8 if console.width < NARROW else 24),
            TextColumn("{task.fields[text]}"),
            console=console, transient=True, refresh_per_second=4,
        )  # fmt: skip
        self._task = self._progress.add_task("", visible=False, text="")

    def __enter__(self) -> LiveProgress:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def on_step(self, report: StepReport) -> None:
        text = step_text(report, narrow=self.console.width < NARROW)
        self._progress.update(self._task, completed=report.row, total=report.rows)
        self._progress.update(self._task, description=f"epoch {report.epoch}/{report.epochs}", text=text, visible=True)


def show_start(console: Console, trainer: Trainer, folder: Path) -> None:
    """Print model, corpus, method and folder of a run."""
    if trainer.state.finished:
        say(console, f"The run in {folder} is finished; this is its outcome.")
    experiment, sparsifier, corpus = trainer.experiment, trainer.sparsifier, trainer.corpus
    console.print(f"[bold]{experiment.model.name}[/] on [bold]{escape(corpus.name)}[/]", highlight=False)
    say(
        console,
        f"{len(corpus.train):,} training tokens, {len(corpus.vocabulary):,} words; "
        f"method {_method_text(experiment)}, optimizer {experiment.optimizer.name}; "
        f"{sparsifier.active_weights:,} of {sparsifier.total_weights:,} weights exist "
        f"(sparsity {100 * (1 - sparsifier.active_weights / sparsifier.total_weights):.0f} %); "
        f"engine {experiment.engine}" + (f"; {trainer.ranks.size} ranks" if trainer.ranks.size > 1 else ""),
    )
    say(console, f"run folder {folder}")


def _method_text(experiment: Experiment) -> str:
    """Return the name of the method with its replaced parts."""
    method, parts = experiment.method.base, experiment.method.build().part_names()
    replaced = [f"{part}={parts[part]}" for part, name in method.part_names().items() if parts[part] != name]
    return f"{method.name} with {', '.join(replaced)}" if replaced else method.name


def show_outcome(console: Console, summary: Mapping[str, Any], folder: Path) -> None:
    """Print the outcome of a run."""
    console.print()
    table = plain_table([""], [""], show_header=False)
    table.add_column(style="dim")
    unigram, test = summary["unigram_perplexity"], summary["test_perplexity"]
    ratio = f"{test / unigram:.2f} times the unigram perplexity" if test < 1e6 else ""
    table.add_row("test perplexity", f"[bold]{perplexity_text(test)}[/]", ratio)
    valid = perplexity_text(summary["valid_perplexity"])
    table.add_row("valid perplexity", valid, f"best at epoch {summary['best_epoch']}")
    for name, average in summary.get("averages", {}).items():
        best = f"valid {perplexity_text(average['valid_perplexity'])}, best at epoch {average['best_epoch']}"
        table.add_row(f"test, average {name}", perplexity_text(average["test_perplexity"]), best)
    table.add_row("unigram perplexity", f"{unigram:.2f}", "of the test text, by word counts alone")
    of_weights = f"of {summary['total_weights']:,} (sparsity {100 * summary['sparsity']:.1f} %)"
    table.add_row("weights", f"{summary['active_weights']:,}", of_weights)
    of_parameters = f"of {summary['total_parameters']:,}, including dense ones (biases)"
    table.add_row("parameters", f"{summary['active_parameters']:,}", of_parameters)
    table.add_row("time", duration(summary["seconds"]), f"{summary['steps']:,} steps")
    if summary["peak_memory_mib"] is not None:
        table.add_row("peak memory", f"{summary['peak_memory_mib']:,.0f} MiB", "of the process, including torch")
    console.print(table)
    console.print()
    console.print(_sparsity_table(summary["density"]))
    console.print()
    if test > summary["vocabulary"]:
        say(
            console,
            f"The run diverged: its perplexity is above {summary['vocabulary']:,}, that of a uniform guess among its "
            "words. Try a smaller optimizer.lr, clip or prune_rate.",
        )
    say(console, f"The run is in {folder}.")


def show_next(console: Console, experiment: Experiment, folder: Path) -> None:
    """Print commands to try with a finished run."""
    path, config = shlex.quote(str(folder)), shlex.quote(str(folder / "config.yaml"))
    rewires = experiment.method.build().rewires
    variant = "method=static   # without rewiring" if rewires else "method=selfish   # with rewiring"
    say(console, "What to try next:")
    say(console, f"  selfish-rnn generate {path} --prompt 'the'")
    if tensorboard_installed():
        say(console, f"  tensorboard --logdir {path}")
    say(console, f"  selfish-rnn train --config {config} {variant}")


def show_methods(console: Console, methods: Iterable[Method]) -> None:
    """Print the parts and the reference of every method."""
    rows, width = [method_row(method) for method in methods], min(console.width, PAGE)
    table = plain_table()
    headings = ("method", "allocation", "removal", "pool", "growth", "redistribution")
    for heading in headings:
        table.add_column(heading, no_wrap=width == PAGE)
    references = plain_table(show_header=False)
    for row in rows:
        table.add_row(*(row[heading] for heading in headings))
        references.add_row(row["method"], escape(row["reference"]))
    console.print(table, width=width)
    dense = [row["method"] for row in rows if row["sparse backward"] == "no"]
    averaging = [row["method"] for row in rows if row["own optimizer"] == "yes"]
    console.print(
        "\nallocation: division of the weights among the matrices at the start; pool: the set within which weights are "
        f"ranked. Only {', '.join(dense)} compute gradients of weights that do not exist. "
        f"{', '.join(averaging)} is published with SNT-ASGD, but every method works with every optimizer. "
        "Replace a part by its name:",
        width=width,
    )
    say(console, "  selfish-rnn train method=rigl method.growth=random\n")
    console.print(references, width=width)


def _sparsity_table(densities: Mapping[str, Mapping[str, float]]) -> Table:
    """Return the sparsity of every matrix and of its gates."""
    gated = [density for density in densities.values() if len(density) > 2]  # a single gate is the whole matrix
    gates = [gate for gate in dict.fromkeys(gate for density in gated for gate in density) if gate != "all"]
    table = plain_table(["matrix"], ["all", *gates], title="sparsity, %", title_justify="left")
    for matrix, density in densities.items():
        cells = [f"{100 * (1 - density[gate]):.1f}" if gate in density else "" for gate in ("all", *gates)]
        table.add_row(matrix, *cells)
    return table


def listener_for(console: Console, folder: Path) -> PlainLog:
    """Return live progress for a terminal, a plain log otherwise."""
    return LiveProgress(console, folder) if console.is_terminal else PlainLog(console, folder)
