"""Comparison of runs in a report, and the commands that make them again."""

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
        words = names + [assignment(key, value) for key, value in given.items() if own.get(key) != value]
        return [preset, *words] if _complete(preset, *words) == given else None
    except UserError:
        return None


@functools.lru_cache(maxsize=256)
def _complete(preset: str, *assignments: str) -> dict[str, Any]:
    """Every setting of a preset with changes."""
    settings = with_assignments(read_preset(preset)[0], assignments)
    return flat(build_experiment(settings, preset).model_dump(mode="json"))


ASIDE = ("seed", "checkpoint_every")
"""Settings in which runs of one group may differ."""

_NAMING = ("method.name", "optimizer.name", "model.name", "corpus", "sparsity", "prune_rate", "engine")
"""Settings that name a group, the most telling first; others follow in the order of the configuration."""


@dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but their seeds."""

    label: str
    runs: tuple[RunRecord, ...]

    @property
    def perplexities(self) -> list[float]:
        """On the test text, of the finished runs."""
        return [run.test_perplexity for run in self.runs if run.test_perplexity is not None]

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.perplexities) if self.perplexities else None

    @property
    def spread(self) -> float | None:
        """The standard deviation between seeds; none of a single one."""
        return statistics.stdev(self.perplexities) if len(self.perplexities) > 1 else None

    def by_seed(self) -> dict[int | None, float]:
        """The test perplexity of each seed; of a seed that ran twice, the last."""
        return {run.seed: run.test_perplexity for run in self.runs if run.test_perplexity is not None}

    def differences(self, other: Group) -> list[float]:
        """How much higher the perplexity of this group is, on each seed that both share."""
        mine, theirs = self.by_seed(), other.by_seed()
        return [mine[seed] - theirs[seed] for seed in mine if seed in theirs]


@dataclass(frozen=True)
class Comparison:
    """Groups trained on the same texts, the lowest mean test perplexity first; unfinished ones last."""

    corpus: str
    groups: tuple[Group, ...]

    @property
    def ranked(self) -> list[Group]:
        return [group for group in self.groups if group.mean is not None]

    def verdict(self) -> str:
        """Who won and by how much, in a sentence or two, with what the seeds say about it."""
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
    """``46.9 ± 0.3 (3 seeds)``."""
    return f"{spread(group.perplexities)} ({counted(len(group.perplexities), 'seed')})"


def _certainty(best: Group, second: Group, gap: float) -> str:
    shared = second.differences(best)
    if len(shared) > 1:
        lower = sum(difference > 0 for difference in shared)
        if lower == len(shared):
            return f"It is lower on each of the {lower} seeds both have, by {min(shared):.2f} to {max(shared):.2f}."
        return f"It is lower on {lower} of the {len(shared)} seeds both have, so another seed may turn this around."
    spreads = [group.spread for group in (best, second) if group.spread is not None]
    if len(spreads) < 2:
        return "With one seed, nothing says how much of this is chance."
    if gap < max(spreads):
        return "That is less than the spread between seeds, so other seeds may turn this around."
    return "That is more than the spread between seeds."


def compare(records: Sequence[RunRecord]) -> list[Comparison]:
    """Put runs into groups, and groups of the same texts side by side, in the order in which these first occur."""
    settings = {id(record): flat(record.settings) for record in records}
    keys = [key for key in differing(list(settings.values())) if key not in ASIDE]
    members: dict[str, dict[tuple[str, ...], list[RunRecord]]] = {}
    for record in records:
        values = tuple(repr(settings[id(record)].get(key)) for key in keys)
        members.setdefault(_texts(record, records), {}).setdefault(values, []).append(record)
    everything = [settings[id(runs[0])] for groups in members.values() for runs in groups.values()]
    unique = dict(zip(map(id, everything), _labels(everything, keys), strict=True))
    taken: set[str] = set()
    found = []
    for several in members.values():
        firsts = [settings[id(runs[0])] for runs in several.values()]
        short = _labels(firsts, differing(firsts))
        # Groups of other texts may be told apart by the same words.
        labels = [unique[id(first)] if label in taken else label for first, label in zip(firsts, short, strict=True)]
        taken.update(labels)
        groups = [
            Group(label, tuple(sorted(runs, key=lambda run: (run.seed is None, run.seed))))
            for label, runs in zip(labels, several.values(), strict=True)
        ]
        ranked = sorted(groups, key=lambda group: float("inf") if group.mean is None else group.mean)
        found.append(Comparison(_texts_in_words(groups[0].runs[0]), tuple(ranked)))
    return found


def differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The settings that are not the same in all, the most telling first."""
    keys = list(dict.fromkeys(key for one in settings for key in one))
    found = [key for key in keys if any(one.get(key) != settings[0].get(key) for one in settings)]
    return sorted(found, key=lambda key: _NAMING.index(key) if key in _NAMING else len(_NAMING))


def _texts(record: RunRecord, others: Sequence[RunRecord]) -> str:
    """What tells the texts of runs apart: their checksum; without one, that of the only texts of the same name."""
    own = record.corpus.get("sha256")
    sums = {other.corpus.get("sha256") for other in others if _named(other) == _named(record)} - {None}
    return str(own or (sums.pop() if len(sums) == 1 else _named(record)))


def _texts_in_words(record: RunRecord) -> str:
    name = str(record.corpus.get("name") or record.settings.get("corpus"))
    tokens = (record.corpus.get("tokens") or {}).get("train") or record.settings.get("train_tokens")
    return name if tokens is None else f"{name}, {tokens:,} training tokens"


def _named(record: RunRecord) -> tuple[Any, Any]:
    return record.settings.get("corpus"), record.settings.get("train_tokens")


def _labels(settings: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> list[str]:
    """The fewest of the differing settings that tell every group from the others."""
    chosen: list[str] = []
    for key in keys:
        if key not in ASIDE and len(_told_apart(settings, [*chosen, key])) > len(_told_apart(settings, chosen)):
            chosen.append(key)
    labels = []
    for one in settings:
        own = list(chosen)
        for key in reversed([key for key in chosen if not key.endswith(".name")]):
            fewer = [other for other in own if other != key]
            alike = sum(all(other.get(name) == one.get(name) for name in fewer) for other in settings)
            own = fewer if alike == 1 else own
        labels.append(
            ", ".join(_word(key, one.get(key)) for key in own) or _word("method.name", one.get("method.name"))
        )
    return labels


def _told_apart(settings: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> set[tuple[str, ...]]:
    return {tuple(repr(one.get(key)) for key in keys) for one in settings}


def _word(key: str, value: Any) -> str:
    if key.endswith(".name") or key in ("corpus", "engine"):
        return printable(str(value))
    return printable(f"{key} {'none' if value is None else value}")
