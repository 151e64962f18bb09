"""The runs that items need at a scale: their settings, their names, and which of them are the same run."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

from selfish_rnn.experiment.optimizers import OPTIMIZERS
from selfish_rnn.experiment.presets import Settings, build_experiment, read_preset, with_assignments
from selfish_rnn.experiment.settings import Experiment
from selfish_rnn.experiment.small_dense import resolve_model
from selfish_rnn.reproduce.case import DENSE, METHOD_WORDS, Case, Item
from selfish_rnn.reproduce.paper.stages import CORE
from selfish_rnn.reproduce.scales import Scale
from selfish_rnn.reproduce.tuning import tuned_words


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
        entries = [_average_entry(self.scale.selections[name]) for name in self.averages]
        averages = (f"averages=[{', '.join(entries)}]",) if entries else ()
        return (*self._training_words, *averages, f"seed={self.seed}")

    @cached_property
    def _training_words(self) -> tuple[str, ...]:
        """Preset and changes without the seed, and without averages, which do not change what is trained."""
        return (*self._network_words(), *self.case.words(self.scale.updates))

    @cached_property
    def averages(self) -> tuple[str, ...]:
        """Values of :attr:`Case.average` that the run keeps averages for."""
        if self.case.untuned:
            return ()
        for case, names in self.scale.averages.items():
            if (case.network, case.method, case.optimizer) == (
                self.case.network,
                self.case.method,
                self.case.optimizer,
            ):
                usual = PlannedRun(self.scale, case, self.seed)
                if _built(usual._training_words) == _built(self._training_words):
                    return names
        return ()

    @cached_property
    def trained_run(self) -> PlannedRun:
        """The run that is made for this one: itself, or the one that keeps the average this one selects."""
        if not self.case.average:
            return self
        carrier = PlannedRun(self.scale, replace(self.case, average=""), self.seed)
        if self.case.average in carrier.averages:
            return carrier
        kind = self.case.average.partition("-")[0]
        return PlannedRun(self.scale, replace(self.case, average="", optimizer=f"{kind}-asgd"), self.seed)

    @property
    def selected(self) -> str | None:
        """Name of the average of :attr:`trained_run` that this run selects; None for that of the optimizer."""
        selects = bool(self.case.average) and self.case.average in self.trained_run.averages
        return self.scale.selections[self.case.average] if selects else None

    @cached_property
    def experiment(self) -> Experiment:
        return _built(self.words)

    @cached_property
    def name(self) -> str:
        case = self.case
        parts = [case.method, case.average or case.optimizer]
        words = self._training_words
        experiment = _built(words)
        if case.method != "dense":  # a small dense network has the weights of a sparse one
            parts.append(f"s{experiment.sparsity:g}")
        # A change to what the preset says anyway makes no other run; a tuning run is named by all of its settings.
        for word in case.words(self.scale.updates):
            free = word.startswith("rewire_every=") or word in case.changes
            if free and (case.untuned or _built(tuple(other for other in words if other != word)) != experiment):
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
        case, scale = self.case, self.scale
        preset, *changes = scale.networks[case.network]
        if case.method == "selfish" or case.method in METHOD_WORDS:
            changes += scale.selfish
        averaging = OPTIMIZERS[case.optimizer].averages
        if not averaging:
            changes = [word for word in changes if not word.startswith(("optimizer.", "restart_at="))]
            if "restart_at" in _preset(preset):
                changes.append("restart_at=[]")
        if not case.untuned:
            sparsity = case.sparsity if case.sparsity is not None else float(_preset(preset)["sparsity"])
            changes += tuned_words(case, sparsity, scale.chosen)
        return (preset, *changes)


def _average_entry(name: str) -> str:
    """Return the entry of ``averages`` for an average by its name.

    >>> _average_entry("nt-20-no-restart")
    '{kind: nt, from: 20, restart: false}'
    """
    kind, start, *rest = name.split("-", 2)
    return f"{{kind: {kind}, from: {start}{', restart: false' if rest else ''}}}"


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
    given = tuple(seeds) or item.seeds or seeds_of_scale(case, scale)
    missing = item.least_seeds - len(given)
    return (given + tuple(max(given) + 1 + extra for extra in range(missing)))[: item.most_seeds]


def seeds_of_scale(case: Case, scale: Scale) -> tuple[int, ...]:
    """Return the seeds of a case at a scale: all of them for a core comparison, otherwise its first ones."""
    if not scale.seeds:
        return (int(_preset(scale.networks[case.network][0])["seed"]),)
    return scale.seeds if is_core(case, scale) else scale.seeds[: scale.fewer]


def is_core(case: Case, scale: Scale) -> bool:
    """Return whether a case is one of the core comparisons, which have all seeds of a scale."""
    if scale.fewer is None:
        return True
    return PlannedRun(scale, case, 0).trained_run.name in {PlannedRun(scale, core, 0).trained_run.name for core in CORE}


def runs_of_case(item: Item, case: Case, scale: Scale, seeds: Sequence[int] = ()) -> list[PlannedRun]:
    return [PlannedRun(scale, case, seed) for seed in seeds_of(item, case, scale, seeds)]


def plan(items: Iterable[Item], scale: Scale, seeds: Sequence[int] = ()) -> list[PlannedRun]:
    """Every run that the items need, each once, first seeds first, so that every row has a number early."""
    rounds: list[list[PlannedRun]] = []
    for item in items:
        if item.scales and scale.name not in item.scales:
            continue
        for case in item.planned_cases:
            for number, run in enumerate(runs_of_case(item, case, scale, seeds)):
                while len(rounds) <= number:
                    rounds.append([])
                rounds[number].append(run.trained_run)
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
