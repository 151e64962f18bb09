"""What is wrong with settings, in words."""

from __future__ import annotations

import inspect
import typing

from pydantic import BaseModel, ValidationError

from selfish_rnn.errors import nearest, shown, unknown

INNER_KEYS = {
    **dict.fromkeys(("lr", "nonmono", "average_from"), "optimizer"),
    **dict.fromkeys(("hidden", "embedding", "layers", "init_range"), "model"),
}
"""Keys inside sections that users look for outside."""

MOST, LONGEST_KEY = 5, 80
"""Mistakes that one message tells of, and characters of a key: nobody reads thousands."""

UNNAMED = ("union_tag_not_found", "model_attributes_type")
"""Errors of a section whose name decides which keys it has, and that has none."""


def names_of(section: type[BaseModel]) -> tuple[str, ...]:
    """The names a section is for: of ``name: Literal["sgd", "adam"]``, these two."""
    return typing.get_args(section.model_fields["name"].annotation) if "name" in section.model_fields else ()


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
            expected = detail["msg"].replace("Input should be", "must be")
            text = f"{key}: {expected}, got {shown(detail['input'])}"
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
