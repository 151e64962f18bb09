"""Results: what is kept of a finished run, one small file each, in ``results/SCALE/ITEM/``."""

from __future__ import annotations

import dataclasses
import json
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from selfish_rnn import __version__
from selfish_rnn.errors import UserError
from selfish_rnn.experiment.comparison import differences
from selfish_rnn.experiment.presets import Settings, build_experiment, read_config
from selfish_rnn.files import read_json, write_atomically
from selfish_rnn.reproduce.analysis import operations
from selfish_rnn.reproduce.case import Item
from selfish_rnn.reproduce.paper import ITEMS
from selfish_rnn.reproduce.plan import PlannedRun
from selfish_rnn.runs.folder import RunFolder
from selfish_rnn.scheduling.jobs import is_finished
from selfish_rnn.system import processor
from selfish_rnn.training.records import WEIGHTS_ABOVE, EpochRecord

SERIES = ("epoch", "seconds", "train_perplexity", "valid_perplexity", "averaging", "active_weights")
"""Fields of :class:`~selfish_rnn.training.records.EpochRecord` that a result has a column of."""
AVERAGE_SERIES = ("valid_perplexity", "averaging")


@dataclass(frozen=True)
class Result:
    """A finished run.

    ``settings`` are the whole configuration, ``series`` a list over the epochs for everything that figures show,
    ``density`` that of every gate at the end, ``summary`` what the run came to, ``points`` test perplexity against
    seconds for a run that ended by the clock, ``operations`` those of training and testing as fractions of the dense
    network's, ``made`` by which commit, versions and machine.
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
        """Return the result that a run has whose optimizer keeps this average."""
        # What was counted in the network of the optimizer's average says nothing of another one.
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
        """Return the records of the epochs as far as the result has them: undo :func:`columns`.

        Every epoch has the densities of the last one, and no step.
        """
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
        return line_by_line(dataclasses.asdict(self))


def line_by_line(content: Mapping[str, Any]) -> str:
    """JSON with a line for each part, so that a change is easy to see."""
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in content.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


class Results:
    """The results of a scale. A run that several items share is kept with the first of them.

    Example::

        results = Results(Path("results"), "small")
        results.of(PlannedRun(SMALL, Case("stacked-lstm"), seed=1))
    """

    def __init__(self, root: Path, scale: str) -> None:
        self.folder = root / scale
        self._read: dict[str, Result] = {}
        for item in ITEMS:
            for path in sorted((self.folder / item).glob("*.json")):
                result = _read(path)
                self._read[result.run] = result

    def of(self, run: PlannedRun) -> Result | None:
        """Return the result of a run, or None if there is none or it was made with different settings.

        Of a run that selects among the averages of another, it is the result of that run with the perplexities of the
        selected average.
        """
        trained = run.trained_run
        result = self._read.get(trained.name)
        if result is None:
            return None
        experiment = build_experiment(result.settings, f"result of {trained.name}")
        if differences(experiment, trained.trained(result.summary["vocabulary"])):
            return None
        return result if run.selected is None else result.with_average(run.selected)

    def of_case(self, runs: Iterable[PlannedRun]) -> list[Result]:
        return [result for run in runs if (result := self.of(run)) is not None]

    def of_network(self, network: str) -> list[Result]:
        """All results of a network, whatever their settings."""
        return [result for name, result in self._read.items() if name.startswith(f"{network}/")]

    def keep(self, result: Result, run: PlannedRun) -> Path:
        """Write a result to the folder of the first item that needs it."""
        owner = next(name for name, item in ITEMS.items() if _makes(item, run))
        path = self.folder / owner / f"{run.name.replace('/', '-')}.json"
        write_atomically(path, result.to_json().encode())
        self._read[result.run] = result
        return path


def _makes(item: Item, run: PlannedRun) -> bool:
    """Return whether an item needs a run, for its own sake or for one of its averages."""
    same_seed = (PlannedRun(run.scale, case, run.seed).trained_run for case in item.cases if case.average)
    return run.case in item.cases or any(other.name == run.name for other in same_seed)


def _read(path: Path) -> Result:
    try:
        return Result(**json.loads(path.read_text()))
    except (ValueError, TypeError) as error:
        raise UserError(f"{path} is not a result ({error}); restore it or delete it") from None


def columns(records: Sequence[EpochRecord]) -> dict[str, Any]:
    """Return the records of a run as a list over the epochs for each value that figures show."""
    last = records[-1] if records else None
    series: dict[str, Any] = {key: [_rounded(getattr(record, key)) for record in records] for key in SERIES}
    names = last.weights_above if last else ()
    series[WEIGHTS_ABOVE] = {name: [record.weights_above.get(name) for record in records] for name in names}
    if last and last.averages:
        series["averages"] = {
            name: {key: [_rounded(getattr(each.averages[name], key)) for each in records] for key in AVERAGE_SERIES}
            for name in last.averages
        }
    return series


def collect(folder: Path, run: PlannedRun, made: Mapping[str, Any], points: list[dict[str, float]]) -> Result:
    """What is kept of the run in a folder."""
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
        made=dict(made),
        points=points,
        operations=operations(folder, run.experiment) if is_finished(folder) else None,
    )


def made_here() -> dict[str, Any]:
    """By which software and on which machine a run is made now."""
    return {
        "commit": _commit(),
        "selfish_rnn": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": processor(),
    }


def _commit() -> str | None:
    """The commit of the source tree the package runs from; nothing if it was installed."""
    words = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        told = subprocess.run(words, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return told.stdout.strip()


def _rounded(value: Any, digits: int = 4) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(inner, digits) for key, inner in value.items()}
    return round(value, digits) if isinstance(value, float) else value
