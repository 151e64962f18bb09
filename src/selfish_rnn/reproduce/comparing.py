"""Comparison of one method with the stored results of all others: same network, text, epochs and seeds."""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import selfish_rnn
from selfish_rnn.errors import UserError, unknown
from selfish_rnn.experiment.methods import CONFIGURABLE_METHODS
from selfish_rnn.files import read_json, write_atomically, write_json
from selfish_rnn.reproduce.case import Case
from selfish_rnn.reproduce.paper.claims import AT_LEAST
from selfish_rnn.reproduce.plan import PlannedRun
from selfish_rnn.reproduce.rendering.verdicts import Evidence
from selfish_rnn.reproduce.results import Result, Results, read_result
from selfish_rnn.reproduce.scales import Scale

LABELS = {
    "dense": "dense",
    "static": "static (uniform)",
    "static-er": "static (ER)",
    "set": "SET",
    "dsr": "DSR",
    "snfs": "SNFS",
    "rigl": "RigL",
    "selfish": "Selfish-RNN",
    "gmp": "GMP (from dense)",
    "mest": "MEST",
    "gse": "guided exploration",
    "srigl": "SRigL",
    "chts": "CHTs",
    "granet": "GraNet",
    "chtss": "CHTss",
    "top-kast": "Top-KAST",
}
"""Methods to compare with, in the order of the table."""


class OwnResults(Results):
    """Results of comparisons, in the folder of a method, next to the stored results.

    Results of the comparisons in neighbouring folders are read, too.
    """

    def __init__(self, folder: Path, scale: Scale, baselines: Results) -> None:
        self.folder = folder / "results" / scale.name
        results = map(read_result, sorted(folder.parent.glob(f"*/results/{scale.name}/*.json")))
        self._by_name = {result.run: result for result in results}
        self._baselines = baselines

    def get(self, run: PlannedRun) -> Result | None:
        """Return your result, or the stored one of the same run."""
        return super().get(run) or self._baselines.get(run)

    def save(self, result: Result, run: PlannedRun) -> Path:
        """Write a result to the folder."""
        path = self.folder / f"{run.name.replace('/', '-')}.json"
        write_atomically(path, result.to_json().encode())
        self._by_name[result.run] = result
        return path


RULES = "rules.json"
"""File in the folder of a comparison with the checksums of the imported files that its results come from."""


def _checksums(files: Sequence[Path]) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def check_rules(folder: Path, files: Sequence[Path]) -> None:
    """Refuse to mix results of two versions of imported files."""
    path = folder / RULES
    if not path.exists():
        return
    saved = read_json(path)
    changed = sorted(name for name, checksum in _checksums(files).items() if saved.get(name, checksum) != checksum)
    if changed:
        raise UserError(
            f"{', '.join(changed)} has changed since the results in {folder} were made: give the method another name, "
            f"or remove {folder} and its run folders to compare again"
        )


def save_rules(folder: Path, files: Sequence[Path]) -> None:
    """Write the checksums of the imported files."""
    if files:
        write_json(folder / RULES, _checksums(files))


@dataclass(frozen=True)
class Opponent:
    """A method to compare with: its results by seed, and what they say about yours.

    ``better`` is the stored test perplexity minus yours, so it is above zero if yours is better. ``as_good`` is the
    same with the margin of claims of being at least as good.
    """

    label: str
    case: Case
    results: Mapping[int, Result]
    better: Evidence
    as_good: Evidence


@dataclass(frozen=True)
class Comparison:
    """One method at one scale and sparsity, with several seeds, against the results of all others.

    Attributes:
        case: Network, method, optimizer and sparsity, with further settings in ``changes``.
        scale: Scale of the runs.
        seeds: Seeds of your runs; those that the others share are compared in pairs.
        results: Your results and the stored ones.
    """

    case: Case
    scale: Scale
    seeds: tuple[int, ...]
    results: Results

    @cached_property
    def runs(self) -> list[PlannedRun]:
        """Your runs, one for each seed."""
        return [PlannedRun(self.scale, self.case, seed) for seed in self.seeds]

    def of(self, case: Case) -> dict[int, Result]:
        """Return the results of a case by seed."""
        pairs = ((seed, self.results.get(PlannedRun(self.scale, case, seed))) for seed in self.seeds)
        return {seed: result for seed, result in pairs if result is not None}

    @cached_property
    def own(self) -> dict[int, Result]:
        """Your results by seed."""
        return self.of(self.case)

    @cached_property
    def opponents(self) -> list[Opponent]:
        """Every method to compare with, also those without results."""
        return [self._opponent(label, case) for label, case in self._cases() if case != self.case]

    @property
    def missing(self) -> list[Opponent]:
        """Methods without any stored result at this scale and sparsity."""
        return [opponent for opponent in self.opponents if not opponent.results]

    @property
    def core_hours(self) -> float:
        """Hours of one core that your runs took."""
        return sum(float(result.series["seconds"][-1]) for result in self.own.values()) / 3600

    def _cases(self) -> list[tuple[str, Case]]:
        network, sparsity = self.case.network, self.case.sparsity
        return [
            (label, Case(network, "dense", "nt-asgd") if name == "dense" else Case(network, name, sparsity=sparsity))
            for name, label in LABELS.items()
            if name in CONFIGURABLE_METHODS
        ]

    def _opponent(self, label: str, case: Case) -> Opponent:
        results = self.of(case)
        seeds = tuple(seed for seed in self.own if seed in results)
        theirs = [float(results[seed].summary["test_perplexity"]) for seed in seeds]
        ours = [float(self.own[seed].summary["test_perplexity"]) for seed in seeds]
        differences = tuple(their - our for their, our in zip(theirs, ours, strict=True))
        margin = AT_LEAST * statistics.fmean(theirs) if theirs else 0.0
        return Opponent(
            label, case, results, Evidence(differences, seeds=seeds), Evidence(differences, margin, seeds=seeds)
        )


def check_method(name: str) -> None:
    """Raise an error that names the remedy if no method has this name."""
    if name not in CONFIGURABLE_METHODS:
        raise UserError(f"{unknown('method', name, CONFIGURABLE_METHODS)}; --import FILE adds those of your own file")


def baseline_folder(chosen: Path | None) -> Path:
    """Return the folder of the stored results: the chosen one, that of this folder, or that of the source tree."""
    source = Path(selfish_rnn.__file__).parents[2] / "results"
    for folder in [chosen] if chosen is not None else [Path("results"), source]:
        if folder.is_dir():
            return folder
    raise UserError(
        f"there are no stored results in {chosen or 'results'}: run the command in a clone of the repository, or name "
        "its results folder with --baselines"
    )


def shown_seeds(seeds: Sequence[int]) -> str:
    """Return seeds as a list.

    >>> shown_seeds((1, 2, 3))
    '1, 2, 3'
    """
    return ", ".join(map(str, seeds))
