"""Distances between the topologies of runs: measured from run folders, kept as results."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from selfish_rnn.files import write_atomically
from selfish_rnn.reproduce.case import Item
from selfish_rnn.reproduce.plan import PlannedRun, runs_of_case
from selfish_rnn.reproduce.results import line_by_line
from selfish_rnn.reproduce.scales import Scale
from selfish_rnn.scheduling.jobs import is_finished

Records = list[dict[str, float]]
Measure = Callable[[Path, Path | None], Records | None]

Pair = tuple[PlannedRun, PlannedRun | None]


def pairs_of(item: Item, scale: Scale, seeds: Sequence[int] = ()) -> list[Pair]:
    """The runs that are compared: each with the next seed's, the last with the first; one by itself with its past."""
    pairs: list[Pair] = []
    for case in item.cases:
        runs = runs_of_case(item, case, scale, seeds)
        if item.least_seeds == 1:
            pairs += [(run, None) for run in runs]
        else:
            following = [*runs[1:], *(runs[:1] if len(runs) > 2 else [])]
            pairs += list(zip(runs, following, strict=False))
    return pairs


class Distances:
    """The distances of a scale that were measured, in ``results/SCALE/distances/``."""

    def __init__(self, root: Path, scale: str) -> None:
        self.folder = root / scale / "distances"

    def path(self, pair: Pair) -> Path:
        run, other = pair
        name = run.name.replace("/", "-")
        return self.folder / (f"{name}-with-seed{other.seed}.json" if other else f"{name}.json")

    def of(self, pair: Pair) -> Records | None:
        path = self.path(pair)
        if not path.exists():
            return None
        records: Records = json.loads(path.read_text())["distances"]
        return records

    def keep(self, pair: Pair, records: Records) -> None:
        run, other = pair
        content = {"runs": [run.name, *([other.name] if other else [])], "distances": records}
        write_atomically(self.path(pair), line_by_line(content).encode())

    def measure(self, pairs: Sequence[Pair], folder_of: Callable[[PlannedRun], Path], measure: Measure) -> list[Pair]:
        """Measure and keep what is not there yet; return the pairs that could not be measured.

        Only finished runs are measured.
        """
        missing = []
        for pair in pairs:
            run, other = pair
            folders = folder_of(run), folder_of(other) if other else None
            if self.of(pair) is not None:
                continue
            records = measure(*folders) if all(folder is None or is_finished(folder) for folder in folders) else None
            if records is None:
                missing.append(pair)
            else:
                self.keep(pair, records)
        return missing
