"""The command that makes a run again, as short as the presets allow."""

from __future__ import annotations

import contextlib
import functools
import json
import shlex
from collections.abc import Mapping
from typing import Any

import yaml

from selfish_rnn.analysis.records import RunRecord, section_name
from selfish_rnn.errors import UserError
from selfish_rnn.experiment.comparison import flat
from selfish_rnn.experiment.presets import (
    NAMED_SECTIONS,
    build_experiment,
    preset_names,
    read_preset,
    with_assignments,
)


def command_of(record: RunRecord) -> str:
    """A command that trains with exactly the settings of a run.

    The nearest preset with the settings that differ from it; a configuration that this version does not know as it
    is, or only with more words than anyone reads, is named by its file.
    """
    name = shlex.quote(record.name)
    tried: list[list[str] | None] = []
    with contextlib.suppress(UserError):  # settings of another version
        wanted = build_experiment(dict(record.settings), record.name).model_dump(mode="json")
        tried = [_words(preset, wanted) for preset in preset_names()]
    found = [words for words in tried if words is not None]
    if not found:
        return f"selfish-rnn train --config {name}/config.yaml --run {name}-again"
    shortest = min(found, key=len)
    return f"selfish-rnn train {shlex.join(shortest)} --run {name}"


def _words(preset: str, wanted: Mapping[str, Any]) -> list[str] | None:
    """The preset and what must be said besides, if that gives the wanted settings."""
    sections = {key: section_name(wanted.get(key)) for key in NAMED_SECTIONS}
    names = [f"{key}={name}" for key, name in sections.items() if name != _complete(preset)[f"{key}.name"]]
    try:
        own = _complete(preset, *names)
        given = flat(wanted)
        words = names + [f"{key}={_written(key, value)}" for key, value in given.items() if own.get(key) != value]
        return [preset, *words] if _complete(preset, *words) == given else None
    except UserError:
        return None


@functools.lru_cache(maxsize=256)
def _complete(preset: str, *assignments: str) -> dict[str, Any]:
    """Every setting of a preset with changes."""
    settings = with_assignments(read_preset(preset)[0], assignments)
    return flat(build_experiment(settings, preset).model_dump(mode="json"))


def _written(key: str, value: Any) -> str:
    """A value as a word of the command line, which is read as YAML, but for the name of a corpus."""
    return value if isinstance(value, str) and (key == "corpus" or _is_plain(value)) else json.dumps(value)


def _is_plain(text: str) -> bool:
    try:
        return bool(yaml.safe_load(text) == text)
    except yaml.YAMLError:
        return False
