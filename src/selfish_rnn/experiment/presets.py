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

from selfish_rnn.errors import UserError, nearest, plain_reason, shown, unknown
from selfish_rnn.experiment.optimizers import OPTIMIZERS
from selfish_rnn.experiment.sections import names_of
from selfish_rnn.experiment.settings import MODEL_SETTINGS, Experiment

_LONGEST = 2**20
"""Characters of a configuration file."""

_DEEPEST = 20
"""Lists in lists, or sections in sections; settings have three."""

_MOST_REPEATED = 10_000
"""Values that the aliases of a file stand for together."""

_MOST_BITS = 128
"""Bits of a whole number; seeds have 64."""

NAMED_SECTIONS = ("model", "method", "optimizer")
"""Sections whose ``name`` decides which other keys they have."""

Settings = dict[str, Any]


class _Loader(yaml.SafeLoader):
    """YAML as settings are written in it: every key once, and nothing deep."""

    depth = 0
    nodes = 0
    """Nodes composed so far, those behind aliases counted at every use."""
    repeated = 0

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self.sizes: dict[Any, int] = {}
        """Nodes inside each complete node."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise yaml.YAMLError(f"it is nested more than {_DEEPEST} deep")
        before, is_alias = self.nodes, self.check_event(yaml.AliasEvent)
        node = super().compose_node(parent, index)
        if is_alias:
            self._repeat(node)
        else:
            self.nodes += 1
            self.sizes[node] = self.nodes - before
        self.depth -= 1
        return node

    def _repeat(self, node: Any) -> None:
        """Count an alias as the nodes it stands for: aliases of aliases grow beyond any memory."""
        if node not in self.sizes:
            raise yaml.YAMLError("an alias stands for a section that contains it")
        self.nodes += self.sizes[node]
        self.repeated += self.sizes[node]
        if self.repeated > _MOST_REPEATED:
            raise yaml.YAMLError(f"its aliases stand for more than {_MOST_REPEATED} values")

    def construct_yaml_int(self, node: Any) -> int:
        number: int = super().construct_yaml_int(node)
        if abs(number) >= 2**_MOST_BITS:
            raise yaml.YAMLError(f"it has a number of more than {_MOST_BITS} bits")
        return number

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        keys: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str) and key in keys:
                raise yaml.YAMLError(
                    f"the key {shown(key)} is there twice, again in line {key_node.start_mark.line + 1}"
                )
            if isinstance(key, str):
                keys.add(key)
        return super().construct_mapping(node, deep)


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)


def parse(text: str) -> Any:
    """What YAML means; whatever is wrong with it is a ``YAMLError``, also where the library raises something else."""
    try:
        return yaml.load(text, Loader=_Loader)
    except (ValueError, KeyError, IndexError, AttributeError, TypeError, OverflowError, RecursionError) as error:
        raise yaml.YAMLError(f"{type(error).__name__}: {str(error)[:200]}") from error


def preset_names() -> list[str]:
    """The presets that come with the package."""
    return sorted(entry.name.removesuffix(".yaml") for entry in _folder().iterdir() if entry.name.endswith(".yaml"))


def read_preset(name: str) -> tuple[Settings, str]:
    """The settings of a preset, and what it says about itself."""
    known = preset_names()
    if name not in known:
        if name in Experiment.model_fields:
            raise UserError(f"{name!r} is a setting, not a preset: write {name}=VALUE")
        raise UserError(unknown("preset", name, known))
    settings = parse((_folder() / f"{name}.yaml").read_text())
    return settings, settings.pop("about")


def read_config(path: Path) -> Settings:
    """The settings in a YAML file of the user's."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(_LONGEST + 1)  # which ends, whatever the file is
        if len(text) > _LONGEST:
            raise UserError(f"configuration file {path} has more than {_LONGEST} characters; it should hold settings")
        settings = parse(text)
    except FileNotFoundError:
        raise UserError(f"configuration file {path} does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"configuration file {path} cannot be read: {error}") from None
    except yaml.YAMLError as error:
        problem = " ".join(str(error)[:500].split())
        raise UserError(f"configuration file {path} is not valid YAML: {problem}") from None
    if not isinstance(settings, dict):
        raise UserError(f"configuration file {path} must hold keys and values, such as `epochs: 20`")
    settings.pop("about", None)
    return settings


def with_settings(settings: Settings, more: Settings) -> Settings:
    """Settings with others laid over them.

    Another ``name`` for the method or optimizer starts that section anew, from the defaults of what it names: the
    learning rate of one optimizer is nothing to another, unless they are as alike as SNT-ASGD and NT-ASGD. Another
    model keeps the settings it has in common with the one before, so that a small experiment stays small.
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
    """Settings changed by ``key=value`` words, ``section.key=value`` inside a section."""
    # A section's name comes first whatever the order of the words, or it would wipe out what was set before it.
    for word in sorted(assignments, key=lambda word: word.partition("=")[0].partition(".")[2] not in ("", "name")):
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise UserError(f"{shown(word)} is not a setting; write key=value, such as sparsity=0.8")
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
    """Validate settings; what is wrong is an error that says where they come from."""
    try:
        return Experiment.model_validate(settings)
    except ValidationError as error:
        raise UserError(f"{source}: {explain(error, Experiment)}") from None


def to_yaml(experiment: Experiment) -> str:
    """A complete configuration file."""
    text: str = yaml.safe_dump(experiment.model_dump(mode="json"), sort_keys=False)
    return text


def explained_yaml(experiment: Experiment) -> str:
    """The same with a word on every setting that its name does not explain."""
    lines = []
    for line in to_yaml(experiment).splitlines():
        field = Experiment.model_fields.get(line.partition(":")[0])
        about = field.description if field is not None else None
        lines.append(f"{line}  # {about}" if about else line)
    return "\n".join(lines) + "\n"


def _folder() -> Any:
    return resources.files("selfish_rnn.experiment") / "preset_files"


def _merged(old: Settings, new: Settings) -> Settings:
    """Keys of both, the new ones winning, also inside what they hold."""
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
    """What a word on the command line means, read as YAML."""
    try:
        value = parse(text) if text else None
    except yaml.YAMLError:
        value = text
    if isinstance(value, str):
        with contextlib.suppress(ValueError):  # YAML 1.1 reads 1e-3 as text; nobody who types it means that
            return float(value)
    return value


INNER_KEYS = {
    **dict.fromkeys(("lr", "nonmono", "average_from"), "optimizer"),
    **dict.fromkeys(("hidden", "embedding", "layers", "init_range"), "model"),
}
"""Keys inside sections that users look for outside."""

MOST, LONGEST_KEY = 5, 80
"""Mistakes that one message tells of, and characters of a key: nobody reads thousands."""

UNNAMED = ("union_tag_not_found", "model_attributes_type")
"""Errors of a section whose name decides which keys it has, and that has none."""


def explain(error: ValidationError, settings: type[BaseModel]) -> str:
    """What is wrong with settings, in one line: each key, what is wrong with it, and what was given."""
    explanations: dict[str, str] = {}
    for detail in error.errors(include_url=False):
        if len(explanations) == MOST:
            break
        place, sections = _place(settings, detail["loc"])
        key = ".".join(place)
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
            text = f"{key}: needs the name of the {key}: one of {', '.join(names)}"
        elif kind == "value_error":
            reason = detail["msg"].removeprefix("Value error, ")
            text = f"{key}: {reason}" if key else reason
        elif kind == "missing":
            text = f"{key} is missing"
        else:
            text = f"{key}: {plain_reason(detail['msg'])}, got {shown(detail['input'])}"
        # A value that can be of several types has an error for each; the first says enough.
        explanations.setdefault(key, text)
    more = error.error_count() - len(explanations)
    return "; ".join(explanations.values()) + (f"; and {more} more" if more > 0 and len(explanations) == MOST else "")


def _place(settings: type[BaseModel], path: tuple[int | str, ...]) -> tuple[list[str], list[type[BaseModel]]]:
    """The part of an error's path that users know, which is keys, and the sections that can be at its end."""
    place: list[str] = []
    sections = [settings]
    for word in (str(each) for each in path if not isinstance(each, int)):  # without the places in lists
        if len(sections) > 1:  # a section that is chosen by its name, which the path has between two keys
            sections = [section for section in sections if word in names_of(section)]
            continue
        fields = sections[0].model_fields if sections else {}
        if word not in fields:
            break
        place.append(word)
        annotation = fields[word].annotation
        options = [annotation, *typing.get_args(annotation)]
        sections = [option for option in options if inspect.isclass(option) and issubclass(option, BaseModel)]
    return place, sections
