"""Commands for a trained model: ``evaluate``, ``generate``, ``export`` and ``header``."""

from __future__ import annotations

import shlex
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from selfish_rnn.cli.console import output, show_note
from selfish_rnn.cli.training import DeviceOption
from selfish_rnn.errors import UserError
from selfish_rnn.text import say

if TYPE_CHECKING:
    from selfish_rnn.runs.run import Run

SourceArgument = Annotated[Path, typer.Argument(metavar="RUN|FILE", help="Folder of a run, or an exported model.")]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run.")]


def evaluate(
    source: SourceArgument,
    device: DeviceOption = None,
    corpus: Annotated[
        str | None,
        typer.Option(metavar="NAME|DIR", help="Another corpus, for an exported model (default: that of its run)."),
    ] = None,
) -> None:
    """Measure the perplexity of a run or an exported model."""
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
        run = Run.open(source, device)
        if corpus is not None:
            folder = shlex.quote(str(source))
            raise UserError(
                "--corpus is for exported models, and a run is measured on its own texts: "
                f"`selfish-rnn export {folder} --out model.safetensors`, then evaluate this file"
            )
        text, model = run.corpus, run.model()
        show_note(run.unfinished())
        measured, trained_on = evaluate_splits(model, run.experiment, text), True
    if trained_on:  # the unigram perplexity of other texts would count words that the model never saw
        measured["unigram_perplexity"] = unigram_perplexity(text)
    for name, value in measured.items():
        output().print(f"{name.replace('_', ' ')} {perplexity_text(value)}")


def generate(
    source: SourceArgument,
    prompt: Annotated[
        str, typer.Option(metavar="TEXT", help="Text to continue (default: a new sentence).", show_default=False)
    ] = "",
    tokens: Annotated[int, typer.Option(min=1, metavar="N", help="Number of words.")] = 60,
    temperature: Annotated[
        float, typer.Option(min=0.0, metavar="T", help="0: always the likeliest word; 1: sample from the model.")
    ] = 0.8,
    top: Annotated[int, typer.Option(min=0, metavar="K", help="Sample from the K likeliest words; 0: from all.")] = 0,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Random seed, for reproducible text.")] = None,
    device: DeviceOption = None,
) -> None:
    """Continue a text with a run or an exported model."""
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
    run: RunArgument,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="File to write (default: RUN.safetensors).")] = None,
    precision: Annotated[
        Literal["float32", "int8"],
        typer.Option(metavar="float32|int8", help="Precision of the weights; int8 is a third of the size and faster."),
    ] = "float32",
    form: Annotated[
        Literal["selfish-rnn", "xiph"],
        typer.Option("--format", metavar="selfish-rnn|xiph", help="Our format, or that of RNNoise and Opus (GRUs)."),
    ] = "selfish-rnn",
) -> None:
    """Write the best model of a run to one file.

    The file contains the vocabulary. Load it with selfish_rnn.load_model, or use it with generate and evaluate. A name
    that ends in .srnn gives the compiled step for C and C++ programs (see selfish-rnn header).
    """
    from selfish_rnn.runs.export import export as write
    from selfish_rnn.runs.run import Run

    path = out or Path(f"{run.resolve().name}.{'safetensors' if form == 'selfish-rnn' else 'bin'}")
    source = Run.open(run)
    if form == "xiph":
        _export_xiph(source, path, precision)
    elif path.suffix == ".srnn":
        _export_step(source, path, precision)
    else:
        write(source, path, precision=precision)
    show_note(source.unfinished())
    console = output()
    say(console, f"{path}: {path.stat().st_size / 2**20:.1f} MiB")
    if form == "selfish-rnn" and path.suffix != ".srnn":
        say(console, f"  selfish-rnn generate {shlex.quote(str(path))} --prompt 'the'")


def _export_xiph(run: Run, path: Path, precision: Literal["float32", "int8"]) -> None:
    """Write the best model of a run as a weight file or C arrays for xiph's runtime."""
    from selfish_rnn.integrations.xiph import export_xiph

    try:
        layers = export_xiph(run.model(), path, precision=precision)
    except ValueError as error:
        raise UserError(str(error)) from error
    for layer in layers:
        kind = "int8" if layer.quantized else "float32"
        blocks = f"{layer.blocks:,} blocks of 8x4" if layer.sparse else "dense"
        say(output(), f"{layer.name}: {layer.outputs} x {layer.inputs}, {kind}, {blocks}, {layer.bytes:,} bytes")


def _export_step(run: Run, path: Path, precision: Literal["float32", "int8"]) -> None:
    """Write the compiled step of the best model of a run."""
    from selfish_rnn.runs.export import export, load_model

    with TemporaryDirectory() as folder:
        file = Path(folder) / "model.safetensors"
        export(run, file, precision=precision)
        step = load_model(file).next_word()
    if step is None:
        raise UserError(f"{path} needs a sparse model and the packed engine's kernels")
    step.save(path)


def header(
    out: Annotated[Path, typer.Option(metavar="FILE", help="File to write.")] = Path("selfish_rnn.h"),
) -> None:
    """Write the C header that runs compiled steps.

    It needs no Python, and reads .srnn files.
    """
    from selfish_rnn.files import write_atomically
    from selfish_rnn.runtime.header import single_header

    write_atomically(out, single_header().encode())
    typer.echo(f"{out}: {out.stat().st_size / 1024:.0f} KiB")
