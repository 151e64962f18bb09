"""Plan of runs: settings, names and seeds of the runs that items need at a scale."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

from selfish_rnn.experiment.optimizers import OPTIMIZERS
from selfish_rnn.experiment.presets import Settings, build_experiment, read_preset, with_assignments
from selfish_rnn.experiment.settings import Experiment
from selfish_rnn.experiment.small_dense import resolve_model
from selfish_rnn.reproduce.case import DENSE, METHOD_OVERRIDES, Case, Item
from selfish_rnn.reproduce.paper.comparisons import CORE
from selfish_rnn.reproduce.scales import Scale
from selfish_rnn.reproduce.tuning import tuned_overrides


@dataclass(frozen=True)
class PlannedRun:
    """Case at a scale with a seed. Runs with the same name are the same run.

    >>> PlannedRun(SMALL, Case("stacked-lstm", "rigl", changes=("prune_rate=0.5",)), 1).name
    'stacked-lstm/rigl-snt-asgd-s0.67-prune-rate-0.5-seed1'
    """

    scale: Scale
    case: Case
    seed: int

    @property
    def arguments(self) -> tuple[str, ...]:
        """Preset and overrides for ``selfish-rnn train``, without ``threads``, which does not affect results."""
        entries = [_average_entry(self.scale.selections[name]) for name in self.averages]
        averages = (f"averages=[{', '.join(entries)}]",) if entries else ()
        return (*self._training_arguments, *averages, f"seed={self.seed}")

    @cached_property
    def _training_arguments(self) -> tuple[str, ...]:
        """Preset and overrides without the seed, and without averages, which do not affect training."""
        return (*self._network_arguments(), *self.case.overrides(self.scale.updates))

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
                if _built(usual._training_arguments) == _built(self._training_arguments):
                    return names
        return ()

    @cached_property
    def trained_run(self) -> PlannedRun:
        """Run to train: this one, or the run that keeps the average this one selects."""
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
        """Settings of the run."""
        return _built(self.arguments)

    @cached_property
    def name(self) -> str:
        """Network, method, optimizer, sparsity, changed settings and seed."""
        case = self.case
        parts = [case.method, case.average or case.optimizer]
        arguments = self._training_arguments
        experiment = _built(arguments)
        if case.method != "dense":  # a small dense network has as many weights as a sparse one
            parts.append(f"s{experiment.sparsity:g}")
        # An override with the value of the preset does not make another run. A tuning run names all of its settings.
        for override in case.overrides(self.scale.updates):
            free = override.startswith("rewire_every=") or override in case.changes
            if free and (case.untuned or _built(tuple(word for word in arguments if word != override)) != experiment):
                parts.append(override.replace("_", "-").replace("=", "-"))
        return f"{case.network}/{'-'.join(parts)}-seed{self.seed}"

    @property
    def sparse(self) -> bool:
        """True if the network has zeros."""
        return self.case.method not in DENSE

    @property
    def command(self) -> str:
        """Shell command that trains the run."""
        return shlex.join(["selfish-rnn", "train", *self.arguments])

    def stored_experiment(self, vocabulary: int) -> Experiment:
        """Return the experiment as its run folder stores it: a small dense network has its computed widths."""
        return resolve_model(self.experiment, vocabulary)

    def _network_arguments(self) -> tuple[str, ...]:
        """Return preset and overrides of the scale; those for averages only with an averaging optimizer."""
        case, scale = self.case, self.scale
        preset, *changes = scale.networks[case.network]
        if case.method == "selfish" or case.method in METHOD_OVERRIDES:
            changes += scale.selfish
        if not OPTIMIZERS[case.optimizer].averages:
            changes = [word for word in changes if not word.startswith(("optimizer.", "restart_at="))]
            if "restart_at" in _preset(preset):
                changes.append("restart_at=[]")
        if not case.untuned:
            sparsity = case.sparsity if case.sparsity is not None else float(_preset(preset)["sparsity"])
            changes += tuned_overrides(case, sparsity, scale.chosen)
        return (preset, *changes)


def _average_entry(name: str) -> str:
    """Return the entry of ``averages`` for an average by its name.

    >>> _average_entry("nt-20-no-restart")
    '{kind: nt, from: 20, restart: false}'
    """
    kind, start, *suffix = name.split("-", 2)
    return f"{{kind: {kind}, from: {start}{', restart: false' if suffix else ''}}}"


@cache
def _built(arguments: tuple[str, ...]) -> Experiment:
    """Build the experiment of a preset and overrides. Items share runs, so it is cached."""
    preset, *changes = arguments
    return build_experiment(with_assignments(_preset(preset), changes), "a planned run")


@cache
def _preset(name: str) -> Settings:
    """Read the settings of a preset. Overrides are applied to copies."""
    return read_preset(name)[0]


def seeds_of(item: Item, case: Case, scale: Scale, seeds: Sequence[int] = ()) -> tuple[int, ...]:
    """Return the seeds of a case in an item: `seeds`, or the scale's, within the limits of the item."""
    chosen = tuple(seeds) or item.seeds or seeds_of_scale(case, scale)
    missing = item.min_seeds - len(chosen)
    return (chosen + tuple(max(chosen) + 1 + extra for extra in range(missing)))[: item.max_seeds]


def seeds_of_scale(case: Case, scale: Scale) -> tuple[int, ...]:
    """Return the seeds of a case at a scale: all of them for a core comparison, otherwise the first ones."""
    if not scale.seeds:
        return (int(_preset(scale.networks[case.network][0])["seed"]),)
    return scale.seeds if is_core(case, scale) else scale.seeds[: scale.fewer_seeds]


def is_core(case: Case, scale: Scale) -> bool:
    """Return whether a case is one of the core comparisons, which have all seeds of a scale."""
    if scale.fewer_seeds is None:
        return True
    return PlannedRun(scale, case, 0).trained_run.name in {PlannedRun(scale, core, 0).trained_run.name for core in CORE}


def runs_of_case(item: Item, case: Case, scale: Scale, seeds: Sequence[int] = ()) -> list[PlannedRun]:
    """Return the runs of a case in an item, one per seed."""
    return [PlannedRun(scale, case, seed) for seed in seeds_of(item, case, scale, seeds)]


def plan(items: Iterable[Item], scale: Scale, seeds: Sequence[int] = ()) -> list[PlannedRun]:
    """Return every run that items need, each once. First seeds come first, so that every row has a number early."""
    rounds: list[list[PlannedRun]] = []
    for item in items:
        if item.scales and scale.name not in item.scales:
            continue
        for case in item.planned_cases:
            for index, run in enumerate(runs_of_case(item, case, scale, seeds)):
                while len(rounds) <= index:
                    rounds.append([])
                rounds[index].append(run.trained_run)
    return unique(run for group in rounds for run in group)


def unique(runs: Iterable[PlannedRun]) -> list[PlannedRun]:
    """Return runs without repetitions."""
    return list({run.name: run for run in runs}.values())


def matching(runs: Iterable[PlannedRun], texts: Sequence[str]) -> list[PlannedRun]:
    """Return the runs with one of some texts in their names; all runs if there are no texts."""
    return [run for run in runs if not texts or any(text in run.name for text in texts)]


Pair = tuple[PlannedRun, PlannedRun | None]
"""Two runs whose topologies are compared; a run without a partner is compared with its own past."""


def pairs_of(item: Item, scale: Scale, seeds: Sequence[int] = ()) -> list[Pair]:
    """Return the pairs of an item: each run with that of the next seed, the last with the first."""
    pairs: list[Pair] = []
    for case in item.cases:
        runs = runs_of_case(item, case, scale, seeds)
        if item.min_seeds == 1:
            pairs += [(run, None) for run in runs]
        else:
            partners = [*runs[1:], *(runs[:1] if len(runs) > 2 else [])]
            pairs += list(zip(runs, partners, strict=False))
    return pairs
