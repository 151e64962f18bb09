"""Options of ``selfish-rnn bench``, defined once: the fields of a model are the options of the command."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from selfish_rnn.bench.engines import ENGINES
from selfish_rnn.errors import UserError, plain_reason, shown

Network = Literal["lstm", "rhn", "on-lstm"]
Kind = Literal["step", "inference", "operators", "memory", "width"]
Optimizer = Literal["snt-asgd", "nt-asgd", "sgd", "momentum-sgd", "adam"]
"""Names of the optimizers of experiments, here without importing torch."""

NETWORKS = {"lstm": 1500, "rhn": 830, "on-lstm": 1150}
"""Networks with the hidden sizes of the paper."""


def _split(text: Any) -> Any:
    return [word.strip() for word in text.split(",")] if isinstance(text, str) else text


def _ordered(known: Sequence[str], names: Sequence[str], always: Sequence[str] = ()) -> tuple[str, ...]:
    """Return `names` and `always` in the order of `known`."""
    for name in names:
        if name not in known:
            raise ValueError(f"must be of {', '.join(known)}")
    return tuple(name for name in known if name in names or name in always)


_SPLIT = BeforeValidator(_split)
_KINDS = AfterValidator(partial(_ordered, get_args(Kind)))
_ENGINES = AfterValidator(partial(_ordered, tuple(ENGINES), always=("dense",)))
_UNIQUE = AfterValidator(lambda values: tuple(dict.fromkeys(values)))
_Count = Annotated[int, Field(ge=1)]
_Fraction = Annotated[float, Field(ge=0, lt=1)]


class BenchOptions(BaseModel):
    """Networks, measurements and engines of a benchmark.

    ::

        BenchOptions.model_validate({"hidden": "512,1500", "what": "step", "sparsity": "0.9"})
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    network: Network = Field("lstm", description="Network.")
    hidden: Annotated[tuple[_Count, ...], _SPLIT, _UNIQUE] = Field(
        description=f"Hidden sizes (default: the paper's; {', '.join(f'{name} {n}' for name, n in NETWORKS.items())})."
    )
    sparsity: Annotated[tuple[_Fraction, ...], _SPLIT, _UNIQUE] = Field(
        (0.5, 0.67, 0.8, 0.9, 0.95), description="Fractions of zeros."
    )
    batch: _Count = Field(20, description="Batch size of training.")
    window: _Count = Field(35, description="BPTT length in tokens.")
    vocabulary: _Count = Field(10_000, description="Number of words.")
    what: Annotated[tuple[Kind, ...], _SPLIT, _KINDS] = Field(
        ("step", "inference", "operators", "memory"), description="Measurements."
    )
    widths: Annotated[tuple[_Count, ...], _SPLIT, _UNIQUE] = Field(
        (1500, 2048, 4096, 8192, 16384, 32768),
        description="With --what width: hidden sizes, with the number of weights of --hidden at each --sparsity.",
    )
    engines: Annotated[tuple[str, ...], _SPLIT, _ENGINES] = Field(
        tuple(ENGINES), description="Engines to compare (default: all; dense is always included)."
    )
    rounds: _Count = Field(5, description="Number of measurement rounds; engines take turns in each.")
    limit: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        None, description="Seconds after which a row gets no more rounds (default: no limit)."
    )
    threads: _Count | None = Field(None, description="Number of threads (default: that of torch).")
    optimizer: Optimizer = Field("sgd", description="Optimizer of training steps.")
    keep_memory: bool = Field(False, description="Keep freed memory, like train.")
    out: Path = Field(Path("bench"), description="Folder of bench.json and bench.png.")

    @model_validator(mode="before")
    @classmethod
    def _default_size(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        network = values.get("network", cls.model_fields["network"].default)
        # An unknown network has an error of its own.
        return {"hidden": (NETWORKS.get(network, 1),), **values}


def flag(name: str) -> str:
    """Return the option of a field.

    >>> flag("keep_memory")
    '--keep-memory'
    """
    return "--" + name.replace("_", "-")


def read(values: Mapping[str, Any]) -> BenchOptions:
    """Validate options, given as values or as words of the command line; None stands for the default.

    Raises:
        UserError: If an option is invalid.
    """
    try:
        return BenchOptions.model_validate({name: value for name, value in values.items() if value is not None})
    except ValidationError as error:
        detail = error.errors()[0]
        name = flag(str(detail["loc"][0]))
        if detail["type"] == "extra_forbidden":
            raise UserError(f"no such option: {name}") from None
        raise UserError(f"{name} {plain_reason(detail['msg'])}, got {shown(detail['input'])}") from None


def signature() -> inspect.Signature:
    """Return the signature of the command: an option for every field, with its description and default in the help."""
    parameters = []
    for name, field in BenchOptions.model_fields.items():
        kind: Any = bool if field.annotation is bool else str | None
        default = None if field.is_required() or name == "engines" else field.default
        if isinstance(default, tuple):
            default = ", ".join(map(str, default))
        elif kind is not bool and default is not None:
            default = str(default)
        metavar = None if kind is bool else _metavar(field.annotation)
        option = typer.Option(flag(name), help=field.description, metavar=metavar)
        parameters.append(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option])
        )
    return inspect.Signature(parameters)


def _metavar(annotation: Any) -> str:
    """Return ``N,...`` for a list of numbers, ``a|b`` for a choice."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return "|".join(arguments)
    if origin is tuple:
        return f"{_metavar(arguments[0])},..."
    if arguments:
        return _metavar(arguments[0])
    return {int: "N", float: "X", Path: "DIR", str: "NAME"}[annotation]
