"""The command line."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.console import Console
from rich.table import Table

from selfish_rnn.errors import UserError

if TYPE_CHECKING:  # torch takes a second to import, which --help should not
    from selfish_rnn.runs.run import Run

app = typer.Typer(
    help="Train recurrent networks that are sparse from the first step to the last.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
# A folder may be called :key:, and a log has no edge at which tables would have to be folded.
console = Console(highlight=False, emoji=False, width=None if sys.stdout.isatty() else 200)

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")]
DeviceOption = Annotated[str | None, typer.Option(help="cpu or cuda (default: what the settings say).")]


def _print_version(wanted: bool) -> None:
    if wanted:
        from selfish_rnn import __version__

        console.print(f"selfish-rnn {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Train recurrent networks that are sparse from the first step to the last."""


@app.command()
def train(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PRESET] [KEY=VALUE]...", help="A preset (default: quickstart) and changes to it."),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A YAML file laid over the preset.")] = None,
    run: Annotated[Path | None, typer.Option(help="Folder of the run (default: the next free one in runs/).")] = None,
    device: DeviceOption = None,
) -> None:
    """Train a network, for example: selfish-rnn train ptb-stacked-lstm-small sparsity=0.8"""
    from selfish_rnn.experiment.presets import (
        build_experiment,
        read_config,
        read_preset,
        with_assignments,
        with_settings,
    )
    from selfish_rnn.runs.folder import RunFolder
    from selfish_rnn.runs.run import Run

    preset, assignments = _preset_and_assignments(words)
    settings, _ = read_preset(preset)
    name = preset
    source = f"preset {preset}"
    if config is not None:
        settings = with_settings(settings, read_config(config))
        # The configuration of a run is named after the run.
        name, source = config.resolve().parent.name if config.name == "config.yaml" else config.stem, str(config)
    if device is not None:
        assignments.append(f"device={device}")
    if assignments:
        settings = with_assignments(settings, assignments)
        source = "settings"
    experiment = build_experiment(settings, source)
    path = run or RunFolder.free_name(Path("runs"), name)
    _execute(Run.start(experiment, path))


@app.command()
def resume(
    run: RunArgument,
    device: DeviceOption = None,
    engine: Annotated[
        str | None, typer.Option(help="masked or packed (default: what the run was started with).")
    ] = None,
) -> None:
    """Continue a run that was interrupted; the result is the same as if it had not been."""
    from selfish_rnn.runs.run import Run

    _execute(Run.open(run, device, engine))


@app.command()
def evaluate(run: RunArgument, device: DeviceOption = None) -> None:
    """Measure the best model of a run on the validation and test text."""
    from selfish_rnn.corpora import unigram_perplexity
    from selfish_rnn.runs.outcome import evaluate_splits
    from selfish_rnn.runs.run import Run

    opened = Run.open(run, device)
    corpus = opened.corpus()
    for name, value in evaluate_splits(opened.model(), opened.experiment, corpus).items():
        console.print(f"{name.replace('_', ' ')} {value:.2f}")
    console.print(f"unigram perplexity {unigram_perplexity(corpus):.2f}")


@app.command()
def generate(
    source: Annotated[Path, typer.Argument(metavar="RUN|FILE", help="Folder of a run, or an exported model.")],
    prompt: Annotated[str, typer.Option(help="Text to continue.")],
    tokens: Annotated[int, typer.Option(min=1, help="How many words to write.")] = 60,
    temperature: Annotated[float, typer.Option(min=0.0, help="0: the likeliest word; 1: as the model says.")] = 0.8,
    seed: Annotated[int | None, typer.Option(help="For the same text every time.")] = None,
    device: DeviceOption = None,
) -> None:
    """Let the best model of a run, or an exported one, continue a text."""
    from selfish_rnn.runs.export import load_model
    from selfish_rnn.runs.outcome import generate as continue_text
    from selfish_rnn.runs.run import Run

    if source.is_file():
        model = load_model(source) if device is None else load_model(source, packed=False).to(device)
        words = model.vocabulary
    else:
        opened = Run.open(source, device)
        model, words = opened.model(), opened.vocabulary()
    text = continue_text(model, words, prompt, tokens=tokens, temperature=temperature, seed=seed)
    console.print(text, markup=False, soft_wrap=True)


@app.command()
def export(
    run: RunArgument,
    out: Annotated[Path | None, typer.Option(help="File to write (default: the name of the run).")] = None,
) -> None:
    """Write the best model of a run with its words to one file, for selfish_rnn.load_model and generate."""
    from selfish_rnn.runs.export import export as write
    from selfish_rnn.runs.run import Run

    opened = Run.open(run)
    path = out or Path(f"{run.resolve().name}.safetensors")
    write(opened.experiment, opened.folder, path)
    console.print(f"{path}: {path.stat().st_size / 2**20:.1f} MiB", markup=False, soft_wrap=True)
    console.print(f"  selfish-rnn generate {shlex.quote(str(path))} --prompt 'the'", markup=False, soft_wrap=True)


@app.command()
def presets() -> None:
    """List the presets."""
    from selfish_rnn.experiment.presets import preset_names, read_preset

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name in preset_names():
        table.add_row(name, read_preset(name)[1])
    console.print(table)


@app.command()
def show(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[PRESET] [KEY=VALUE]...", help="A preset and changes to it.")
    ] = None,
) -> None:
    """Print a preset with every setting, as a configuration file to start from."""
    from selfish_rnn.experiment.presets import build_experiment, explained_yaml, read_preset, with_assignments

    preset, assignments = _preset_and_assignments(words)
    settings, about = read_preset(preset)
    experiment = build_experiment(with_assignments(settings, assignments), "settings")
    console.print(f"# {about}", markup=False, soft_wrap=True)
    console.print(explained_yaml(experiment), markup=False, soft_wrap=True, end="")


def _preset_and_assignments(words: list[str] | None) -> tuple[str, list[str]]:
    given = list(words or [])
    return (given.pop(0) if given and "=" not in given[0] else "quickstart"), given


@app.command()
def methods() -> None:
    """Print the method table: what each method is composed of."""
    from selfish_rnn.experiment.configured_methods import CONFIGURED_METHODS

    rows = [method.row() for method in CONFIGURED_METHODS.values()]
    headings = [heading for heading in rows[0] if heading != "reference"]
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*(row[heading] for heading in headings))
    console.print(table)
    console.print(
        "\nallocation: how the weights are divided over the matrices at the start; pool: among which weights the "
        "smallest are looked for; sparse backward: nothing is computed for weights that do not exist; own optimizer: "
        "comes with one (SNT-ASGD), though every method works with every optimizer."
    )
    console.print("A part is replaced by name: selfish-rnn train method=rigl method.growth=random", soft_wrap=True)


@app.command(add_help_option=False, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def bench(context: typer.Context) -> None:
    """Measure how fast and how small the engines are, for example: selfish-rnn bench --hidden 512 --what step"""
    from selfish_rnn.bench.options import parse

    options = parse(context)  # before torch is imported, which --help and a wrong word can do without
    from selfish_rnn.bench.bench import bench as measure

    if not measure(console, options, shlex.join(["selfish-rnn", *sys.argv[1:]])):
        raise typer.Exit(130)


def _execute(run: Run) -> None:
    """Train to the end, with what a person sees on the way."""
    from selfish_rnn.cli.display import listener_for, show_outcome, show_start
    from selfish_rnn.system import keep_freed_memory
    from selfish_rnn.training.stop import Interrupted

    keep_freed_memory()
    path = run.folder.path
    listener = listener_for(console)
    with contextlib.ExitStack() as stack:
        trainer = run.trainer(listener)
        if trainer.position.finished:
            console.print(f"The run in {path} is finished; this is what it came to.", markup=False, soft_wrap=True)
        show_start(console, trainer.experiment, trainer, path)
        for note in run.notes:
            console.print(note, markup=False, soft_wrap=True)
        if isinstance(listener, contextlib.AbstractContextManager):
            stack.enter_context(listener)
        try:
            summary = run.execute(trainer)
        except Interrupted:
            stack.close()
            console.print(
                f"Stopped; continue with: selfish-rnn resume {shlex.quote(str(path))}", markup=False, soft_wrap=True
            )
            raise typer.Exit(130) from None
    show_outcome(console, summary, path)
    quoted = shlex.quote(str(path))
    console.print("What to try next:")
    console.print(f"  selfish-rnn generate {quoted} --prompt 'the'", markup=False, soft_wrap=True)
    console.print(f"  tensorboard --logdir {quoted}", markup=False, soft_wrap=True)
    other = "method=static   # without rewiring" if trainer.sparsifier.method.rewires else "method=selfish   # rewired"
    console.print(
        f"  selfish-rnn train --config {shlex.quote(str(run.folder.config))} {other}", markup=False, soft_wrap=True
    )


@contextlib.contextmanager
def _clear_errors() -> Iterator[None]:
    try:
        yield
    except UserError as error:
        _fail(str(error))
    except KeyboardInterrupt:
        _fail("interrupted", code=130)


def _fail(message: str, code: int = 2) -> NoReturn:
    Console(stderr=True, highlight=False, emoji=False).print(f"error: {message}", markup=False, soft_wrap=True)
    raise SystemExit(code)


def main() -> None:
    """Run the command line; what the user can put right is one line and exit code 2."""
    with _clear_errors():
        app(prog_name="selfish-rnn")
    sys.exit(0)
