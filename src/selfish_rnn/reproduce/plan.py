"""The runs that items need at a scale: their settings, their names, and which of them are the same run."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

from selfish_rnn.experiment.configured_methods import CONFIGURED_METHODS
from selfish_rnn.experiment.presets import Settings, build_experiment, read_preset, with_assignments
from selfish_rnn.experiment.settings import Experiment
from selfish_rnn.experiment.small_dense import resolve_model
from selfish_rnn.reproduce.case import DENSE, Case, Item
from selfish_rnn.reproduce.scales import Scale

AVERAGING = ("snt-asgd", "nt-asgd")


@dataclass(frozen=True)
class PlannedRun:
    """A case at a scale with a seed. Its name says what is trained; two runs of one name are one run.

    >>> PlannedRun(SMALL, Case("stacked-lstm", "rigl", changes=("prune_rate=0.5",)), 1).name
    'stacked-lstm/rigl-snt-asgd-s0.67-prune-rate-0.5-seed1'
    """

    scale: Scale
    case: Case
    seed: int

    @property
    def words(self) -> tuple[str, ...]:
        """Preset and changes, as ``selfish-rnn train`` takes them; threads, which decide no result, left out."""
        return (*self._network_words(), *self.case.words(self.scale.updates), f"seed={self.seed}")

    @cached_property
    def experiment(self) -> Experiment:
        return _built(self.words)

    @cached_property
    def name(self) -> str:
        case = self.case
        parts = [case.method, case.optimizer]
        if case.method != "dense":  # a small dense network has the weights of a sparse one
            parts.append(f"s{self.experiment.sparsity:g}")
        # A change to what the preset says anyway makes no other run.
        for word in case.words(self.scale.updates):
            free = word.startswith("rewire_every=") or word in case.changes
            if free and _built(tuple(other for other in self.words if other != word)) != self.experiment:
                parts.append(word.replace("_", "-").replace("=", "-"))
        return f"{case.network}/{'-'.join(parts)}-seed{self.seed}"

    @property
    def sparse(self) -> bool:
        return self.case.method not in DENSE

    @property
    def command(self) -> str:
        """What a person types to make the run."""
        return shlex.join(["selfish-rnn", "train", *self.words])

    def trained(self, vocabulary: int) -> Experiment:
        """The experiment as its run folder tells it: a small dense network with its own widths."""
        return resolve_model(self.experiment, vocabulary)

    def _network_words(self) -> tuple[str, ...]:
        """Preset and changes of the scale; those made for averaging optimizers only where there is one."""
        preset, *changes = self.scale.networks[self.case.network]
        configured = CONFIGURED_METHODS.get(self.case.method)  # none: Selfish with another part, which starts sparse
        if configured is None or not configured.method.allocation.dense:
            changes += self.scale.changes(self.case.network, self.case.sparsity)
        if self.case.optimizer in AVERAGING:
            return (preset, *changes)
        others = [word for word in changes if not word.startswith(("optimizer.", "restart_at="))]
        restarts = "restart_at" in _preset(preset)
        return (preset, *others, *(["restart_at=[]"] if restarts else []))


@cache
def _built(words: tuple[str, ...]) -> Experiment:
    """The experiment of a preset and changes, built once however many items name it; an experiment is never changed."""
    preset, *changes = words
    return build_experiment(with_assignments(_preset(preset), changes), "a planned run")


@cache
def _preset(name: str) -> Settings:
    """The settings of a preset, read once; words laid over them make copies."""
    return read_preset(name)[0]


def seeds_of(item: Item, case: Case, scale: Scale, seeds: Sequence[int] = ()) -> tuple[int, ...]:
    """The seeds of a case in an item: those asked for, else the scale's; as many as the item needs and can use."""
    given = tuple(seeds) or scale.seeds or (int(_preset(scale.networks[case.network][0])["seed"]),)
    missing = item.least_seeds - len(given)
    return (given + tuple(max(given) + 1 + extra for extra in range(missing)))[: item.most_seeds]


def runs_of_case(item: Item, case: Case, scale: Scale, seeds: Sequence[int] = ()) -> list[PlannedRun]:
    return [PlannedRun(scale, case, seed) for seed in seeds_of(item, case, scale, seeds)]


def plan(items: Iterable[Item], scale: Scale, seeds: Sequence[int] = ()) -> list[PlannedRun]:
    """Every run that the items need, each once, first seeds first, so that every row has a number early."""
    rounds: list[list[PlannedRun]] = []
    for item in items:
        for case in item.cases:
            for number, run in enumerate(runs_of_case(item, case, scale, seeds)):
                while len(rounds) <= number:
                    rounds.append([])
                rounds[number].append(run)
    return list({run.name: run for group in rounds for run in group}.values())


@dataclass(frozen=True)
class Selection:
    """What a person asks for: items at a scale, some seeds, and of the runs those with a text in the name."""

    items: Sequence[Item]
    scale: Scale
    seeds: tuple[int, ...] = ()
    only: tuple[str, ...] = ()

    def runs(self, timed: bool | None = None) -> list[PlannedRun]:
        """All of them, or those that end by the clock, or those that end by themselves."""
        items = [item for item in self.items if timed is None or (item.shows == "time") == timed]
        planned = plan(items, self.scale, self.seeds)
        return [run for run in planned if not self.only or any(text in run.name for text in self.only)]
