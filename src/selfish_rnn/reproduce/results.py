"""Results: one small file per finished run, in ``results/SCALE/ITEM/``, and distances between topologies."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import statistics
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import selfish_rnn
from selfish_rnn.analysis.training_flops import run_flops
from selfish_rnn.errors import UserError
from selfish_rnn.experiment.comparison import differences
from selfish_rnn.experiment.presets import Settings, build_experiment, read_config
from selfish_rnn.experiment.settings import Experiment
from selfish_rnn.files import read_json, write_atomically
from selfish_rnn.reproduce.case import DENSE, Item
from selfish_rnn.reproduce.paper import ITEMS
from selfish_rnn.reproduce.plan import Pair, PlannedRun, plan, unique
from selfish_rnn.reproduce.scales import Scale
from selfish_rnn.runs.folder import RunFolder
from selfish_rnn.runs.run import Run
from selfish_rnn.scheduling.jobs import is_finished
from selfish_rnn.system import processor
from selfish_rnn.training.records import WEIGHTS_ABOVE, EpochRecord

SERIES = ("epoch", "seconds", "train_perplexity", "valid_perplexity", "averaging", "active_weights")
"""Fields of :class:`~selfish_rnn.training.records.EpochRecord` that a result has a column of."""

AVERAGE_SERIES = ("valid_perplexity", "averaging")

DENSE_FACTOR = 1.7
"""Estimated time of a dense run relative to a sparse one, used while no dense run is finished."""

Distances = list[dict[str, float]]
"""Records of ``epoch``, ``mean`` over the matrices of recurrent layers, and the distance of every matrix by name."""


@dataclass(frozen=True)
class Result:
    """Outcome of a finished run.

    Attributes:
        run: Name of the planned run.
        scale: Name of its scale.
        seed: Random seed.
        command: Shell command that trains it.
        settings: Complete configuration.
        summary: Final numbers of the run folder.
        series: Values per epoch, for figures.
        density: Density of every gate at the end, by matrix.
        made: Commit, versions and machine.
        points: Perplexity after several times, for a run with a time limit.
        operations: FLOPs of training and of inference, as fractions of those of the dense network.
    """

    run: str
    scale: str
    seed: int
    command: str
    settings: Settings
    summary: dict[str, Any]
    series: dict[str, Any]
    density: dict[str, dict[str, float]]
    made: dict[str, Any]
    points: list[dict[str, float]] = field(default_factory=list)
    operations: list[float] | None = None

    def with_average(self, name: str) -> Result:
        """Return the result as if the optimizer kept this average."""
        # Counts of large weights belong to the network of the optimizer's average only.
        series = {key: values for key, values in self.series.items() if key not in ("averages", WEIGHTS_ABOVE)}
        restarts: Settings = {"restart_at": []} if name.endswith("-no-restart") else {}
        return dataclasses.replace(
            self,
            summary={**self.summary, **self.summary["averages"][name]},
            series={**series, **self.series["averages"][name]},
            settings={**self.settings, **restarts},
        )

    @property
    def epochs(self) -> list[EpochRecord]:
        """Records of the epochs, restored from :func:`columns`, with the densities of the last epoch and no step."""
        series = self.series
        return [
            EpochRecord(
                step=0,
                density=self.density,
                weights_above={name: counts[index] for name, counts in series.get(WEIGHTS_ABOVE, {}).items()},
                **{key: series[key][index] for key in SERIES},
            )
            for index in range(len(series["epoch"]))
        ]

    def to_json(self) -> str:
        """Return the content of the result file."""
        return _line_by_line(dataclasses.asdict(self))


class Results:
    """Results of a scale. A run that several items share is stored with the first of them.

    Example::

        results = Results(Path("results"), "small")
        results.get(PlannedRun(SMALL, Case("stacked-lstm"), seed=1))
    """

    def __init__(self, root: Path, scale: str) -> None:
        self.folder = root / scale
        self._by_name: dict[str, Result] = {}
        for item in ITEMS:
            for path in sorted((self.folder / item).glob("*.json")):
                result = read_result(path)
                self._by_name[result.run] = result

    def get(self, run: PlannedRun) -> Result | None:
        """Return the stored result, or None if there is none or it was made with different settings.

        A run that selects an average of another run gets the result of that run, with the perplexities of the selected
        average.
        """
        trained = run.trained_run
        result = self._by_name.get(trained.name)
        if result is None:
            return None
        experiment = build_experiment(result.settings, f"result of {trained.name}")
        if differences(experiment, trained.stored_experiment(result.summary["vocabulary"])):
            return None
        return result if run.selected is None else result.with_average(run.selected)

    def get_all(self, runs: Iterable[PlannedRun]) -> list[Result]:
        """Return the results of those runs that have one."""
        return [result for run in runs if (result := self.get(run)) is not None]

    def of_network(self, network: str) -> list[Result]:
        """Return all results of a network, with any settings."""
        return [result for name, result in self._by_name.items() if name.startswith(f"{network}/")]

    def save(self, result: Result, run: PlannedRun) -> Path:
        """Write a result to the folder of the first item that needs it."""
        owner = next(name for name, item in ITEMS.items() if _needs(item, run))
        path = self.folder / owner / f"{run.name.replace('/', '-')}.json"
        write_atomically(path, result.to_json().encode())
        self._by_name[result.run] = result
        return path

    def distances(self, pair: Pair) -> Distances | None:
        """Return the stored distances of a pair, or None."""
        path = self._distance_path(pair)
        if not path.exists():
            return None
        records: Distances = json.loads(path.read_text())["distances"]
        return records

    def save_distances(self, pair: Pair, records: Distances) -> None:
        """Write the distances of a pair."""
        run, partner = pair
        content = {"runs": [run.name, *([partner.name] if partner else [])], "distances": records}
        write_atomically(self._distance_path(pair), _line_by_line(content).encode())

    def _distance_path(self, pair: Pair) -> Path:
        run, partner = pair
        name = run.name.replace("/", "-")
        return self.folder / "distances" / (f"{name}-with-seed{partner.seed}.json" if partner else f"{name}.json")


def _needs(item: Item, run: PlannedRun) -> bool:
    """Return whether an item needs a run, directly or for one of its averages."""
    carriers = (PlannedRun(run.scale, case, run.seed).trained_run for case in item.cases if case.average)
    return run.case in item.cases or any(carrier.name == run.name for carrier in carriers)


def read_result(path: Path) -> Result:
    """Return the result in a file."""
    try:
        return Result(**json.loads(path.read_text()))
    except (ValueError, TypeError) as error:
        raise UserError(f"{path} is not a result ({error}); restore it or delete it") from None


def _line_by_line(content: Mapping[str, Any]) -> str:
    """Return JSON with one line per key, so that diffs are readable."""
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in content.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def columns(records: Sequence[EpochRecord]) -> dict[str, Any]:
    """Return the values that figures show, as lists over the epochs."""
    last = records[-1] if records else None
    series: dict[str, Any] = {key: [_rounded(getattr(record, key)) for record in records] for key in SERIES}
    names = last.weights_above if last else ()
    series[WEIGHTS_ABOVE] = {name: [record.weights_above.get(name) for record in records] for name in names}
    if last and last.averages:
        series["averages"] = {
            name: {key: [_rounded(getattr(record.averages[name], key)) for record in records] for key in AVERAGE_SERIES}
            for name in last.averages
        }
    return series


def collect(folder: Path, run: PlannedRun, origin: Mapping[str, Any], points: list[dict[str, float]]) -> Result:
    """Return the result of the run in a folder.

    Args:
        folder: Run folder.
        run: Planned run that it belongs to.
        origin: Commit, versions and machine.
        points: Perplexity after several times, for a run with a time limit.
    """
    files = RunFolder(folder)
    records = files.metrics.read()
    summary = read_json(files.summary) if is_finished(folder) else {}
    series = columns(records)
    summary = {key: _rounded(value) for key, value in summary.items() if key != "density"}
    return Result(
        run=run.name,
        scale=run.scale.name,
        seed=run.seed,
        command=run.command,
        settings=read_config(files.config),
        summary={**summary, "vocabulary": len(files.read_vocabulary())},
        series=series,
        density={
            name: {gate: _rounded(value, 6) for gate, value in gates.items()}
            for name, gates in (records[-1].density if records else {}).items()
        },
        made=dict(origin),
        points=points,
        operations=_operations(folder, run.experiment) if is_finished(folder) else None,
    )


def _operations(folder: Path, experiment: Experiment) -> list[float] | None:
    """Return FLOPs of training and inference relative to the dense network, or None if the folder lacks the facts."""
    try:
        flops = run_flops(Run.open(folder), experiment)
    except UserError:
        return None
    return [round(float(flops.training_ratio), 4), round(float(flops.inference_ratio), 4)]


def provenance() -> dict[str, Any]:
    """Return commit, versions and machine of this process."""
    return {
        "commit": _commit(),
        "selfish_rnn": selfish_rnn.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": processor(),
    }


def _commit() -> str | None:
    """Return the commit of the source tree, or None for an installed package."""
    root = Path(selfish_rnn.__file__).parents[2]
    # An installed package may lie inside another repository, whose commit has nothing to do with it.
    if not (root / ".git").exists() or not (root / "src" / "selfish_rnn").is_dir():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return answer.stdout.strip()


def _rounded(value: Any, digits: int = 4) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(inner, digits) for key, inner in value.items()}
    return round(value, digits) if isinstance(value, float) else value


def import_run(folder: Path, scale: Scale, results: Results, commit: str) -> tuple[PlannedRun, Path]:
    """Store the outcome of a finished run folder as the result of the planned run with the same settings.

    Settings that do not affect results, such as threads and engine, may differ.

    Args:
        folder: Run folder, for example from another machine.
        scale: Scale whose runs are compared with it.
        results: Destination.
        commit: Commit that trained the run.

    Returns:
        The planned run and the path of its result.

    Raises:
        UserError: If the run is unfinished, has unknown settings, or matches no planned run.
    """
    RunFolder.open(folder)
    if not is_finished(folder):
        raise UserError(f"{folder} is not finished: run `selfish-rnn resume` first")
    run = _matching_run(folder, scale)
    origin = {"commit": commit, "adopted_from": folder.resolve().name}
    return run, results.save(collect(folder, run, origin, []), run)


def _matching_run(folder: Path, scale: Scale) -> PlannedRun:
    """Return the planned run of a scale with the settings of a run folder."""
    files = RunFolder(folder)
    experiment = build_experiment(read_config(files.config), str(files.config))
    vocabulary = len(files.read_vocabulary())
    cases = dict.fromkeys(case for item in ITEMS.values() if item.kind != "time" for case in item.cases)
    nearest: list[str] | None = None
    for run in unique(PlannedRun(scale, case, experiment.seed).trained_run for case in cases):
        changes = differences(experiment, run.stored_experiment(vocabulary))
        if not changes:
            return run
        if nearest is None or len(changes) < len(nearest):
            nearest = changes
    raise UserError(
        f"{folder} matches no run of scale {scale.name}; the nearest has: {'; '.join(nearest or ['other settings'])}"
    )


@dataclass(frozen=True)
class ItemStatus:
    """Progress of an item: number of runs, finished runs, core-hours of all runs and of the remaining ones."""

    runs: int
    finished: int
    hours: float
    hours_left: float


def item_status(item: Item, scale: Scale, results: Results, seeds: Sequence[int], budget: float) -> ItemStatus:
    """Return the progress of an item. `budget` is the time limit of timed runs in seconds."""
    runs = plan([item], scale, seeds)
    hours = {run.name: _hours_of(run, item, results, budget) for run in runs}
    remaining = [run for run in runs if results.get(run) is None]
    return ItemStatus(
        len(runs), len(runs) - len(remaining), sum(hours.values()), sum(hours[run.name] for run in remaining)
    )


def _hours_of(run: PlannedRun, item: Item, results: Results, budget: float) -> float:
    """Return core-hours: the median of finished runs of the network, otherwise the estimate of the scale."""
    if item.kind == "time":
        return budget / 3600 * (os.cpu_count() or 1)
    similar = [
        float(result.summary["seconds"]) / 3600
        for result in results.of_network(run.case.network)
        if (result.settings["method"]["name"] in DENSE) == (not run.sparse)
    ]
    if similar:
        return statistics.median(similar)  # a mean would follow the few runs of a busy machine
    return run.scale.hours[run.case.network] * (1 if run.sparse else DENSE_FACTOR)
