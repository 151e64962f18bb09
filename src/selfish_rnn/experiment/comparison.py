"""What tells experiments apart, and whether two would give the same results."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from selfish_rnn.experiment.presets import Settings
from selfish_rnn.experiment.settings import MAY_CHANGE, Experiment
from selfish_rnn.sparsifier.iss import ISS


def flat(settings: Mapping[str, Any], prefix: str = "") -> Settings:
    """Settings by dotted keys.

    >>> flat({"epochs": 20, "model": {"name": "rhn", "depth": 4}})
    {'epochs': 20, 'model.name': 'rhn', 'model.depth': 4}
    """
    found: Settings = {}
    for key, value in settings.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def identity(experiment: Experiment) -> str:
    """What tells the models of an experiment from those of others: a SHA-256 of all settings that decide a result."""
    decisive = experiment.model_dump(mode="json", exclude=set(MAY_CHANGE), exclude_defaults=True)
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()


def changed_settings(before: Settings, now: Experiment) -> list[str]:
    """The keys in which an experiment differs from what it was, but for those that may change.

    Settings that an earlier version did not have are compared with their defaults.
    """
    current = now.model_dump(mode="json", exclude=set(MAY_CHANGE))
    known = {key: value for key, value in before.items() if key in current}
    complete = Experiment.model_validate(known).model_dump(mode="json", exclude=set(MAY_CHANGE))
    return _differing(flat(complete), flat(current))


def deciding(experiment: Experiment) -> Settings:
    """The settings that decide the result, with a method as the parts it is made of, whatever it is called."""
    settings: dict[str, Any] = experiment.model_dump(mode="json", exclude=set(MAY_CHANGE))
    method = settings["method"]
    if method.pop("name") != ISS.name:
        method.pop("strength", None)
    return settings


def differences(found: Experiment, expected: Experiment) -> list[str]:
    """The keys, each with both values, in which two experiments would give different results."""
    before, after = flat(deciding(found)), flat(deciding(expected))
    return [f"{key} {before.get(key)} instead of {after.get(key)}" for key in _differing(before, after)]


def _differing(before: Settings, after: Settings) -> list[str]:
    return [key for key in dict.fromkeys((*after, *before)) if before.get(key) != after.get(key)]
