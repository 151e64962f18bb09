"""Comparison of runs in a report, and the commands that train them."""

from __future__ import annotations

import contextlib
import functools
import shlex
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from selfish_rnn.analysis.records import RunRecord, section_name
from selfish_rnn.errors import UserError
from selfish_rnn.experiment.comparison import flat
from selfish_rnn.experiment.presets import (
    NAMED_SECTIONS,
    assignment,
    build_experiment,
    preset_names,
    read_preset,
    with_assignments,
)
from selfish_rnn.text import counted, printable, spread


def command_of(record: RunRecord) -> str:
    """Return a command that trains with exactly the settings of a run.

    It has the nearest preset with overrides. A configuration that this version does not accept is named by its file.
    """
    name = shlex.quote(record.name)
    attempts: list[list[str] | None] = []
    with contextlib.suppress(UserError):  # settings of another version
        settings = build_experiment(dict(record.settings), record.name).model_dump(mode="json")
        attempts = [_words(preset, settings) for preset in preset_names()]
    candidates = [words for words in attempts if words is not None]
    if not candidates:
        return f"selfish-rnn train --config {name}/config.yaml --run {name}-again"
    shortest = min(candidates, key=len)
    return f"selfish-rnn train {shlex.join(shortest)} --run {name}"


def _words(preset: str, settings: Mapping[str, Any]) -> list[str] | None:
    """Return a preset with the overrides that result in given settings, or None."""
    sections = {key: section_name(settings.get(key)) for key in NAMED_SECTIONS}
    names = [f"{key}={name}" for key, name in sections.items() if name != _complete(preset)[f"{key}.name"]]
    try:
        defaults = _complete(preset, *names)
        values = flat(settings)
        words = names + [assignment(key, value) for key, value in values.items() if defaults.get(key) != value]
        return [preset, *words] if _complete(preset, *words) == values else None
    except UserError:
        return None


@functools.lru_cache(maxsize=256)
def _complete(preset: str, *assignments: str) -> dict[str, Any]:
    """Return every setting of a preset with overrides."""
    settings = with_assignments(read_preset(preset)[0], assignments)
    return flat(build_experiment(settings, preset).model_dump(mode="json"))


ASIDE = ("seed", "checkpoint_every")
"""Settings that may differ within a group."""

_NAMING = ("method.name", "optimizer.name", "model.name", "corpus", "sparsity", "prune_rate", "engine")
"""Settings that name a group, the most important first; others follow in the order of the configuration."""


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seeds."""

    label: str
    runs: tuple[RunRecord, ...]

    @property
    def perplexities(self) -> list[float]:
        """Test perplexities of the finished runs."""
        return [run.test_perplexity for run in self.runs if run.test_perplexity is not None]

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.perplexities) if self.perplexities else None

    @property
    def spread(self) -> float | None:
        """Standard deviation over seeds; None for a single seed."""
        return statistics.stdev(self.perplexities) if len(self.perplexities) > 1 else None

    def by_seed(self) -> dict[int | None, float]:
        """Return the test perplexity of each seed; the last one of a repeated seed."""
        return {run.seed: run.test_perplexity for run in self.runs if run.test_perplexity is not None}

    def differences(self, reference: Group) -> list[float]:
        """Return the perplexity of this group less that of another, for each common seed."""
        ours, theirs = self.by_seed(), reference.by_seed()
        return [ours[seed] - theirs[seed] for seed in ours if seed in theirs]


@dataclass(frozen=True)
class Comparison:
    """Groups with the same texts, by mean test perplexity; unfinished ones last."""

    corpus: str
    groups: tuple[Group, ...]

    @property
    def ranked(self) -> list[Group]:
        return [group for group in self.groups if group.mean is not None]

    def verdict(self) -> str:
        """Return the best group and its advantage in one or two sentences, with the evidence of the seeds."""
        ranked = self.ranked
        if not ranked:
            return "No run is finished yet."
        best = ranked[0]
        if len(ranked) == 1:
            return f"{best.label} reaches a test perplexity of {outcome(best)}."
        second = ranked[1]
        assert best.mean is not None
        assert second.mean is not None
        gap = second.mean - best.mean
        below = f"{gap:.2f} ({100 * gap / second.mean:.1f} %) below {second.label} with {outcome(second)}"
        won = f"{best.label} has the lowest test perplexity: {outcome(best)}"
        return f"{won}, {below}. {_certainty(best, second, gap)}"


def outcome(group: Group) -> str:
    """Return mean, deviation and number of seeds: ``46.9 ± 0.3 (3 seeds)``."""
    return f"{spread(group.perplexities)} ({counted(len(group.perplexities), 'seed')})"


def _certainty(best: Group, second: Group, gap: float) -> str:
    shared = second.differences(best)
    if len(shared) > 1:
        lower = sum(difference > 0 for difference in shared)
        if lower == len(shared):
            return f"It is lower on each of the {lower} common seeds, by {min(shared):.2f} to {max(shared):.2f}."
        return f"It is lower on {lower} of the {len(shared)} common seeds, so more seeds may reverse the order."
    spreads = [group.spread for group in (best, second) if group.spread is not None]
    if len(spreads) < 2:
        return "With one seed, the share of chance is unknown."
    if gap < max(spreads):
        return "That is less than the spread between seeds, so more seeds may reverse the order."
    return "That is more than the spread between seeds."


def compare(records: Sequence[RunRecord]) -> list[Comparison]:
    """Return comparisons of groups of runs with the same texts, in the order of their first runs."""
    settings = {id(record): flat(record.settings) for record in records}
    keys = [key for key in differing(list(settings.values())) if key not in ASIDE]
    members: dict[str, dict[tuple[str, ...], list[RunRecord]]] = {}
    for record in records:
        values = tuple(repr(settings[id(record)].get(key)) for key in keys)
        members.setdefault(_texts(record, records), {}).setdefault(values, []).append(record)
    everything = [settings[id(runs[0])] for groups in members.values() for runs in groups.values()]
    unique = dict(zip(map(id, everything), _labels(everything, keys), strict=True))
    used_labels: set[str] = set()
    comparisons = []
    for several in members.values():
        firsts = [settings[id(runs[0])] for runs in several.values()]
        short = _labels(firsts, differing(firsts))
        # Groups of different texts may have the same label.
        labels = [
            unique[id(first)] if label in used_labels else label for first, label in zip(firsts, short, strict=True)
        ]
        used_labels.update(labels)
        groups = [
            Group(label, tuple(sorted(runs, key=lambda run: (run.seed is None, run.seed))))
            for label, runs in zip(labels, several.values(), strict=True)
        ]
        ranked = sorted(groups, key=lambda group: float("inf") if group.mean is None else group.mean)
        comparisons.append(Comparison(_texts_in_words(groups[0].runs[0]), tuple(ranked)))
    return comparisons


def differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the settings that differ, the most important first."""
    keys = list(dict.fromkeys(key for values in settings for key in values))
    keys_that_differ = [key for key in keys if any(values.get(key) != settings[0].get(key) for values in settings)]
    return sorted(keys_that_differ, key=lambda key: _NAMING.index(key) if key in _NAMING else len(_NAMING))


def _texts(record: RunRecord, records: Sequence[RunRecord]) -> str:
    """Return an identifier of the texts of a run: their checksum, or that of the only texts with the same name."""
    checksum = record.corpus.get("sha256")
    sums = {candidate.corpus.get("sha256") for candidate in records if _named(candidate) == _named(record)} - {None}
    return str(checksum or (sums.pop() if len(sums) == 1 else _named(record)))


def _texts_in_words(record: RunRecord) -> str:
    name = str(record.corpus.get("name") or record.settings.get("corpus"))
    tokens = (record.corpus.get("tokens") or {}).get("train") or record.settings.get("train_tokens")
    return name if tokens is None else f"{name}, {tokens:,} training tokens"


def _named(record: RunRecord) -> tuple[Any, Any]:
    return record.settings.get("corpus"), record.settings.get("train_tokens")


def _labels(settings: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> list[str]:
    """Return labels with the fewest settings that distinguish every group."""
    chosen: list[str] = []
    for key in keys:
        if key not in ASIDE and len(_distinct(settings, [*chosen, key])) > len(_distinct(settings, chosen)):
            chosen.append(key)
    labels = []
    for values in settings:
        names = list(chosen)
        for key in reversed([key for key in chosen if not key.endswith(".name")]):
            fewer = [candidate for candidate in names if candidate != key]
            alike = sum(all(candidate.get(name) == values.get(name) for name in fewer) for candidate in settings)
            names = fewer if alike == 1 else names
        labels.append(
            ", ".join(_word(key, values.get(key)) for key in names) or _word("method.name", values.get("method.name"))
        )
    return labels


def _distinct(settings: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> set[tuple[str, ...]]:
    return {tuple(repr(values.get(key)) for key in keys) for values in settings}


def _word(key: str, value: Any) -> str:
    if key.endswith(".name") or key in ("corpus", "engine"):
        return printable(str(value))
    return printable(f"{key} {'none' if value is None else value}")
