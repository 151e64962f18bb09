"""Comparison of experiments: identity, and settings that would change the result."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from selfish_rnn.experiment.presets import Settings
from selfish_rnn.experiment.settings import MAY_CHANGE, Experiment
from selfish_rnn.sparsifier.iss import ISS


def flat(settings: Mapping[str, Any], prefix: str = "") -> Settings:
    """Return nested settings by dotted keys.

    >>> flat({"epochs": 20, "model": {"name": "rhn", "depth": 4}})
    {'epochs': 20, 'model.name': 'rhn', 'model.depth': 4}
    """
    result: Settings = {}
    for key, value in settings.items():
        result |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return result


def identity(experiment: Experiment) -> str:
    """Return the SHA-256 of all settings that decide a result; models of one experiment share it."""
    decisive = experiment.model_dump(mode="json", exclude=set(MAY_CHANGE), exclude_defaults=True)
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()


def changed_settings(before: Settings, now: Experiment) -> list[str]:
    """Return the keys in which an experiment differs from earlier settings, except those that may change.

    Settings that an earlier version lacked are compared with their defaults.
    """
    current = now.model_dump(mode="json", exclude=set(MAY_CHANGE))
    known = {key: value for key, value in before.items() if key in current}
    complete = Experiment.model_validate(known).model_dump(mode="json", exclude=set(MAY_CHANGE))
    return _differing(flat(complete), flat(current))


def decisive_settings(experiment: Experiment) -> Settings:
    """Return the settings that decide the result, with a method as its parts, whatever its name."""
    settings: dict[str, Any] = experiment.model_dump(mode="json", exclude=set(MAY_CHANGE))
    method = settings["method"]
    if method.pop("name") != ISS.name:
        method.pop("strength", None)
    return settings


def differences(actual: Experiment, expected: Experiment) -> list[str]:
    """Return the keys, each with both values, in which two experiments would give different results."""
    before, after = flat(decisive_settings(actual)), flat(decisive_settings(expected))
    return [f"{key} {before.get(key)} instead of {after.get(key)}" for key in _differing(before, after)]


def _differing(before: Settings, after: Settings) -> list[str]:
    return [key for key in dict.fromkeys((*after, *before)) if before.get(key) != after.get(key)]
