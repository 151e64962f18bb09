"""Options of ``selfish-rnn bench``, defined once: the fields of a class are the options of the command.

It imports neither torch nor pydantic, so that --help is fast.
"""

# ruff: noqa: RUF009 (the defaults of BenchOptions are fields)

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import typer

from selfish_rnn.bench.engines import ENGINES
from selfish_rnn.errors import UserError, short_repr

Network = Literal["lstm", "gru", "rhn", "on-lstm"]
Kind = Literal["step", "inference", "operators", "memory", "width", "stream"]
Optimizer = Literal["snt-asgd", "nt-asgd", "sgd", "momentum-sgd", "adam"]
"""Names of the optimizers of experiments, here without importing torch."""

NETWORKS = {"lstm": 1500, "rhn": 830, "on-lstm": 1150}
"""Networks with the hidden sizes of the paper."""

STREAM_HIDDEN = (24, 40, 64, 128, 256, 384, 512)
"""Hidden sizes of streams by default: from guitar amplifiers to speech enhancement."""

STREAM_SPARSITY = (0.0, 0.5, 0.67, 0.8, 0.9)
"""Sparsities of streams by default: with 0 there is nothing to skip."""


def _count(value: Any) -> int:
    """Return a positive integer."""
    try:
        number = int(value)
    except ValueError:
        raise ValueError("must be an integer") from None
    if number < 1:
        raise ValueError("must be at least 1")
    return number


def _number(value: Any) -> float:
    try:
        return float(value)
    except ValueError:
        raise ValueError("must be a number") from None


def _fraction(value: Any) -> float:
    """Return a number in [0, 1)."""
    number = _number(value)
    if number < 0:
        raise ValueError("must be at least 0")
    if not number < 1:
        raise ValueError("must be less than 1")
    return number


def _seconds(value: Any) -> float:
    """Return a positive finite number."""
    number = _number(value)
    if not math.isfinite(number):
        raise ValueError("must be finite")
    if number <= 0:
        raise ValueError("must be greater than 0")
    return number


def _choice(names: Sequence[str], value: Any) -> str:
    if value not in names:
        raise ValueError(f"must be {', '.join(names[:-1])} or {names[-1]}")
    return str(value)


def _list(parse: Callable[[Any], Any], value: Any) -> tuple[Any, ...]:
    """Return parsed entries of a list or of a text with commas, without repetitions."""
    parsed: dict[Any, None] = {}
    for entry in value.split(",") if isinstance(value, str) else value:
        word = entry.strip() if isinstance(entry, str) else entry
        try:
            parsed[parse(word)] = None
        except ValueError as error:
            raise ValueError(error.args[0], word) from None
    return tuple(parsed)


def _names(names: Sequence[str], always: Sequence[str], value: Any) -> tuple[str, ...]:
    """Return the chosen names and `always`, in the order of `names`."""
    chosen = _list(partial(_choice, names), value)
    return tuple(name for name in names if name in chosen or name in always)


def _option(default: Any, parse: Callable[[Any], Any], metavar: str | None, text: str, shown: str | None = None) -> Any:
    """Return the field of an option.

    Args:
        default: Default value.
        parse: Function from a value, or a word of the command line, to the value of the field.
        metavar: Placeholder of the value in the help; None for a flag.
        text: Help text.
        shown: Default value in the help, if it differs; empty: not shown.
    """
    return field(default=default, metadata={"parse": parse, "metavar": metavar, "help": text, "shown": shown})


_KINDS, _ENGINES = get_args(Kind), tuple(ENGINES)


@dataclass(frozen=True)
class BenchOptions:
    """Networks, measurements and engines of a benchmark. Use :func:`read` to validate values.

    ::

        read({"hidden": "512,1500", "what": "step", "sparsity": "0.9"})
    """

    network: Network = _option("lstm", partial(_choice, get_args(Network)), "|".join(get_args(Network)), "Network.")
    hidden: tuple[int, ...] = _option(
        (),
        partial(_list, _count),
        "N,...",
        f"Hidden sizes (default: the paper's; {', '.join(f'{name} {size}' for name, size in NETWORKS.items())}; "
        "24 to 512 for --what stream).",
    )
    sparsity: tuple[float, ...] = _option(
        (0.5, 0.67, 0.8, 0.9, 0.95), partial(_list, _fraction), "X,...", "Fractions of zeros."
    )
    batch: int = _option(20, _count, "N", "Batch size of training.")
    window: int = _option(35, _count, "N", "BPTT length in tokens.")
    vocabulary: int = _option(10_000, _count, "N", "Number of words.")
    what: tuple[Kind, ...] = _option(
        ("step", "inference", "operators", "memory"), partial(_names, _KINDS, ()), "|".join(_KINDS) + ",...",
        "Measurements.",
    )  # fmt: skip
    widths: tuple[int, ...] = _option(
        (1500, 2048, 4096, 8192, 16384, 32768),
        partial(_list, _count),
        "N,...",
        "With --what width: hidden sizes, with the number of weights of --hidden at each --sparsity.",
    )
    engines: tuple[str, ...] = _option(
        _ENGINES, partial(_names, _ENGINES, ("dense",)), "NAME,...",
        "Engines to compare (default: all; dense is always included).", "",
    )  # fmt: skip
    rounds: int = _option(5, _count, "N", "Number of measurement rounds; engines take turns in each.")
    limit: float | None = _option(
        None, _seconds, "SECONDS", "Time after which a row gets no more rounds (default: no limit)."
    )
    threads: int | None = _option(None, _count, "N", "Number of threads (default: that of torch).")
    optimizer: Optimizer = _option(
        "sgd", partial(_choice, get_args(Optimizer)), "|".join(get_args(Optimizer)), "Optimizer of training steps."
    )
    keep_memory: bool = _option(False, bool, None, "Keep freed memory, like train.")
    out: Path = _option(Path("bench"), Path, "DIR", "Folder of bench.json and bench.png.")

    def to_json(self) -> dict[str, Any]:
        """Return the options as an object that :func:`read` accepts."""
        values = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        return {**values, "out": str(self.out)}


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
    parsers = {entry.name: entry.metadata["parse"] for entry in fields(BenchOptions)}
    checked: dict[str, Any] = {}
    for name, value in values.items():
        if name not in parsers:
            raise UserError(f"no such option: {flag(name)}")
        if value is None:
            continue
        try:
            checked[name] = parsers[name](value)
        except ValueError as error:
            reason, *entry = error.args  # a list names its invalid entry
            raise UserError(f"{flag(name)} {reason}, got {short_repr(*entry or [value])}") from None
    network, streams = checked.get("network", "lstm"), checked.get("what") == ("stream",)
    if network == "gru" and not streams:
        raise UserError("--network gru is for --what stream")
    if streams:
        checked = {"hidden": STREAM_HIDDEN, "sparsity": STREAM_SPARSITY, **checked}
    if not checked.get("hidden"):
        checked["hidden"] = (NETWORKS[network],)
    return BenchOptions(**checked)


def signature() -> inspect.Signature:
    """Return the signature of the command: an option for every field, with its description and default in the help."""
    parameters = []
    for entry in fields(BenchOptions):
        about = entry.metadata
        kind: Any = str | None if about["metavar"] else bool
        default = about["shown"] if about["shown"] is not None else entry.default
        if about["metavar"]:
            default = ", ".join(map(str, default)) if isinstance(default, tuple) else default and str(default)
        option = typer.Option(flag(entry.name), help=about["help"], metavar=about["metavar"])
        parameters.append(
            inspect.Parameter(
                entry.name, inspect.Parameter.KEYWORD_ONLY, default=default or None if about["metavar"] else False,
                annotation=Annotated[kind, option],
            )
        )  # fmt: skip
    return inspect.Signature(parameters)
