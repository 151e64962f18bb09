"""Sweeps: every combination of settings in a YAML file as a run."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from selfish_rnn.errors import UserError, unknown
from selfish_rnn.experiment.comparison import flat
from selfish_rnn.experiment.presets import assignment, build_experiment, read_config, read_preset, with_assignments
from selfish_rnn.experiment.settings import Experiment
from selfish_rnn.experiment.small_dense import resolve_model
from selfish_rnn.files import read_json, write_json
from selfish_rnn.scheduling.jobs import check_begun, is_finished, run_command
from selfish_rnn.scheduling.scheduler import Job

KEYS = ("preset", "settings", "grid")
LONGEST_NAME = 100
MOST_RUNS = 10_000
MEASURED = ("valid_perplexity", "test_perplexity", "active_weights", "best_epoch", "seconds")


@dataclass(frozen=True)
class SweepRun:
    """One combination of a sweep; ``varied`` are the settings in which it differs from the others."""

    preset: str
    settings: tuple[tuple[str, Any], ...]
    varied: tuple[tuple[str, Any], ...]

    @property
    def words(self) -> tuple[str, ...]:
        """Arguments of ``selfish-rnn train``."""
        return (self.preset, *itertools.starmap(assignment, dict((*self.settings, *self.varied)).items()))

    @cached_property
    def experiment(self) -> Experiment:
        preset, *assignments = self.words
        return build_experiment(with_assignments(read_preset(preset)[0], assignments), f"run {self.name}")

    @property
    def name(self) -> str:
        """Folder name made of the varied settings."""
        text = "-".join(itertools.starmap(assignment, self.varied)).replace("=", "-") or self.preset
        name = re.sub(r"[^\w.+-]+", "-", text).strip("-.")
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        return name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}-{digest}"

    def trained(self, words: int) -> Experiment:
        """Return the experiment that the run folder contains: a small dense network has resolved widths."""
        return resolve_model(self.experiment, words)


@dataclass(frozen=True)
class Sweep:
    """Runs in a folder.

    >>> sweep = Sweep.read(Path("sweep.yaml"), folder=Path("runs/sweep"))
    >>> [run.name for run in sweep.runs]
    ['method-selfish-seed-1', 'method-selfish-seed-2', 'method-static-seed-1', 'method-static-seed-2']
    """

    runs: tuple[SweepRun, ...]
    folder: Path

    @classmethod
    def read(cls, path: Path, folder: Path) -> Sweep:
        """Return the sweep of a YAML file; every run is validated before the first one starts."""
        content = read_config(path)
        for key in content:
            if key not in KEYS:
                raise UserError(f"{path}: {unknown('key', str(key), KEYS)}")
        preset, settings, grid = content.get("preset", "quickstart"), content.get("settings") or {}, content.get("grid")
        if not isinstance(preset, str):
            raise UserError(f"{path}: preset must be the name of a preset, got {preset!r}")
        if not isinstance(settings, dict):
            raise UserError(f"{path}: settings must contain keys and values, such as `epochs: 20`")
        grids = grid if isinstance(grid, list) else [grid]
        runs = []
        for choices in grids:
            runs += [SweepRun(preset, tuple(flat(settings).items()), varied) for varied in _combinations(choices, path)]
            if len(runs) > MOST_RUNS:
                raise UserError(f"{path}: the grid has more than {MOST_RUNS:,} runs")
        by_name: dict[str, SweepRun] = {}
        for run in runs:
            if run.name in by_name:
                raise UserError(f"{path}: two runs have the same settings and the name {run.name}: remove one of them")
            by_name[run.name] = run
            try:
                run.experiment  # noqa: B018 - building it validates the settings
            except UserError as error:
                raise UserError(f"{path}: {error}") from None
        return cls(tuple(runs), folder)

    def path(self, run: SweepRun) -> Path:
        return self.folder / run.name

    def jobs(self) -> list[Job]:
        """Return a job per run; a run that was started with other settings is an error."""
        for run in self.runs:
            check_begun(self.path(run), run.trained)
        return [self._job(run) for run in self.runs]

    def _job(self, run: SweepRun) -> Job:
        path, words = self.path(run), list(run.words)
        if run.experiment.threads is None:
            words.append("threads=1")
        return Job(
            name=run.name,
            folder=path,
            command=lambda: run_command(path, words, run.trained),
            done=lambda: is_finished(path),
        )

    def results(self) -> list[dict[str, Any]]:
        """Return the results of all finished runs with their varied settings."""
        results = []
        for run in self.runs:
            if is_finished(self.path(run)):
                summary = read_json(self.path(run) / "summary.json")
                measured = {key: summary[key] for key in MEASURED}
                results.append({"run": run.name, "settings": dict(run.varied), **measured})
        return results

    def write_results(self) -> Path:
        """Write the results to ``sweep.json`` beside the runs."""
        path = self.folder / "sweep.json"
        write_json(path, self.results())
        return path


@dataclass(frozen=True)
class SeedGroup:
    """Results of runs that differ only in their seed."""

    settings: Mapping[str, Any]
    results: Sequence[Mapping[str, Any]]

    def values(self, key: str) -> list[float]:
        """Return one value of every run."""
        return [result[key] for result in self.results]

    def mean(self, key: str) -> float:
        return statistics.fmean(self.values(key))


def group_by_seed(results: Sequence[Mapping[str, Any]]) -> list[SeedGroup]:
    """Group results by their settings without the seed, best mean test perplexity first."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for result in results:
        settings = {key: value for key, value in result["settings"].items() if key != "seed"}
        groups.setdefault(json.dumps(settings, sort_keys=True), []).append(result)
    seed_groups = [SeedGroup(json.loads(settings), members) for settings, members in groups.items()]
    return sorted(seed_groups, key=lambda group: group.mean("test_perplexity"))


def _combinations(grid: Any, path: Path) -> Iterator[tuple[tuple[str, Any], ...]]:
    if not isinstance(grid, dict) or not grid:
        raise UserError(f"{path}: grid must contain settings with lists of values, such as `seed: [1, 2, 3]`")
    choices = []
    for key, values in grid.items():
        if not isinstance(values, list) or not values:
            raise UserError(f"{path}: grid.{key} must be a list of values, such as [1, 2, 3], got {values!r:.60}")
        choices.append([flat({str(key): value}).items() for value in values])
    return (tuple(itertools.chain(*combination)) for combination in itertools.product(*choices))
