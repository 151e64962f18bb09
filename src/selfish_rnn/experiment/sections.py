"""Building blocks of settings: sections, bounded numbers and names out of a table."""

from __future__ import annotations

import typing
from collections.abc import Collection
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from selfish_rnn.errors import unknown
from selfish_rnn.topology.methods import OPTIONAL_PARTS, registered_names

LARGEST_SEED = 2**63 - 1

Count = Annotated[int, Field(gt=0, le=10**9)]
Seed = Annotated[int, Field(ge=0, le=LARGEST_SEED)]
Beta = Annotated[float, Field(ge=0, lt=1)]
# Beyond a million float32 overflows within a few updates.
Factor = Annotated[float, Field(ge=0, le=1e6)]
Rate = Annotated[float, Field(gt=0, le=1e6)]


class Section(BaseModel):
    """Immutable settings that reject unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False)


def names_of(section: type[BaseModel]) -> tuple[str, ...]:
    """Return the names that select a section: the values of ``name: Literal["sgd", "adam"]``."""
    return typing.get_args(section.model_fields["name"].annotation) if "name" in section.model_fields else ()


def expand_name(value: Any) -> Any:
    """Return a section that was written as its name alone as a mapping; leave other values unchanged."""
    return {"name": value} if isinstance(value, str) else value


def one_of(kind: str, names: Collection[str]) -> BeforeValidator:
    """Return a validator for a name in a table, which may grow later.

    An optional part of a method may also be ``none``. Any other name is an error that shows the nearest match.
    """

    def check(value: Any) -> Any:
        if value == "none" and kind in OPTIONAL_PARTS:
            return None
        if value is not None and not (isinstance(value, str) and value in names):
            raise ValueError(unknown(kind, value, names))
        return value

    return BeforeValidator(check)


def part(kind: str) -> BeforeValidator:
    """Return a validator for the name of a registered part of methods."""
    return one_of(kind, registered_names(kind))
