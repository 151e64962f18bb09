"""Whether two experiments would give the same results."""

from __future__ import annotations

from typing import Any

from selfish_rnn.experiment.presets import Settings
from selfish_rnn.experiment.settings import MAY_CHANGE, Experiment


def deciding(experiment: Experiment) -> Settings:
    """The settings that decide the result, with a method as the parts it is made of, whatever it is called."""
    settings: dict[str, Any] = experiment.model_dump(mode="json", exclude=set(MAY_CHANGE))
    method = settings["method"]
    if method.pop("name") != "iss":
        method.pop("strength", None)
    return settings


def differences(found: Experiment, expected: Experiment) -> list[str]:
    """The keys, each with both values, in which two experiments would give different results."""
    told: list[str] = []
    before, after = _flat(deciding(found)), _flat(deciding(expected))
    for key in sorted({*before, *after}):
        if before.get(key) != after.get(key):
            told.append(f"{key} {before.get(key)} instead of {after.get(key)}")
    return told


def _flat(settings: Settings, prefix: str = "") -> Settings:
    flat: Settings = {}
    for key, value in settings.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat
