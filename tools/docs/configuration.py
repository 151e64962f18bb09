"""Writes docs/configuration.md from the settings themselves.

python tools/docs/configuration.py
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from selfish_rnn.experiment.methods import CONFIGURED_METHODS
from selfish_rnn.experiment.settings import (
    MAY_CHANGE,
    MODEL_SETTINGS,
    OPTIMIZERS,
    Experiment,
    LearningRateDecay,
    LearningRateDrop,
    MethodSettings,
    Section,
)
from selfish_rnn.topology.methods import OPTIONAL_PARTS, registered_names

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"
SECTIONS = ("model", "method", "optimizer")

HEAD = """\
# Configuration

<!-- Written by tools/docs/configuration.py from the settings themselves; do not edit. -->

Every setting of an experiment, as it stands in a preset or a YAML file. On the command line: `key=value`, inside a
section `section.key=value`. `selfish-rnn show PRESET` prints a preset with all of them. A preset may have other values
than these defaults.
"""


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *_experiment(), *_models(), *_method(), *_optimizers()]).rstrip() + "\n"


def _experiment() -> Iterator[str]:
    yield from _table("Experiment", Experiment, "", but=())
    yield f"A run may be resumed with another {', '.join(f'`{key}`' for key in MAY_CHANGE)}.\n"


def _models() -> Iterator[str]:
    yield "## model\n\n`model.name` is one of these. The defaults are those of the paper's networks.\n"
    seen: dict[tuple[str, ...], list[str]] = {}
    for name, section in MODEL_SETTINGS.items():
        seen.setdefault(tuple(_rows(section, "model.", but=("name",))), []).append(name)
    for rows, names in seen.items():
        yield from _section(", ".join(f"`{name}`" for name in names), rows)


def _method() -> Iterator[str]:
    yield "## method\n"
    yield f"`method.name` is one of {', '.join(f'`{name}`' for name in CONFIGURED_METHODS)} ([Methods](methods.md)).\n"
    yield "The parts are those of the method, unless they are given:\n"
    yield "| key | names | meaning |\n|---|---|---|"
    for key, field in MethodSettings.model_fields.items():
        if key in ("name", "strength"):
            continue
        names = [f"`{name}`" for name in registered_names(key)] + (["`none`"] if key in OPTIONAL_PARTS else [])
        yield f"| `method.{key}` | {', '.join(names)} | {field.description} |"
    strength = MethodSettings.model_fields["strength"]
    yield f"| `method.strength` | a number, {_value(strength.default)} if not given | {strength.description} |\n"


def _optimizers() -> Iterator[str]:
    yield "## optimizer\n\n`optimizer.name` decides which keys there are.\n"
    sections: dict[type[BaseModel], list[str]] = {}
    for name, section in OPTIMIZERS.items():
        sections.setdefault(section, []).append(name)
    for section, names in sections.items():
        yield from _section(", ".join(f"`{name}`" for name in names), _rows(section, "optimizer.", but=("name",)))
    yield from _table("optimizer.drop", LearningRateDrop, "optimizer.drop.", but=(), level=3)
    yield from _table("optimizer.decay", LearningRateDecay, "optimizer.decay.", but=(), level=3)


def _table(title: str, section: type[Section], prefix: str, but: tuple[str, ...], level: int = 2) -> Iterator[str]:
    return _section(title, _rows(section, prefix, but), level)


def _section(title: str, rows: Any, level: int = 3) -> Iterator[str]:
    yield f"{'#' * level} {title}\n"
    yield "| key | default | meaning |\n|---|---|---|"
    yield from rows
    yield ""


def _rows(section: type[BaseModel], prefix: str, but: tuple[str, ...]) -> Iterator[str]:
    for key, field in section.model_fields.items():
        if key in but:
            continue
        assert field.description, f"{section.__name__}.{key} has no description"
        if not prefix and key in SECTIONS:
            yield f"| [`{key}`](#{key}) | `{field.get_default(call_default_factory=True).name}` | {field.description} |"
        else:
            yield f"| `{prefix}{key}` | {_value(field.default)} | {field.description} |"


def _value(value: Any) -> str:
    """As it would be written in YAML."""
    if value is PydanticUndefined:
        return "to be given"
    if isinstance(value, BaseModel):
        return "`{" + ", ".join(f"{key}: {inner}" for key, inner in value.model_dump().items()) + "}`"
    if isinstance(value, float):
        return f"`{value:g}`"
    return f"`{value}`" if isinstance(value, str) else f"`{json.dumps(value)}`"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
