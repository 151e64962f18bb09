"""The options of ``selfish-rnn bench``, defined once: the fields of a model are the flags of the command."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from selfish_rnn.bench.engines import ENGINES
from selfish_rnn.errors import UserError

Network = Literal["lstm", "rhn", "on-lstm"]
Kind = Literal["step", "inference", "operators", "memory", "width"]
Optimizer = Literal["snt-asgd", "nt-asgd", "sgd", "momentum-sgd", "adam"]
"""Names of the optimizers of experiments, here without importing torch."""

NETWORKS = {"lstm": 1500, "rhn": 830, "on-lstm": 1150}
"""The networks, with the paper's hidden sizes."""


def _words(text: Any) -> Any:
    return [word.strip() for word in text.split(",")] if isinstance(text, str) else text


def _in_order_of(known: Sequence[str], given: Sequence[str], always: Sequence[str] = ()) -> tuple[str, ...]:
    for name in given:
        if name not in known:
            raise ValueError(f"must be of {', '.join(known)}")
    return tuple(name for name in known if name in given or name in always)


_SPLIT = BeforeValidator(_words)
_KINDS = AfterValidator(partial(_in_order_of, get_args(Kind)))
_ENGINES = AfterValidator(partial(_in_order_of, tuple(ENGINES), always=("dense",)))
_ONCE = AfterValidator(lambda given: tuple(dict.fromkeys(given)))
_Count = Annotated[int, Field(ge=1)]
_Fraction = Annotated[float, Field(ge=0, lt=1)]


class BenchOptions(BaseModel):
    """What is measured, of which networks, and how.

    ::

        BenchOptions.model_validate({"hidden": "512,1500", "what": "step", "sparsity": "0.9"})
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    network: Network = Field("lstm", description="Which network.")
    hidden: Annotated[tuple[_Count, ...], _SPLIT, _ONCE] = Field(
        description=f"Hidden sizes (default: the paper's; {', '.join(f'{name} {n}' for name, n in NETWORKS.items())})."
    )
    sparsity: Annotated[tuple[_Fraction, ...], _SPLIT, _ONCE] = Field(
        (0.5, 0.67, 0.8, 0.9, 0.95), description="Fractions of zeros."
    )
    batch: _Count = Field(20, description="Texts trained on side by side.")
    window: _Count = Field(35, description="Tokens of each text in a training step.")
    vocabulary: _Count = Field(10_000, description="Words.")
    what: Annotated[tuple[Kind, ...], _SPLIT, _KINDS] = Field(
        ("step", "inference", "operators", "memory"), description="What to measure."
    )
    widths: Annotated[tuple[_Count, ...], _SPLIT, _ONCE] = Field(
        (1500, 2048, 4096, 8192, 16384, 32768),
        description="For width: hidden sizes with the number of weights that --hidden has at each --sparsity.",
    )
    engines: Annotated[tuple[str, ...], _SPLIT, _ENGINES] = Field(
        tuple(ENGINES), description="What to compare; dense always takes part."
    )
    rounds: _Count = Field(5, description="How often everything is measured, in turns.")
    limit: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        None, description="Seconds after which a row gets no more rounds (default: no limit)."
    )
    threads: _Count | None = Field(None, description="Threads (default: as many as torch takes).")
    optimizer: Optimizer = Field("sgd", description="Optimizer of the training steps.")
    keep_memory: bool = Field(False, description="Keep freed memory, as train does.")
    out: Path = Field(Path("bench"), description="Folder for bench.json and bench.png.")

    @model_validator(mode="before")
    @classmethod
    def _size_of_the_paper(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        network = given.get("network", cls.model_fields["network"].default)
        # An unknown network has an error of its own.
        return {"hidden": (NETWORKS.get(network, 1),), **given}


def flag(name: str) -> str:
    """``--keep-memory`` for the field ``keep_memory``."""
    return "--" + name.replace("_", "-")


def read(given: Mapping[str, Any]) -> BenchOptions:
    """The options given as values or as words of the command line; a wrong one is a :class:`UserError`."""
    try:
        return BenchOptions.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        reason = first["msg"].replace("Input should be", "must be")
        raise UserError(f"{flag(str(first['loc'][0]))} {reason}, got {first['input']!r}") from None


def parse(context: typer.Context) -> BenchOptions:
    """The options in the words that a command was called with; ``--help`` prints them all and leaves."""

    def command(**words: Any) -> BenchOptions:
        return read({name: word for name, word in words.items() if word is not None})

    parameters = []
    for name, field in BenchOptions.model_fields.items():
        kind: Any = bool if field.annotation is bool else str | None
        metavar = None if kind is bool else _metavar(field.annotation)
        default = None if field.is_required() else field.default
        if isinstance(default, tuple):
            default = ",".join(map(str, default))
        option = typer.Option(default, flag(name), help=field.description, metavar=metavar)
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=kind))
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command(help=context.command.help)(command)
    options = app(context.args, prog_name=context.command_path, standalone_mode=False)
    if not isinstance(options, BenchOptions):  # but the exit code of --help
        raise typer.Exit
    return options


def _metavar(annotation: Any) -> str:
    """``INT,...`` for a list of numbers, ``a|b`` for a choice."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return "|".join(arguments)
    if origin is tuple:
        return f"{_metavar(arguments[0])},..."
    return _metavar(arguments[0]) if arguments else str(annotation.__name__).upper()
