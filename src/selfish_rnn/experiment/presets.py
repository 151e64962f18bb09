"""Presets: named, complete experiments as YAML files, and changes to them."""

from __future__ import annotations

import contextlib
import inspect
import json
import typing
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from selfish_rnn.errors import UserError, nearest, plain_reason, short_repr, unknown
from selfish_rnn.experiment.optimizers import OPTIMIZERS
from selfish_rnn.experiment.sections import names_of
from selfish_rnn.experiment.settings import MODEL_SETTINGS, Experiment

_LONGEST = 2**20
"""Upper bound of the characters of a configuration file."""

_DEEPEST = 20
"""Upper bound of the nesting of lists and sections; settings need three levels."""

_MOST_REPEATED = 10_000
"""Upper bound of the values that the aliases of a file expand to."""

_MOST_BITS = 128
"""Upper bound of the bits of an integer; seeds have 64."""

NAMED_SECTIONS = ("model", "method", "optimizer")
"""Sections whose ``name`` decides which other keys they have."""

Settings = dict[str, Any]


class _Loader(yaml.SafeLoader):
    """YAML loader for settings: every key once, limited nesting, limited aliases."""

    depth = 0
    nodes = 0
    """Number of nodes composed so far; nodes behind aliases count at every use."""
    repeated = 0

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self.sizes: dict[Any, int] = {}
        """Nodes inside each complete node."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise yaml.YAMLError(f"it is nested more than {_DEEPEST} levels deep")
        before, is_alias = self.nodes, self.check_event(yaml.AliasEvent)
        node = super().compose_node(parent, index)
        if is_alias:
            self._count_alias(node)
        else:
            self.nodes += 1
            self.sizes[node] = self.nodes - before
        self.depth -= 1
        return node

    def _count_alias(self, node: Any) -> None:
        """Count an alias as the nodes it expands to: aliases of aliases grow exponentially."""
        if node not in self.sizes:
            raise yaml.YAMLError("an alias refers to a section that contains it")
        self.nodes += self.sizes[node]
        self.repeated += self.sizes[node]
        if self.repeated > _MOST_REPEATED:
            raise yaml.YAMLError(f"its aliases expand to more than {_MOST_REPEATED} values")

    def construct_yaml_int(self, node: Any) -> int:
        number: int = super().construct_yaml_int(node)
        if abs(number) >= 2**_MOST_BITS:
            raise yaml.YAMLError(f"it has an integer of more than {_MOST_BITS} bits")
        return number

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        keys: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str) and key in keys:
                raise yaml.YAMLError(f"the key {short_repr(key)} is repeated in line {key_node.start_mark.line + 1}")
            if isinstance(key, str):
                keys.add(key)
        return super().construct_mapping(node, deep)


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)


def parse(text: str) -> Any:
    """Return the value of YAML text; every problem is a ``YAMLError``, also where the parser raises another error."""
    try:
        return yaml.load(text, Loader=_Loader)
    except (ValueError, KeyError, IndexError, AttributeError, TypeError, OverflowError, RecursionError) as error:
        raise yaml.YAMLError(f"{type(error).__name__}: {str(error)[:200]}") from error


def preset_names() -> list[str]:
    """Return the names of the presets of the package."""
    return sorted(entry.name.removesuffix(".yaml") for entry in _folder().iterdir() if entry.name.endswith(".yaml"))


def read_preset(name: str) -> tuple[Settings, str]:
    """Return the settings of a preset and its description."""
    known = preset_names()
    if name not in known:
        if name in Experiment.model_fields:
            raise UserError(f"{name!r} is a setting, not a preset: write {name}=VALUE")
        raise UserError(unknown("preset", name, known))
    settings = parse((_folder() / f"{name}.yaml").read_text())
    return settings, settings.pop("about")


def read_config(path: Path) -> Settings:
    """Return the settings in a YAML file of the user."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(_LONGEST + 1)  # bounded, because the file may be anything
        if len(text) > _LONGEST:
            raise UserError(
                f"configuration file {path} has more than {_LONGEST} characters; it should contain settings"
            )
        settings = parse(text)
    except FileNotFoundError:
        raise UserError(f"configuration file {path} does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"configuration file {path} cannot be read: {error}") from None
    except yaml.YAMLError as error:
        problem = " ".join(str(error)[:500].split())
        raise UserError(f"configuration file {path} is not valid YAML: {problem}") from None
    if not isinstance(settings, dict):
        raise UserError(f"configuration file {path} must contain keys and values, such as `epochs: 20`")
    settings.pop("about", None)
    return settings


def with_settings(settings: Settings, more: Settings) -> Settings:
    """Return settings with others merged into them.

    A new ``name`` of the method or optimizer resets that section to the defaults of the new one, because the learning
    rate of one optimizer does not suit another. SNT-ASGD and NT-ASGD have the same settings and keep them. A new model
    keeps the settings that it shares with the old one, so that a small experiment stays small.
    """
    result = dict(settings)
    for key, value in more.items():
        if key in NAMED_SECTIONS:
            old, new = _as_section(result.get(key)), _as_section(value)
            renamed = "name" in new and new["name"] != old.get("name")
            value = {**_in_common(key, old, new["name"]), **new} if renamed else _merged(old, new)
        result[key] = value
    return result


def with_assignments(settings: Settings, assignments: Sequence[str]) -> Settings:
    """Return settings changed by ``key=value`` words, with ``section.key=value`` inside a section."""
    # Apply the name of a section first: a new name resets the section.
    for word in sorted(assignments, key=lambda word: word.partition("=")[0].partition(".")[2] not in ("", "name")):
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise UserError(f"{short_repr(word)} is not a setting; write key=value, such as sparsity=0.8")
        value = text if key == "corpus" else _value(text)
        section, *inner = key.split(".")
        for name in reversed(inner):
            value = {name: value}
        settings = with_settings(settings, {section: value})
    return settings


def assignment(key: str, value: Any) -> str:
    """Return the word ``key=value`` that :func:`with_assignments` reads back as this value.

    >>> assignment("optimizer.lr", 0.5), assignment("early_stop", None), assignment("restart_at", [2, 4])
    ('optimizer.lr=0.5', 'early_stop=null', 'restart_at=[2, 4]')
    """
    plain = isinstance(value, str) and (key == "corpus" or _value(value) == value)
    return f"{key}={value if plain else json.dumps(value)}"


def build_experiment(settings: Settings, source: str) -> Experiment:
    """Validate settings; an invalid setting is an error that names ``source``."""
    try:
        return Experiment.model_validate(settings)
    except ValidationError as error:
        raise UserError(f"{source}: {explain(error, Experiment)}") from None


def to_yaml(experiment: Experiment) -> str:
    """Return an experiment as a complete configuration file."""
    text: str = yaml.safe_dump(experiment.model_dump(mode="json"), sort_keys=False)
    return text


def explained_yaml(experiment: Experiment) -> str:
    """Return a complete configuration file with a comment on every described setting."""
    lines = []
    for line in to_yaml(experiment).splitlines():
        field = Experiment.model_fields.get(line.partition(":")[0])
        about = field.description if field is not None else None
        lines.append(f"{line}  # {about}" if about else line)
    return "\n".join(lines) + "\n"


def _folder() -> Any:
    return resources.files("selfish_rnn.experiment") / "preset_files"


def _merged(old: Settings, new: Settings) -> Settings:
    """Merge two nested mappings; values of ``new`` win."""
    inner = {
        key: _merged(old[key], value)
        for key, value in new.items()
        if isinstance(value, dict) and isinstance(old.get(key), dict)
    }
    return {**old, **new, **inner}


def _as_section(value: Any) -> Settings:
    if value is None:
        return {}
    return dict(value) if isinstance(value, dict) else {"name": value}


def _in_common(section: str, old: Settings, name: Any) -> Settings:
    """Return the settings of a section that remain valid under another name."""
    valid: set[str] = set()
    if section == "model" and name in list(MODEL_SETTINGS):
        valid = set(MODEL_SETTINGS[name].model_fields)
    elif section == "optimizer" and {str(name), str(old.get("name"))} <= OPTIMIZERS.keys():
        before, after = OPTIMIZERS[old["name"]], OPTIMIZERS[name]
        valid = set(old) if before.settings is after.settings else set()
    return {key: value for key, value in old.items() if key != "name" and key in valid}


def _value(text: str) -> Any:
    """Return the value of a word on the command line, read as YAML."""
    try:
        value = parse(text) if text else None
    except yaml.YAMLError:
        value = text
    if isinstance(value, str):
        with contextlib.suppress(ValueError):  # YAML 1.1 reads 1e-3 as text
            return float(value)
    return value


INNER_KEYS = {
    **dict.fromkeys(("lr", "nonmono", "average_from"), "optimizer"),
    **dict.fromkeys(("hidden", "embedding", "layers", "init_range"), "model"),
}
"""Keys inside sections that users expect at the top level."""

MOST_MISTAKES = 5
"""Number of mistakes in one message."""

LONGEST_KEY = 80
"""Number of characters of a key in a message."""

UNNAMED = ("union_tag_not_found", "model_attributes_type")
"""Pydantic's errors for a section without the name that decides its keys."""


def explain(error: ValidationError, settings: type[BaseModel]) -> str:
    """Return all mistakes in settings as one line: key, problem and value."""
    # One explanation per key in the words of configuration files, in place of those of pydantic.
    explanations: dict[str, str] = {}
    for detail in error.errors(include_url=False):
        if len(explanations) == MOST_MISTAKES:
            break
        keys, sections = _locate(settings, detail["loc"])
        key = ".".join(keys)
        kind, names = detail["type"], [name for section in sections for name in names_of(section)]
        if kind == "extra_forbidden":
            word, known = str(detail["loc"][-1])[:LONGEST_KEY], list(sections[0].model_fields)
            outside = key
            key = f"{key}.{word}" if key else word
            hint = nearest(key, [f"{outside}.{name}" if outside else name for name in known])
            if not outside and word in INNER_KEYS:
                hint = f" (did you mean '{INNER_KEYS[word]}.{word}'?)"
            text = f"unknown key {key!r}{hint}; known are {', '.join(known)}"
        elif kind == "union_tag_invalid":
            text = f"{key}: {unknown(key, detail['input']['name'], names)}"
        elif kind in UNNAMED and names:
            text = f"{key}: the name of the {key} is missing: one of {', '.join(names)}"
        elif kind == "value_error":
            reason = detail["msg"].removeprefix("Value error, ")
            text = f"{key}: {reason}" if key else reason
        elif kind == "missing":
            text = f"{key} is missing"
        else:
            text = f"{key}: {plain_reason(detail['msg'])}, got {short_repr(detail['input'])}"
        # A value of several possible types has an error for each; the first one suffices.
        explanations.setdefault(key, text)
    more = error.error_count() - len(explanations)
    return "; ".join(explanations.values()) + (
        f"; and {more} more" if more > 0 and len(explanations) == MOST_MISTAKES else ""
    )


def _locate(settings: type[BaseModel], path: tuple[int | str, ...]) -> tuple[list[str], list[type[BaseModel]]]:
    """Return the user-visible keys of an error's path, and the sections that may follow them."""
    keys: list[str] = []
    sections = [settings]
    for word in (str(step) for step in path if not isinstance(step, int)):  # without indices of lists
        if len(sections) > 1:  # the name that selects a section, which pydantic's path has between two keys
            sections = [section for section in sections if word in names_of(section)]
            continue
        fields = sections[0].model_fields if sections else {}
        if word not in fields:
            break
        keys.append(word)
        annotation = fields[word].annotation
        options = [annotation, *typing.get_args(annotation)]
        sections = [option for option in options if inspect.isclass(option) and issubclass(option, BaseModel)]
    return keys, sections
