"""Commands for a trained model: evaluate, generate, export and header."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from selfish_rnn.cli.console import output, show_note
from selfish_rnn.cli.training import DeviceOption
from selfish_rnn.errors import UserError
from selfish_rnn.text import say

SourceArgument = Annotated[Path, typer.Argument(metavar="RUN|FILE", help="Folder of a run, or an exported model.")]


def evaluate(
    source: SourceArgument,
    device: DeviceOption = None,
    corpus: Annotated[str | None, typer.Option(help="For an exported model (default: that of its run).")] = None,
) -> None:
    """Measure the model of a run, or an exported one, on its texts."""
    from selfish_rnn.cli.display import perplexity_text
    from selfish_rnn.corpora import unigram_perplexity
    from selfish_rnn.runs.export import ExportedModel
    from selfish_rnn.runs.run import Run
    from selfish_rnn.training.evaluation import evaluate_splits

    if source.is_file():
        exported = ExportedModel.read(source)
        text = exported.corpus(corpus)
        model = exported.model() if device is None else exported.model(packed=False).to(device)
        measured, trained_on = evaluate_splits(model, exported.evaluation, text), exported.trained_on(text)
    else:
        opened = Run.open(source, device)
        text, model = opened.corpus, opened.model()
        show_note(opened.unfinished())
        measured, trained_on = evaluate_splits(model, opened.experiment, text), True
    if trained_on:  # of other texts the words would be counted that the model never saw
        measured["unigram_perplexity"] = unigram_perplexity(text)
    for name, value in measured.items():
        output().print(f"{name.replace('_', ' ')} {perplexity_text(value)}")


def generate(
    source: SourceArgument,
    prompt: Annotated[str, typer.Option(help="Text to continue (default: a new sentence).", show_default=False)] = "",
    tokens: Annotated[int, typer.Option(min=1, help="How many words to write.")] = 60,
    temperature: Annotated[float, typer.Option(min=0.0, help="0: the likeliest word; 1: as the model says.")] = 0.8,
    top: Annotated[int, typer.Option(min=0, help="Draw only from so many of the likeliest words; 0: from all.")] = 0,
    seed: Annotated[int | None, typer.Option(help="For the same text every time.")] = None,
    device: DeviceOption = None,
) -> None:
    """Let the model of a run, or an exported one, continue a text."""
    from selfish_rnn.runs.export import load_model
    from selfish_rnn.runs.run import Run
    from selfish_rnn.training.evaluation import generate as continue_text

    if source.is_file():
        model = load_model(source) if device is None else load_model(source, packed=False).to(device)
    else:
        model = Run.open(source, device).model()
    words = model.vocabulary
    say(output(), continue_text(model, words, prompt, tokens=tokens, temperature=temperature, top=top, seed=seed))


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
    from selfish_rnn.files import write_atomically
    from selfish_rnn.runtime.header import single_header

    write_atomically(out, single_header().encode())
    typer.echo(f"{out}: {out.stat().st_size / 1024:.0f} KiB")
